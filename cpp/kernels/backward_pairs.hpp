// The backward pass on pairs of bfloat16, by AMX: the loop of backward.hpp with weights and score gradients rounded to
// bfloat16 on their way into the products over rows and keys. Sums are float32, in the order of rows and of keys.
//
// Numbers that are not finite are kept out of the right factors of dv, dk and dq, in which rows that do not see a key, or
// keys that a row does not see, meet them with a factor of 0. Where a row sees one, its weight or score gradient is NaN
// already; only for dv the gradients that are not finite are added to the keys that their rows see.
#pragma once

#include "backward_pair_tiles.hpp"

namespace headway {
namespace {

// Score products and products with gradients of 32 keys from `key` of the block on (at `offset` of the chunk), in memory,
// -> weights and score gradients in bfloat16: rows of both, pairs of keys of the latter. kShaped: they are weights and
// score gradients already. kMasked: some row does not see some key. Vectors before `first` see none.
template <bool kShaped, bool kMasked>
[[gnu::noinline]] void weigh_key_step(const BackwardTask& task, int p, std::int64_t offset, std::int64_t key, int first) {
  using S = VecF32;
  using Vec = S::Vec;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const auto& w = pair_backward_of(task);
  const auto& gradients = w.gradients[p];
  const auto& panel = w.panels[p];
  const float* from = kShaped && task.forward.options.dropout.drops ? gradients.dropped : gradients.weights;
  const Vec scale2 = S::set1(w.scale.scale2), most = S::set1(-kLowest<float>);
  const auto halves = [](Vec low, Vec high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); };
  const __m512i low = _mm512_or_si512(_mm512_set1_epi32(32 << 16), _mm512_mullo_epi32(_mm512_set1_epi32(0x10001), _mm512_setr_epi32(
      0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));  // number i of the first, number i of the second
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int j = 0; j < S::kPanelVecs; j += 2) {
    const bool none = j + 1 < first;
    Vec reference[2], correction[2], delta[2];
    for (int n = 0; n < 2; ++n) {
      reference[n] = S::load(gradients.reference + (j + n) * S::kLanes);
      correction[n] = S::load(gradients.correction + (j + n) * S::kLanes);
      delta[n] = S::load(gradients.delta + (j + n) * S::kLanes);
    }
    for (std::int64_t i = key; i < key + kKeysPerPairStep; i += 2) {
      __m512i weights[2], scores[2];
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        Vec weight[2], score[2];
#pragma GCC unroll 2
        for (int m = 0; m < 2; ++m) {
          const std::int64_t at = (i + n) * kLanes + (j + m) * S::kLanes;
          weight[m] = score[m] = S::zero();
          if (none) continue;
          const Vec x = S::load(from + at), y = S::load(gradients.products + at);
          if constexpr (kShaped) {
            const auto dead = S::greater(reference[m], most);
            weight[m] = S::select(dead, S::zero(), x);
            score[m] = S::select(dead, S::zero(), y);
            continue;
          }
          weight[m] = exp2<S, PairExp2Coefficients>(S::fma(S::sub(x, reference[m]), scale2, correction[m]));
          if constexpr (kMasked) {
            const auto away = S::either(hides<S>(panel, nullptr, (j + m) * S::kLanes, offset + i + n), S::greater(reference[m], most));
            weight[m] = S::select(away, S::zero(), weight[m]);
          }
          score[m] = score_gradient<S>(weight[m], y, delta[m]);
        }
        weights[n] = halves(weight[0], weight[1]);
        scores[n] = halves(score[0], score[1]);
        const std::int64_t to = (i + n) * kPairRows + p * kLanes + j * S::kLanes;
        _mm512_store_si512(w.weight_rows + to, weights[n]);
        _mm512_store_si512(w.score_rows + to, scores[n]);
      }
      float* pairs = w.score_pairs[p] + i / 2 * kLanes + j * S::kLanes;
      _mm512_store_si512(pairs, _mm512_permutex2var_epi16(scores[0], low, scores[1]));
      _mm512_store_si512(pairs + S::kLanes, _mm512_permutex2var_epi16(scores[0], high, scores[1]));
    }
  }
}

