// Numbers that are not moderate, see parts.hpp: too large or too small to be multiplied in parts, or not finite. Where a
// number is a factor of a score, or of a product of a value with a gradient, multiply-adds make that one anew; and all scores
// of rows whose lse is large. What a number gives to a sum is added by itself, for each pair of a key and a row whose weight
// is not 0, for the row sees the key. No other bits depend on it.
#pragma once

#include "backward_part_products.hpp"

namespace headway {
namespace {

// Of vectors of lanes, those rows that `moderate` does not say to be so.
inline __mmask16 others_of(const bool* moderate, int lane, std::int64_t num_rows) {
  __mmask16 others = 0;
  for (int i = 0; i < VecF32::kLanes && lane + i < num_rows; ++i) {
    if (!moderate[lane + i]) others = static_cast<__mmask16>(others | (1u << i));
  }
  return others;
}

// out (lanes) of the rows <- row (dim) . matrix (dim, lanes), one chain of multiply-adds along dim, as in the forward pass.
inline void multiply_lanes(const float* row, std::int64_t dim, const float* matrix, __mmask16 rows, float* out) {
  auto sum = VecF32::zero();
  for (std::int64_t d = 0; d < dim; ++d) sum = VecF32::fma(VecF32::set1(row[d]), VecF32::load(matrix + d * kPanelLanes<VecF32>), sum);
  _mm512_mask_store_ps(out, rows, sum);
}

// Of keys [from, to) of the block: scores and products with gradients, in gradients.weights and gradients.products.
inline void multiply_others(const BackwardTask& task, std::int64_t offset, std::int64_t from, std::int64_t to) {
  constexpr std::int64_t kLanes = kPanelLanes<VecF32>;
  constexpr __mmask16 kAll = 0xffff;
  const AttentionTask& forward = task.forward;
  const auto& w = part_backward_of(task);
  const auto& gradients = w.gradients[0];
  for (int lane = 0; lane < kLanes; lane += VecF32::kLanes) {
    const __mmask16 scores = others_of(w.scores_are_moderate, lane, forward.num_rows);
    const __mmask16 grads = others_of(w.grad_is_moderate, lane, forward.num_rows);
    for (std::int64_t key = from; key < to; ++key) {
      const std::int64_t i = offset + key, at = key * kLanes + lane;
      const __mmask16 first = w.key_is_moderate[i] ? scores : kAll, second = w.value_is_moderate[i] ? grads : kAll;
      if (first != 0) multiply_lanes(w.keys.row(i), forward.head_dim, w.panels[0].queries + lane, first, gradients.weights + at);
      if (second != 0) multiply_lanes(w.values.row(i), forward.value_dim, gradients.grads + lane, second, gradients.products + at);
    }
  }
}

// out (width) += factor * x (width), numbers of x that are not moderate alone.
inline void add_immoderate(float factor, const float* x, std::int64_t width, float* out) {
  for (std::int64_t d = 0; d < width; d += VecF32::kLanes) {
    const auto numbers = VecF32::load(x + d), sums = VecF32::load(out + d);
    VecF32::store(out + d, _mm512_mask3_fmadd_ps(numbers, VecF32::set1(factor), sums, immoderate(numbers)));
  }
}

// What such numbers of rows give to the sums of keys [from, to) of the block, and such numbers of these keys to those of rows.
inline void add_others(const BackwardTask& task, std::int64_t offset, std::int64_t from, std::int64_t to) {
  constexpr std::int64_t kLanes = kPanelLanes<VecF32>;
  auto& w = part_backward_of(task);
  const auto& gradients = w.gradients[0];
  const float* weights = gradients.weights;
  const float* kept = task.forward.options.dropout.drops ? gradients.dropped : weights;
  start_key_sums(w, offset + from, pad_to(offset + to, kDepthPerStep));
  for (std::int64_t lane = 0; lane < task.forward.num_rows; ++lane) {
    if (w.query_is_moderate[lane] && w.grad_is_moderate[lane]) continue;
    for (std::int64_t key = from; key < to; ++key) {
      const std::int64_t at = key * kLanes + lane;
      if (weights[at] == 0) continue;
      add_immoderate(kept[at], w.grad_rows + lane * w.value_width, w.value_width, w.value_sums + (offset + key) * w.value_width);
      add_immoderate(gradients.products[at], w.query_rows + lane * w.head_width, w.head_width, w.key_sums + (offset + key) * w.head_width);
    }
  }
  for (std::int64_t key = from; key < to; ++key) {
    if (w.key_is_moderate[offset + key]) continue;
    for (std::int64_t d = 0; d < w.head_width; ++d) {
      const auto number = VecF32::set1(w.keys.row(offset + key)[d]);
      if (immoderate(number) == 0) continue;
      float* sums = static_cast<float*>(task.query_sums) + d * kLanes;
      for (int lane = 0; lane < kLanes; lane += VecF32::kLanes) {
        const auto seen = VecF32::not_less(VecF32::load(weights + key * kLanes + lane), VecF32::set1(kLeastNormal<float>));
        const auto scores = VecF32::load(gradients.products + key * kLanes + lane);
        VecF32::store(sums + lane, VecF32::fma_where(seen, number, scores, VecF32::load(sums + lane)));
      }
    }
  }
}

}  // namespace
}  // namespace headway
