// Numbers that are not moderate, see parts.hpp: too large or too small to be multiplied in parts, or not finite. Where a
// number is a factor of a score, or of a product of a value with a gradient, multiply-adds make that one anew. What it gives
// to a sum is added by itself, for each pair of a key and a row whose weight is not 0, for the row sees the key. No other
// bits depend on it.
#pragma once

#include "backward_part_products.hpp"

namespace headway {
namespace {

// x (width) . y (width), sixteen sums that are added in order.
inline float dot(const float* x, const float* y, std::int64_t width) {
  using S = VecF32;
  auto sums = S::zero();
  for (std::int64_t d = 0; d < width; d += S::kLanes) sums = S::fma(S::load_unaligned(x + d), S::load_unaligned(y + d), sums);
  alignas(64) float parts[S::kLanes];
  S::store(parts, sums);
  float total = 0;
  for (const float part : parts) total += part;
  return total;
}

// Of keys [from, to) of the block: scores and products with gradients, in gradients.weights and gradients.products.
inline void multiply_others(const BackwardTask& task, std::int64_t offset, std::int64_t from, std::int64_t to) {
  const auto& w = part_backward_of(task);
  const auto& gradients = w.gradients[0];
  const auto factor = static_cast<float>(w.split.queries);
  for (std::int64_t key = from; key < to; ++key) {
    const std::int64_t i = offset + key;
    if (w.key_is_moderate[i] && w.value_is_moderate[i] && w.rows_are_moderate) continue;
    for (std::int64_t lane = 0; lane < task.forward.num_rows; ++lane) {
      const std::int64_t at = key * kPanelLanes<VecF32> + lane;
      if (!w.key_is_moderate[i] || !w.query_is_moderate[lane]) {
        gradients.weights[at] = dot(w.keys.row(i), w.query_rows + lane * w.head_width, w.head_width) * factor;
      }
      if (!w.value_is_moderate[i] || !w.grad_is_moderate[lane]) {
        gradients.products[at] = dot(w.values.row(i), w.grad_rows + lane * w.value_width, w.value_width);
      }
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