// Keys [from, to) of the block for panel p; false: it sees none of them.
inline bool weigh_pair_block(const BackwardTask& task, int p, std::int64_t offset, std::int64_t from, std::int64_t to, bool shaped) {
  using S = VecF32;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const AttentionTask& forward = task.forward;
  auto& w = pair_backward_of(task);
  const auto& panel = w.panels[p];
  const auto& gradients = w.gradients[p];
  const std::int64_t begin = w.key_begin + offset;
  const std::int64_t full = panel.first_limit + 1 - begin, open = panel.last_start - begin;
  const bool tail = panel.num_rows < kLanes;
  const float* bias = nullptr;
  if (forward.options.mask != nullptr) {
    const std::int64_t left = w.key_end - begin, keys = to < left ? to : left;
    if (!mask_shows<S>(forward, panel, begin, keys)) return false;
    bias = mask_of<S>(forward, panel, begin, keys);
  }
  for (std::int64_t key = from; key < to; key += kKeysPerPairStep) {
    int first = 0;
    while (first < S::kPanelVecs && static_cast<std::int64_t>(panel.limits[(first + 1) * S::kLanes - 1]) < offset + key) ++first;
    if (shaped && first < S::kPanelVecs) first = 0;
    if (first < S::kPanelVecs) {
      multiply_key_step(w.key_rows + (offset + key) * w.head_depth, w.head_depth, panel.queries, first, gradients.weights + key * kLanes);
      multiply_key_step(w.value_rows + (offset + key) * w.value_depth, w.value_depth, w.grad_pairs[p], first,
                        gradients.products + key * kLanes);
    }
    if (shaped) {
      for (std::int64_t i = key * kLanes; first == S::kPanelVecs && i < (key + kKeysPerPairStep) * kLanes; ++i) {
        gradients.weights[i] = gradients.products[i] = 0;  // products that a mask or dropout may pass by
      }
    } else if (key + kKeysPerPairStep <= full && key >= open && !tail) {
      weigh_key_step<false, false>(task, p, offset, key, first);
    } else {
      weigh_key_step<false, true>(task, p, offset, key, first);
    }
  }
  if (!shaped) return true;
  for (int lane = 0; lane < kLanes; lane += S::kLanes) {
    shape_weights<S>(task, panel, gradients, lane, offset, to, bias);
    if (forward.options.dropout.drops) drop_gradients<S>(task, panel, gradients, lane, begin, to);
    shape_gradients<S>(gradients, lane, to);
  }
  if (Shape<float>(forward, w, ScoreStage::kWeights).capped) uncap_gradients<S>(w, gradients, to);
  for (std::int64_t key = from; key < to; key += kKeysPerPairStep) weigh_key_step<true, true>(task, p, offset, key, 0);
  return true;
}

// Gradients of panel p's rows that are not finite, times the weights of keys [from, to) of the block that they see.
[[gnu::noinline]] inline void add_not_finite_gradients(const BackwardTask& task, const BFloat16* const* grads, int p, std::int64_t offset,
                                                       std::int64_t from, std::int64_t to) {
  const auto& w = pair_backward_of(task);
  const std::int64_t first = p * kPanelLanes<VecF32>;
  for (std::int64_t row = first; row < first + w.panels[p].num_rows; ++row) {
    for (std::int64_t d = 0; d < task.forward.value_dim; ++d) {
      if (is_finite(grads[row][d])) continue;
      for (std::int64_t key = from; key < to; ++key) {
        const float weight = widen(w.weight_rows[key * kPairRows + row]);
        if (weight != 0) w.value_sums[(offset + key) * w.value_width + d] += weight * widen(grads[row][d]);
      }
    }
  }
}

