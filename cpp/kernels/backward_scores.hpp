// Weights and gradients of one block where options act on its scores: by way of memory, one step after the other. The
// arithmetic of a score is that of score.hpp.
#pragma once

#include "backward_tile.hpp"
#include "dropout.hpp"

namespace headway {
namespace {

// Products (count, lanes) of one vector of lanes, at `weights` -> weights. With a soft cap, flatness <- 1 - tanh^2.
template <class S>
void shape_weights(const BackwardTask& task, const Panel<typename S::Real>& panel, const GradientPanel<typename S::Real>& gradients,
                   int lane, std::int64_t offset, std::int64_t count, const typename S::Real* bias) {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const auto& w = backward_workspace_of<S>(task);
  const Shape<Real> shape(task.forward, w, ScoreStage::kWeights);
  const auto for_keys = [&](const auto& change) __attribute__((always_inline)) {
    Real* p = gradients.weights + lane;
#pragma GCC unroll 4
    for (std::int64_t key = 0; key < count; ++key, p += kLanes) S::store(p, change(S::load(p), key));
  };
  if (shape.capped) {
    const Vec inner = S::set1(shape.inner), outer = S::set1(shape.outer);
    for_keys([&](Vec x, std::int64_t key) {
      const Vec t = tanh<S>(S::mul(x, inner));
      S::store(w.flatness + key * kLanes + lane, S::sub(S::set1(1), S::mul(t, t)));
      return S::mul(t, outer);
    });
  } else if (shape.scaled && !shape.alibi) {
    for_keys([&](Vec x, std::int64_t) { return S::mul(x, S::set1(shape.scale)); });
  }
  if (shape.alibi) {
    const Vec slope = S::load(panel.slopes + lane), position = S::load(panel.positions + lane);
    const Vec scale = S::set1(shape.capped ? 1 : shape.scale);
    for_keys([&](Vec x, std::int64_t key) { return S::fma(x, scale, alibi_of<S>(slope, position, offset + key)); });
  }
  if (bias != nullptr) {
    for_keys([&](Vec x, std::int64_t key) { return add_bias<S>(x, S::set1(1), S::load(bias + key * kLanes + lane)); });
  }
  const bool all = sees_all<S>(panel, lane, offset, count);
  const Vec lowest = S::set1(kLowest<Real>), scale2 = S::set1(w.scale.scale2);
  const Vec reference = S::load(gradients.reference + lane), correction = S::load(gradients.correction + lane);
  for_keys([&](Vec x, std::int64_t key) {
    Vec weight = S::select(S::greater(lowest, x), S::zero(), weight_of<S>(x, reference, correction, scale2));
    if (!all) weight = S::select(hides<S>(panel, nullptr, lane, offset + key), S::zero(), weight);
    return weight;
  });
}

// Weights -> `dropped`, and gradients at what is kept -> at the weights (count, lanes), of one vector of lanes; key
// first_key is the first.
template <class S>
void drop_gradients(const BackwardTask& task, const Panel<typename S::Real>& panel, const GradientPanel<typename S::Real>& gradients, int lane,
                std::int64_t first_key, std::int64_t count) {
  using Real = typename S::Real;
  const Dropout& dropout = task.forward.options.dropout;
  const DrawLanes<S> lanes = draw_lanes<S>(task.forward, panel, lane);
  const auto scale = S::set1(static_cast<Real>(dropout.scale));
  for (std::int64_t key = 0; key < count; key += kKeysPerDraw) {
    typename S::Vec factors[kKeysPerDraw];
    draw_factors<S>(lanes, dropout, first_key + key, factors);
#pragma GCC unroll 4
    for (int i = 0; i < kKeysPerDraw; ++i) {
      const std::int64_t at = (key + i) * kPanelLanes<S> + lane;
      const auto factor = S::mul(factors[i], scale);
      S::store(gradients.dropped + at, S::mul(S::load(gradients.weights + at), factor));
      S::store(gradients.products + at, S::mul(S::load(gradients.products + at), factor));
    }
  }
}

// Gradients at the weights (count, lanes), at `products` -> at the scores, of one vector of lanes.
template <class S>
void shape_gradients(const GradientPanel<typename S::Real>& gradients, int lane, std::int64_t count) {
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const auto delta = S::load(gradients.delta + lane);
  for (std::int64_t key = 0; key < count; ++key) {
    auto* p = gradients.products + key * kLanes + lane;
    S::store(p, score_gradient<S>(S::load(gradients.weights + key * kLanes + lane), S::load(p), delta));
  }
}

// The block of `count` keys (a multiple of kKeysPerTile) from key `offset` of the chunk on for panel p: weights, and
// gradients at the scores. False: the mask shows none of these keys.
template <class S>
bool shape_block(const BackwardTask& task, int p, std::int64_t offset, std::int64_t count) {
  using Real = typename S::Real;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const AttentionTask& forward = task.forward;
  auto& w = backward_workspace_of<S>(task);
  const auto& panel = w.panels[p];
  const auto& gradients = w.gradients[p];
  const Real* bias = nullptr;
  if (forward.options.mask != nullptr) {
    const std::int64_t begin = w.key_begin + offset, left = w.key_end - begin, keys = count < left ? count : left;
    if (!mask_shows<S>(forward, panel, begin, keys)) return false;
    bias = mask_of<S>(forward, panel, begin, keys);
  }
  for (std::int64_t key = 0; key < count; key += kKeysPerTile) {
    const std::int64_t at = offset + key;
    product_tile<S>(w.chunk_keys + at * w.head_width, w.head_width, panel.queries, forward.head_dim, gradients.weights + key * kLanes);
    product_tile<S>(w.chunk_values + at * w.value_width, w.value_width, gradients.grads, forward.value_dim,
                    gradients.products + key * kLanes);
  }
  for (int lane = 0; lane < kLanes; lane += S::kLanes) {
    shape_weights<S>(task, panel, gradients, lane, offset, count, bias);
    if (forward.options.dropout.drops) drop_gradients<S>(task, panel, gradients, lane, w.key_begin + offset, count);
    shape_gradients<S>(gradients, lane, count);
  }
  return true;
}

// Gradients at the scores -> at the products, under a soft cap. What is 0 stays so, whatever the score.
template <class S>
void uncap_gradients(const BackwardWorkspace<typename S::Real>& w, const GradientPanel<typename S::Real>& gradients, std::int64_t count) {
  for (std::int64_t i = 0; i < count * kPanelLanes<S>; i += S::kLanes) {
    const auto none = S::greater(S::set1(kLeastNormal<typename S::Real>), S::load(gradients.weights + i));
    S::store(gradients.products + i, S::select(none, S::zero(), S::mul(S::load(gradients.products + i), S::load(w.flatness + i))));
  }
}

// Gradients at the scores of `count` keys from key `offset` of the chunk on -> the rows of task.score_gradients.
template <class S>
void store_score_gradients(const BackwardTask& task, int p, std::int64_t offset, std::int64_t count) {
  using Real = typename S::Real;
  const AttentionTask& forward = task.forward;
  const auto& w = backward_workspace_of<S>(task);
  const auto& panel = w.panels[p];
  RowCursor row(panel.first_row, forward.group);
  for (int lane = 0; lane < kPanelLanes<S>; lane += S::kLanes) {
    Real* rows[S::kLanes] = {};
    int used = 0;
    for (; used < S::kLanes && lane + used < panel.num_rows; ++used, row.next()) {
      rows[used] = static_cast<Real*>(task.score_gradients) + row.offset(task.score_token_stride, task.score_head_stride) + w.key_begin +
                   offset;
    }
    if (used == 0) break;
    const auto same = [](typename S::Vec x) { return x; };
    store_transposed<S>(w.gradients[p].products + lane, kPanelLanes<S>, count, same, rows, used);
  }
}

}  // namespace
}  // namespace headway
