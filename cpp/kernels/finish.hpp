// The end of a task: sinks join the sums, contexts are divided by them, rows are written.
#pragma once

#include "positions.hpp"

namespace headway {
namespace {

// Of each lane of a vector: the row's sink, -inf for none; its shift by ALiBi; and the sink as the scores are, without
// the shift, finite where there is one.
template <class S>
struct Sinks {
  alignas(64) typename S::Real unshifted[S::kLanes];
  double own[S::kLanes], shifts[S::kLanes];
};

// For the vector from `lane` on. Not inlined, for GCC 12 fails on it otherwise.
template <class S>
[[gnu::noinline]] void load_sinks(const AttentionTask& task, const Panel<typename S::Real>& panel, int lane, Sinks<S>& sinks) {
  using Real = typename S::Real;
  RowCursor row(panel.first_row + lane, task.group);
  for (int i = 0; i < S::kLanes; ++i, row.next()) {
    const bool used = lane + i < panel.num_rows;
    sinks.shifts[i] = used && task.options.slopes != nullptr ? alibi_shift(task, row.token, row.head) : 0;
    sinks.own[i] = used && task.options.sinks != nullptr ? task.options.sinks[row.head] : -__builtin_inf();
    const auto sink = static_cast<Real>(sinks.own[i] - sinks.shifts[i]);
    sinks.unshifted[i] = sink > -kLowest<Real> ? -kLowest<Real> : sink;
  }
}

// The panel's sums with the sinks in them: inverse (lanes) <- what makes weights of exp(score - reference), divides the
// context, and makes up for dropped weights; 0 for a row that saw nothing. Unless reference is null, num_rows values each,
// so that lse = reference + log(sum).
//
// A sink is one score more, s, in the sum of its row: with top = max(reference, s), sum <- sum e^(reference - top) +
// e^(s - top). Without one the bits stay as they are.
template <class S>
void settle_sums(const AttentionTask& task, const Panel<typename S::Real>& panel, typename S::Real* inverse,
                 double* reference, double* sum) {
  using Real = typename S::Real;
  const auto& w = workspace_of<S>(task);
  const ScoreOptions& options = task.options;
  const bool biased = options.sinks != nullptr || options.slopes != nullptr;
  for (int lane = 0; lane < panel.vecs * S::kLanes; lane += S::kLanes) {
    alignas(64) Real sums[S::kLanes];
    Sinks<S> sinks;
    if (biased) load_sinks<S>(task, panel, lane, sinks);
    const auto total = S::load(panel.total.sum + lane);
    const auto empty = is_empty<S>(total);
    auto factor = S::set1(1), divisor = S::load(panel.total.divisor + lane);
    S::store(sums, total);
    if (options.sinks != nullptr) {
      const auto sink = S::load(sinks.unshifted), log2e = S::set1(static_cast<Real>(1.4426950408889634074));
      const auto score = S::mul(S::load(panel.total.reference + lane), S::set1(static_cast<Real>(w.unit())));
      const auto top = S::select(empty, sink, S::max(sink, score));  // NaN stays
      const auto ours = exp2<S>(S::mul(S::sub(score, top), log2e)), its = exp2<S>(S::mul(S::sub(sink, top), log2e));
      const auto none = S::greater(S::set1(kLowest<Real>), sink);
      factor = S::select(none, factor, ours);
      const auto joined = S::select(empty, its, S::fma(total, ours, its));
      S::store(sums, S::select(none, total, joined));
      divisor = S::select(none, divisor, S::select(empty, its, S::fma(divisor, ours, its)));
    }
    auto times = S::div(factor, divisor);
    if (options.dropout.drops) times = S::mul(times, S::set1(static_cast<Real>(options.dropout.scale)));
    S::store(inverse + lane, S::select(empty, S::zero(), times));
    if (reference == nullptr) continue;
    for (int i = 0; i < S::kLanes && lane + i < panel.num_rows; ++i) {
      const Real score = panel.total.reference[lane + i];
      *sum++ = static_cast<double>(sums[i]);
      if (!biased) {
        *reference++ = static_cast<double>(score) * w.unit();
        continue;
      }
      const Real sink = sinks.unshifted[i], natural = score * static_cast<Real>(w.unit());
      const bool is_top = sink >= kLowest<Real> && (panel.total.sum[lane + i] < kEmptySum || sink > natural);
      *reference++ = is_top ? sinks.own[i] : sinks.shifts[i] + static_cast<double>(score) * w.unit();
    }
  }
}

// For each panel: what the lse needs, unless reference is null; store(panel, inverse) then gets what its context is to
// be multiplied by. A row that saw nothing has context 0.
template <class S, class Store>
[[gnu::always_inline]] inline void finish_panels(const AttentionTask& task, double* reference, double* sum,
                                                 const Store& store) {
  using Real = typename S::Real;
  auto& w = workspace_of<S>(task);
  for (int p = 0; p < w.num_panels; ++p) {
    auto& panel = w.panels[p];
    const int lanes = panel.vecs * S::kLanes;
    alignas(64) Real inverse[S::kPanelVecs * S::kLanes];
    settle_sums<S>(task, panel, inverse, reference, sum);
    if (reference != nullptr) {
      reference += panel.num_rows;
      sum += panel.num_rows;
    }
    for (int at = 0; at < lanes; at += S::kLanes) {
      const auto empty = is_empty<S>(S::load(panel.total.sum + at));
      if (!S::any(empty)) continue;
      for (std::int64_t d = 0; d < task.value_dim; ++d) {  // its values count for nothing, NaN included
        Real* context = panel.total.context + d * lanes + at;
        S::store(context, S::select(empty, S::zero(), S::load(context)));
      }
    }
    store(panel, inverse);
  }
}

// context * inverse -> the output rows.
template <class S, class Element>
void finish_task(const AttentionTask& task, double* reference, double* sum) {
  using Real = typename S::Real;
  finish_panels<S>(task, reference, sum, [&](const Panel<Real>& panel, const Real* inverse) {
    if (task.wide_out) {
      store_rows<S, Real>(task, panel, panel.total.context, task.value_dim, inverse, 0);
    } else {
      store_rows<S, Element>(task, panel, panel.total.context, task.value_dim, inverse, 0);
    }
  });
}

}  // namespace
}  // namespace headway