// The block of keys at `offset` of the chunk with the block of rows.
inline void add_pair_block(const BackwardTask& task, const BFloat16* const* grads, std::int64_t offset) {
  using S = VecF32;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const AttentionTask& forward = task.forward;
  auto& w = pair_backward_of(task);
  const std::int64_t begin = w.key_begin + offset;
  const std::int64_t count = w.key_end - begin < kKeysPerBlock ? w.key_end - begin : kKeysPerBlock;
  std::int64_t from = w.panels[0].first_start - begin, to = w.panels[w.num_panels - 1].last_limit + 1 - begin;
  from = from < 0 ? 0 : from / kKeysPerPairStep * kKeysPerPairStep;
  to = to < count ? to : count;
  if (from >= to) return;
  to = pad_to(to, kKeysPerPairStep);
  const bool shaped = w.shaped || forward.options.dropout.drops || forward.options.mask != nullptr;
  bool shown[kPairPanels] = {}, any = false;
  for (int p = 0; p < w.num_panels; ++p) {
    shown[p] = weigh_pair_block(task, p, offset, from, to, shaped);
    any = any || shown[p];
  }
  if (!any) return;
  std::int64_t first_row = 0, last_row = 0;
  for (std::int64_t key = from; key < to; key += kKeysPerPairStep) {
    // Rows that see some of the step's keys by their position; whole steps of 32.
    while (first_row < forward.num_rows &&
           static_cast<std::int64_t>(w.panels[first_row / kLanes].limits[first_row % kLanes]) < offset + key) ++first_row;
    while (last_row < forward.num_rows &&
           static_cast<std::int64_t>(w.panels[last_row / kLanes].starts[last_row % kLanes]) < offset + key + kKeysPerPairStep) ++last_row;
    const std::int64_t at = offset + key;
    for (int p = 0; p < w.num_panels; ++p) {
      const std::int64_t low = first_row / 32 * 32, high = pad_to(last_row, 32), begins = p * kLanes, ends = begins + kLanes;
      const std::int64_t row = low > begins ? low : begins, end = high < ends ? high : ends;
      if (!shown[p] || row >= end) continue;
      add_key_step(w.weight_rows + key * kPairRows, w.grad_steps, w.value_width, row, end, w.value_sums + at * w.value_width);
      add_key_step(w.score_rows + key * kPairRows, w.query_steps, w.head_width, row, end, w.key_sums + at * w.head_width);
    }
  }
  for (int p = 0; p < w.num_panels; ++p) {
    if (!shown[p]) continue;
    if (!w.grads_finite) add_not_finite_gradients(task, grads, p, offset, from, to < count ? to : count);
    add_query_steps(w.turned_keys + offset * w.head_width, w.head_width, w.score_pairs[p], from, to,
                    static_cast<float*>(task.query_sums) + p * w.head_width * kLanes);
  }
}

// The task's block of rows with the chunk of keys.
inline void add_pair_rows(const BackwardTask& task) {
  const TileSession session;
  const auto& w = pair_backward_of(task);
  const BFloat16* grads[kPairRows] = {};
  RowCursor row(task.forward.first_row, task.forward.group);
  for (std::int64_t i = 0; i < task.forward.num_rows; ++i, row.next()) {
    grads[i] = static_cast<const BFloat16*>(task.grad_out) + row.offset(task.grad_token_stride, task.grad_head_stride);
  }
  begin_pair_rows(task, grads);
  for (std::int64_t offset = 0; offset < w.key_end - w.key_begin; offset += kKeysPerBlock) add_pair_block(task, grads, offset);
}

constexpr BackwardKernels pair_backward() {
  using S = VecF32;
  return BackwardKernels{
      .rows_per_block = kPairRows,
      .keys_per_chunk = pair_keys_per_chunk,
      .workspace_bytes =
          [](std::int64_t head_dim, std::int64_t value_dim) {
            PairBackwardWorkspace w;
            return lay_out_pair_backward(w, nullptr, head_dim, value_dim);
          },
      .sums_bytes = [](std::int64_t head_dim) { return sums_bytes<S>(kPairPanels, head_dim); },
      .fetches_ahead = false,
      .exact = false,
      .row_deltas = row_deltas<S, BFloat16>,
      .begin_keys = begin_pair_keys,
      .add_rows = add_pair_rows,
      .finish_keys = finish_keys<S, BFloat16>,
      .finish_rows = finish_rows<S, BFloat16>,
  };
}

}  // namespace
}  // namespace headway
