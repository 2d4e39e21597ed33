// The backward pass: for each block of rows, over the blocks of a chunk of keys. Weights are made again from the products
// and the lse, so that nothing of the size of queries times keys is kept (FlashAttention-2, arXiv:2307.08691).
#pragma once

#include "backward_scores.hpp"

namespace headway {
namespace {

// delta of each row of the task: grad . context - gradient at the lse. A context of zeros, as of a row that saw nothing,
// gives 0, whatever its gradient.
template <class S, class Element>
void row_deltas(const BackwardTask& task) {
  using Real = typename S::Real;
  const AttentionTask& forward = task.forward;
  RowCursor row(forward.first_row, forward.group);
  for (std::int64_t i = 0; i < forward.num_rows; ++i, row.next()) {
    const auto* grad = static_cast<const Element*>(task.grad_out) + row.offset(task.grad_token_stride, task.grad_head_stride);
    const auto* out = static_cast<const Element*>(forward.out) + row.offset(forward.out_token_stride, forward.out_head_stride);
    auto sums = S::zero(), sizes = S::zero(), check = S::zero();
    for (std::int64_t d = 0; d < forward.value_dim; d += S::kLanes) {
      const int n = forward.value_dim - d < S::kLanes ? static_cast<int>(forward.value_dim - d) : S::kLanes;
      const auto x = S::load_elements(out + d, n);
      sums = S::fma(S::load_elements(grad + d, n), x, sums);
      sizes = S::max(sizes, S::max(x, S::sub(S::zero(), x)));
      check = S::fma(x, S::zero(), check);
    }
    if (!S::any(S::greater(sizes, S::zero())) && is_finite<S>(check)) sums = S::zero();
    alignas(64) Real parts[S::kLanes];
    S::store(parts, sums);
    double quarters[4] = {};  // which do not wait for one another
    for (int lane = 0; lane < S::kLanes; ++lane) quarters[lane % 4] += static_cast<double>(parts[lane]);
    double delta = (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
    if (task.grad_lse != nullptr) {
      delta -= static_cast<double>(static_cast<const Real*>(task.grad_lse)[row.offset(task.grad_lse_token_stride, task.grad_lse_head_stride)]);
    }
    static_cast<Real*>(task.delta)[row.offset(task.delta_token_stride, task.delta_head_stride)] = static_cast<Real>(delta);
  }
}

// Calls body(Constant<n>) with n, 0 .. S::kPanelVecs - 1, as a constant.
template <class S, int kAt = 0, class Body>
[[gnu::always_inline]] inline void with_first(int n, const Body& body) {
  if (n == kAt) {
    body(Constant<kAt>{});
  } else if constexpr (kAt + 1 < S::kPanelVecs) {
    with_first<S, kAt + 1>(n, body);
  }
}

// Weights and score gradients of keys [from, to) of the block at `offset` for panel p; keys that a whole vector of rows
// lies before are left out for it.
template <class S>
void weigh_block(const BackwardTask& task, int p, std::int64_t offset, std::int64_t from, std::int64_t to, const std::int64_t* ends) {
  const auto& w = backward_workspace_of<S>(task);
  const auto& panel = w.panels[p];
  const auto& gradients = w.gradients[p];
  const std::int64_t full = panel.first_limit + 1 - w.key_begin - offset;   // seen by all
  const std::int64_t open = panel.last_start - w.key_begin - offset;  // likewise, from here on
  int first = 0;
  for (std::int64_t key = from; key < to; key += kKeysPerTile) {
    while (first < S::kPanelVecs - 1 && ends[first] <= key) ++first;
    const bool plain = key + kKeysPerTile <= full && key >= open;
    with_first<S>(first, [&](auto constant) {
      constexpr int kFirst = decltype(constant)::value;
      if (kFirst == 0 && plain) {
        weigh_tile<S, 0, false>(task, panel, gradients, offset, key);
      } else {
        weigh_tile<S, kFirst, true>(task, panel, gradients, offset, key);
      }
    });
  }
  first = 0;
  for (std::int64_t key = from; key < to; key += kKeysPerTile) {
    while (first < S::kPanelVecs - 1 && ends[first] <= key) ++first;
    with_first<S>(first, [&](auto constant) { gradient_tile<S, decltype(constant)::value>(task, gradients, offset, key); });
  }
}

// For each tile of keys [from, to) of the block at `offset`: the rows that see some of its keys by their position.
template <class S>
void find_ranges(const BackwardTask& task, std::int64_t offset, std::int64_t from, std::int64_t to, RowRange* ranges) {
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const auto& w = backward_workspace_of<S>(task);
  const std::int64_t num_rows = task.forward.num_rows;
  std::int64_t begin = 0, end = 0;
  for (std::int64_t key = from; key < to; key += kKeysPerTile) {
    const auto first = static_cast<typename S::Real>(offset + key), last = static_cast<typename S::Real>(offset + key + kKeysPerTile - 1);
    while (begin < num_rows && w.panels[begin / kLanes].limits[begin % kLanes] < first) ++begin;
    while (end < num_rows && w.panels[end / kLanes].starts[end % kLanes] <= last) ++end;
    ranges[key / kKeysPerTile] = {begin, end};
  }
}

// The block of keys at `offset` of the chunk with the block of rows: adds to the sums of the keys and of the rows.
template <class S>
void add_block(const BackwardTask& task, std::int64_t offset) {
  using Real = typename S::Real;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const AttentionTask& forward = task.forward;
  auto& w = backward_workspace_of<S>(task);
  const std::int64_t begin = w.key_begin + offset;
  const std::int64_t count = w.key_end - begin < kKeysPerBlock ? w.key_end - begin : kKeysPerBlock;
  std::int64_t from = count, to = 0;
  for (int p = 0; p < w.num_panels; ++p) {
    const std::int64_t first = w.panels[p].first_start - begin, last = w.panels[p].last_limit + 1 - begin;
    from = first < from ? first : from;
    to = last > to ? last : to;
  }
  from = from < 0 ? 0 : from / kKeysPerTile * kKeysPerTile;
  to = (to < count ? to : count);
  if (from >= to) return;
  to = (to + kKeysPerTile - 1) / kKeysPerTile * kKeysPerTile;

  const bool drops = forward.options.dropout.drops;
  const bool shaped = w.shaped || drops || forward.options.mask != nullptr || task.score_gradients != nullptr;
  RowProduct<Real> for_values{{}, {}, w.grad_rows, w.value_width, w.rows_finite}, for_keys{{}, {}, w.query_rows, w.head_width, w.rows_finite};
  bool shown = false;
  std::int64_t ends[kMostBackwardPanels][S::kPanelVecs];
  for (int p = 0; p < w.num_panels; ++p) {
    const auto& gradients = w.gradients[p];
    for (int j = 0; j < S::kPanelVecs; ++j) {
      ends[p][j] = static_cast<std::int64_t>(w.panels[p].limits[(j + 1) * S::kLanes - 1]) + 1 - offset;
    }
    if (!shaped) {
      weigh_block<S>(task, p, offset, from, to, ends[p]);
      shown = true;
    } else if (shape_block<S>(task, p, offset, to)) {
      if (task.score_gradients != nullptr) store_score_gradients<S>(task, p, offset, to < count ? to : count);
      if (Shape<Real>(forward, w, ScoreStage::kWeights).capped) uncap_gradients<S>(w, gradients, to);
      shown = true;
    } else {
      for (std::int64_t i = 0; i < to * kLanes; ++i) gradients.weights[i] = gradients.products[i] = gradients.dropped[i] = 0;
    }
    for_values.matrix[p] = drops ? gradients.dropped : gradients.weights;
    for_values.weights[p] = for_keys.weights[p] = gradients.weights;
    for_keys.matrix[p] = gradients.products;
  }
  if (!shown || task.score_gradients != nullptr) return;

  RowRange ranges[kKeysPerBlock / kKeysPerTile];
  find_ranges<S>(task, offset, from, to, ranges);
  add_all_to_keys<S>(for_values, from, to, ranges, 0, w.value_sums + offset * w.value_width);
  add_all_to_keys<S>(for_keys, from, to, ranges, 0, w.key_sums + offset * w.head_width);
  for (int p = 0; p < w.num_panels; ++p) {
    const KeyProduct<Real> product{w.chunk_keys + offset * w.head_width, w.head_width, w.gradients[p].products, w.gradients[p].weights,
                                   from, to, ends[p], w.keys_finite};
    add_all_to_queries<S>(product, 0, forward.head_dim, static_cast<Real*>(task.query_sums) + p * w.head_width * kLanes);
  }
}

// The task's block of rows with the chunk of keys.
template <class S, class Element>
void add_rows(const BackwardTask& task) {
  const auto& w = backward_workspace_of<S>(task);
  if (task.wide_grad) {
    begin_rows<S, Element, typename S::Real>(task);
  } else {
    begin_rows<S, Element, Element>(task);
  }
  for (std::int64_t offset = 0; offset < w.key_end - w.key_begin; offset += kKeysPerBlock) add_block<S>(task, offset);
}

// x * scale, the scale in two factors where it is far from 1, see SplitScale.
template <class S>
struct Rescale {
  typename S::Vec rest, factor;
  explicit Rescale(double scale) {
    const SplitScale<typename S::Real> split(scale);
    rest = S::set1(static_cast<typename S::Real>(split.rest));
    factor = S::set1(static_cast<typename S::Real>(split.queries));
  }
  typename S::Vec operator()(typename S::Vec x) const { return S::add(S::mul(S::mul(x, rest), factor), S::zero()); }
};

// Sums of the chunk -> dk and dv.
template <class S, class Element>
void finish_keys(const BackwardTask& task) {
  const AttentionTask& forward = task.forward;
  const auto& w = backward_workspace_of<S>(task);
  const auto store = [&](const auto* sums, std::int64_t dim, std::int64_t width, void* out, std::ptrdiff_t stride, const auto& map) {
    for (std::int64_t i = 0; i < w.key_end - w.key_begin; ++i) {
      auto* row = static_cast<Element*>(out) + (w.key_begin + i) * stride;
      for (std::int64_t d = 0; d < dim; d += S::kLanes) {
        const int n = dim - d < S::kLanes ? static_cast<int>(dim - d) : S::kLanes;
        S::store_elements(row + d, map(S::load(sums + i * width + d)), n);
      }
    }
  };
  store(w.key_sums, forward.head_dim, w.head_width, task.dk, task.dk_token_stride, Rescale<S>(forward.scale));
  store(w.value_sums, forward.value_dim, w.value_width, task.dv, task.dv_token_stride, [](typename S::Vec x) { return x; });
}

// Sums of the task's block of rows -> dq.
template <class S, class Element>
void finish_rows(const BackwardTask& task) {
  using Real = typename S::Real;
  const AttentionTask& forward = task.forward;
  const Rescale<S> rescale(forward.scale);
  RowCursor row(forward.first_row, forward.group);
  for (std::int64_t at = 0; at < forward.num_rows; at += S::kLanes) {
    Element* rows[S::kLanes] = {};
    int count = 0;
    for (; count < S::kLanes && at + count < forward.num_rows; ++count, row.next()) {
      rows[count] = static_cast<Element*>(task.dq) + row.offset(task.dq_token_stride, task.dq_head_stride);
    }
    const Real* sums = static_cast<const Real*>(task.query_sums) + at / kPanelLanes<S> * padded_width<S>(forward.head_dim) * kPanelLanes<S>;
    store_transposed<S>(sums + at % kPanelLanes<S>, kPanelLanes<S>, forward.head_dim, rescale, rows, count);
  }
}

template <class S, class Element>
constexpr BackwardKernels backward_of() {
  return BackwardKernels{
      .rows_per_block = kBackwardRows<S>,
      .keys_per_chunk = keys_per_chunk<S>,
      .workspace_bytes =
          [](std::int64_t head_dim, std::int64_t value_dim) {
            BackwardWorkspace<typename S::Real> w;
            return lay_out_backward<S>(w, nullptr, head_dim, value_dim, keys_per_chunk<S>(head_dim, value_dim));
          },
      .sums_bytes = [](std::int64_t head_dim) { return sums_bytes<S>(kBackwardPanels<S>, head_dim); },
      .fetches_ahead = false,
      .exact = true,
      .row_deltas =
          [](const BackwardTask& task) { task.wide_grad ? row_deltas<S, typename S::Real>(task) : row_deltas<S, Element>(task); },
      .begin_keys = begin_keys<S, Element>,
      .add_rows = add_rows<S, Element>,
      .finish_keys = finish_keys<S, Element>,
      .finish_rows = finish_rows<S, Element>,
  };
}

}  // namespace
}  // namespace headway
