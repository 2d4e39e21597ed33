// The loop over tiles: for each block of keys and each panel of queries, scores -> weights -> context.
//
// Lanes are queries. Scores S^T (keys, lanes) = K (keys, head_dim) . Q^T (head_dim, lanes), then
// C^T (value_dim, lanes) += V^T (value_dim, keys) . W^T (keys, lanes): K and V are read where they lie, nothing is
// reduced across lanes, and at the causal edge whole vectors of lanes are left out.
//
// Every sum of a row runs over its own keys in ascending order, one after the other, so that its bits do not depend
// on the tile shapes below. A key that a row may not see adds nothing to it, not even 0 * v: v may be NaN.
#pragma once

#include "attend_tile.hpp"

namespace headway {
namespace {

// Masked groups of keys from `key` to `count`, with the first vector that has a lane seeing the group's first key as a
// constant. Where only the last vector is left, two groups make a tile, so that enough sums are under way.
template <class S, int kVecs, int kFirst>
[[gnu::always_inline]] inline void weigh_edge_keys(const TileArgs<typename S::Real>& args, std::int64_t key,
                                                   std::int64_t count) {
  if constexpr (kFirst + 1 < kVecs) {
    const auto edge = static_cast<std::int64_t>(args.panel->limits[(kFirst + 1) * S::kLanes - 1]) + 1 - args.block->offset;
    for (; key < count && key < edge; key += kKeysPerGroup) weigh_keys<S, kVecs, kFirst, kKeysPerGroup, true>(args, key);
    weigh_edge_keys<S, kVecs, kFirst + 1>(args, key, count);
  } else {
    constexpr int kTwo = 2 * kKeysPerGroup;
    for (; key + kKeysPerGroup < count && key + kTwo <= args.block->count; key += kTwo) {
      weigh_keys<S, kVecs, kFirst, kTwo, true>(args, key);
    }
    for (; key < count; key += kKeysPerGroup) weigh_keys<S, kVecs, kFirst, kKeysPerGroup, true>(args, key);
  }
}

// Tiles of kRows context rows, then the remainder in ever fewer rows.
template <class S, int kVecs, int kRows, bool kFetch>
[[gnu::always_inline]] inline void add_all_context(const TileArgs<typename S::Real>& args, std::int64_t d,
                                                   std::int64_t full, std::int64_t count) {
  for (; d + kRows <= args.task->value_dim; d += kRows) add_context<S, kVecs, kRows, kFetch>(args, d, full, count);
  constexpr int kFewer = kRows > 4 ? (kRows > 8 ? 8 : 4) : kRows / 2;
  if constexpr (kRows > 1) add_all_context<S, kVecs, kFewer, kFetch>(args, d, full, count);
}

// One block of keys for one panel. kFetch: keys and values come from afar and are fetched ahead.
template <class S, int kVecs, bool kFetch>
void attend_block(const TileArgs<typename S::Real>& args, std::int64_t span_begin) {
  constexpr int kScoreRows = S::kAccumulators / kVecs / kKeysPerGroup * kKeysPerGroup;
  constexpr int kContextRows = S::kContextAccumulators / kVecs;
  const auto& panel = *args.panel;
  const std::int64_t begin = span_begin + args.block->offset;
  const auto clamp = [&](std::int64_t n) { return n < 0 ? 0 : n > args.block->count ? args.block->count : n; };
  const std::int64_t count = clamp(panel.last_limit + 1 - begin);  // seen by some lane
  const std::int64_t full = clamp(panel.first_limit + 1 - begin);  // seen by every lane
  if (count == 0) return;

  std::int64_t key = 0;
  for (; key + kScoreRows <= full; key += kScoreRows) weigh_keys<S, kVecs, 0, kScoreRows, false, kFetch>(args, key);
  for (; key + kKeysPerGroup <= full; key += kKeysPerGroup) weigh_keys<S, kVecs, 0, kKeysPerGroup, false>(args, key);
  weigh_edge_keys<S, kVecs, 0>(args, key, count);
  add_all_context<S, kVecs, kContextRows, kFetch>(args, 0, full, count);
  args.state->started = true;
}

// Walks over keys [key_begin, key_end), one span: load(begin, count) makes each block of keys ready, attend(block, panel,
// state, last) then adds it to each panel of the task; last says that no key follows.
template <class S, class Element, class Load, class Attend>
[[gnu::always_inline]] inline void walk_span(const AttentionTask& task, std::int64_t key_begin, std::int64_t key_end,
                                             const Load& load, const Attend& attend) {
  auto& w = workspace_of<S>(task);
  std::int64_t visible_end = 0;
  for (int p = 0; p < w.num_panels; ++p) {
    auto& panel = w.panels[p];
    set_limits<S>(task, panel, key_begin);
    if (panel.total.started) panel.span.reset(panel.vecs * S::kLanes);
    visible_end = panel.last_limit + 1 > visible_end ? panel.last_limit + 1 : visible_end;
  }
  key_end = visible_end < key_end ? visible_end : key_end;
  bool joins[kMostPanels];
  for (int p = 0; p < w.num_panels; ++p) joins[p] = w.panels[p].total.started;

  for (std::int64_t begin = key_begin; begin < key_end; begin += kKeysPerBlock) {
    const std::int64_t count = key_end - begin < kKeysPerBlock ? key_end - begin : kKeysPerBlock;
    const auto block = load(begin, count);
    for (int p = 0; p < w.num_panels; ++p) {
      auto& panel = w.panels[p];
      if (panel.last_limit < begin + count) prefetch_rows<Element>(task, panel.first_row, panel.num_rows);
      attend(block, panel, joins[p] ? panel.span : panel.total, visible_end <= begin + count);
    }
  }
  for (int p = 0; p < w.num_panels; ++p) {
    if (joins[p]) join<S>(w.panels[p].total, w.panels[p].span, w.scale, task.value_dim, w.panels[p].vecs * S::kLanes);
  }
}

// Keys [key_begin, key_end), one span, for every panel of the task.
template <class S, class Element>
void attend_span(const AttentionTask& task, std::int64_t key_begin, std::int64_t key_end) {
  using Real = typename S::Real;
  auto& w = workspace_of<S>(task);
  walk_span<S, Element>(
      task, key_begin, key_end,
      [&](std::int64_t begin, std::int64_t count) {
        return load_block<S, Element>(task, begin, count, key_begin, task.value_dim > 0);
      },
      [&](const KeyBlock<Real>& block, Panel<Real>& panel, Softmax<Real>& state, bool last) {
        const TileArgs<Real> args{&task, &block, &panel, &state, w.weights, w.scale,
                                  block.keys + (last ? 0 : block.count * block.key_stride)};
        with_vecs<S>(panel.vecs, [&](auto vecs) {
          constexpr int kVecs = decltype(vecs)::value;
          if (sizeof(Element) != 2 && task.cold && &panel == w.panels &&
              panel.first_limit + 1 >= key_begin + block.offset + block.count) {
            attend_block<S, kVecs, true>(args, key_begin);
          } else {
            attend_block<S, kVecs, false>(args, key_begin);
          }
        });
      });
}

// The spans so far of one copy of a task <- joined with those of another copy, which come later.
template <class S>
void join_tasks(const AttentionTask& total, const AttentionTask& part) {
  auto& to = workspace_of<S>(total);
  auto& from = workspace_of<S>(part);
  for (int p = 0; p < to.num_panels; ++p) {
    join<S>(to.panels[p].total, from.panels[p].total, to.scale, total.value_dim, to.panels[p].vecs * S::kLanes);
  }
}

// For each panel: what the lse needs, unless reference is null; store(panel, inverse) then gets 1 / sum of each lane, by
// which its context is to be multiplied. A row that saw nothing has context and inverse 0.
template <class S, class Store>
[[gnu::always_inline]] inline void finish_panels(const AttentionTask& task, double* reference, double* sum,
                                                 const Store& store) {
  using Real = typename S::Real;
  auto& w = workspace_of<S>(task);
  for (int p = 0; p < w.num_panels; ++p) {
    auto& panel = w.panels[p];
    const int lanes = panel.vecs * S::kLanes;
    for (std::int64_t i = 0; reference != nullptr && i < panel.num_rows; ++i) {
      *reference++ = static_cast<double>(panel.total.reference[i]) * w.split.rest;
      *sum++ = static_cast<double>(panel.total.sum[i]);
    }
    alignas(64) Real inverse[S::kPanelVecs * S::kLanes];
    for (int at = 0; at < lanes; at += S::kLanes) {
      const auto total = S::load(panel.total.sum + at);
      const auto empty = is_empty<S>(total);
      S::store(inverse + at, S::div(S::set1(1), total));
      if (!S::any(empty)) continue;
      S::store(inverse + at, S::select(empty, S::zero(), S::load(inverse + at)));
      for (std::int64_t d = 0; d < task.value_dim; ++d) {  // its values count for nothing, NaN included
        Real* context = panel.total.context + d * lanes + at;
        S::store(context, S::select(empty, S::zero(), S::load(context)));
      }
    }
    store(panel, inverse);
  }
}

// context / sum -> the output rows.
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
