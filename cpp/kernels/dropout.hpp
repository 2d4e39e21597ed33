// Dropout: the weights of a block, after the softmax has summed them, become 0 where they are dropped. In every other
// respect a dropped key is one that the row sees: a value that is not finite comes out, times 0.
#pragma once

#include "panel.hpp"
#include "philox.hpp"

namespace headway {
namespace {

// Whether weights are dropped on their way into a context, if there is one.
inline bool drops_weights(const AttentionTask& task) { return task.options.dropout.drops && task.value_dim > 0; }

// Of the panel's lanes from `lane` on, one vector of them; those without a row get what some row would have.
template <class S>
DrawLanes<S> draw_lanes(const AttentionTask& task, const Panel<typename S::Real>& panel, int lane) {
  DrawLanes<S> lanes;
  RowCursor row(panel.first_row + lane, task.group);
  for (int i = 0; i < S::kLanes; ++i, row.next()) {
    lanes.set(i, task.options.dropout, task.first_position + row.token, row.head);
  }
  return lanes;
}

// Weights (keys, panel's lanes), the first row of which is key first_key: keys [begin, end), whole groups, of the vector
// from `lane` on. NaN stays, for its row is NaN.
template <class S>
[[gnu::noinline]] void drop_weights(const AttentionTask& task, const Panel<typename S::Real>& panel, int lane,
                                    typename S::Real* weights, std::int64_t first_key, std::int64_t begin,
                                    std::int64_t end) {
  const DrawLanes<S> lanes = draw_lanes<S>(task, panel, lane);
  const int stride = panel.vecs * S::kLanes;
  for (std::int64_t key = begin; key < end; key += kKeysPerDraw) {
    typename S::Vec factors[kKeysPerDraw];
    draw_factors<S>(lanes, task.options.dropout, first_key + key, factors);
#pragma GCC unroll 4
    for (int i = 0; i < kKeysPerDraw; ++i) {
      auto* p = weights + (key + i) * stride + lane;
      S::store(p, S::mul(S::load(p), factors[i]));
    }
  }
}

}  // namespace
}  // namespace headway
