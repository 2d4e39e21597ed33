// The backward pass on pairs of bfloat16: the workspace, and what becomes of keys and rows. A product has its left factor
// as rows along the depth, its right one as pairs of neighbours of the depth side by side in each lane:
//   scores    keys (keys, head_dim) . queries (head_dim pairs, rows)     likewise values and gradients
//   dv, dk    weights, score gradients (keys, rows) . gradients, queries (pairs of rows, columns)
//   dq        keys transposed (head_dim, keys) . score gradients (pairs of keys, rows)
#pragma once

#include "vec_avx512.hpp"

#include "backward.hpp"
#include "pairs_tile.hpp"

namespace headway {
namespace {

inline constexpr int kPairPanels = 2;  // of a block of rows
inline constexpr std::int64_t kPairRows = kPairPanels * kPanelLanes<VecF32>;
inline constexpr std::int64_t kKeysPerPairStep = 32;  // of the products; divides kKeysPerBlock

struct PairBackwardWorkspace : BackwardWorkspace<float> {
  BFloat16 *key_rows, *value_rows;     // (chunk, head_depth), (chunk, value_depth): padded to 32
  BFloat16* turned_keys;               // for each block (head_width, kKeysPerBlock): transposed, without what is not finite
  float* grad_pairs[kPairPanels];      // (value_depth / 2, lanes): pairs
  BFloat16* row_copies;                // (kLanes, depth): rows on their way into the lanes, padded
  float *query_steps, *grad_steps;     // (kPairRows / 2, head_width), (.., value_width): pairs of rows, cleaned likewise
  BFloat16 *weight_rows, *score_rows;  // (kKeysPerBlock, kPairRows): weights and score gradients of one block
  float* score_pairs[kPairPanels];     // (kKeysPerBlock / 2, lanes): pairs of keys
  std::int64_t head_depth, value_depth;
  bool grads_finite;
};

inline PairBackwardWorkspace& pair_backward_of(const BackwardTask& task) {
  return static_cast<PairBackwardWorkspace&>(backward_workspace_of<VecF32>(task));
}

// Keys of a chunk, see keys_per_chunk: 2 + 2 + 2 bytes and 4 + 4 for sums.
inline std::int64_t pair_keys_per_chunk(std::int64_t head_dim, std::int64_t value_dim) {
  constexpr std::int64_t kBytes = 1 << 20;
  const std::int64_t row = 8 * pad_to(head_dim, 32) + 6 * pad_to(value_dim, 32);
  std::int64_t keys = kKeysPerSpan;
  while (keys > kKeysPerBlock && keys * row > kBytes) keys /= 2;
  return keys;
}

// Lays the workspace out in memory of the returned size; without memory (base = nullptr) only counts.
inline std::size_t lay_out_pair_backward(PairBackwardWorkspace& w, char* base, std::int64_t head_dim, std::int64_t value_dim) {
  constexpr std::int64_t kLanes = kPanelLanes<VecF32>;
  std::size_t used = (sizeof(w) + 63) / 64 * 64;
  const auto take = [&](std::int64_t bytes) {
    char* p = base ? base + used : nullptr;
    used += (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
    return p;
  };
  const auto floats = [&](std::int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
  const auto halves = [&](std::int64_t count) { return reinterpret_cast<BFloat16*>(take(count * 2)); };
  w.head_width = pad_to(head_dim, 16);
  w.value_width = pad_to(value_dim, 16);
  w.head_depth = pad_to(head_dim, 32);
  w.value_depth = pad_to(value_dim, 32);
  const std::int64_t chunk = pair_keys_per_chunk(head_dim, value_dim);
  w.key_rows = halves(chunk * w.head_depth);
  w.value_rows = halves(chunk * w.value_depth);
  w.turned_keys = halves(chunk * w.head_width);
  w.key_sums = floats(chunk * w.head_width);
  w.value_sums = floats(chunk * w.value_width);
  for (int p = 0; p < kPairPanels; ++p) {
    auto& gradients = w.gradients[p];
    gradients.grads = nullptr;
    gradients.reference = floats(kLanes);
    gradients.correction = floats(kLanes);
    gradients.delta = floats(kLanes);
    gradients.weights = floats(kKeysPerBlock * kLanes);
    gradients.products = floats(kKeysPerBlock * kLanes);
    gradients.dropped = floats(kKeysPerBlock * kLanes);
    w.grad_pairs[p] = floats(w.value_depth / 2 * kLanes);
    w.score_pairs[p] = floats(kKeysPerBlock / 2 * kLanes);
  }
  w.row_copies = halves(VecF32::kLanes * (w.head_depth > w.value_depth ? w.head_depth : w.value_depth));
  w.query_steps = floats(kPairRows / 2 * w.head_width);
  w.grad_steps = floats(kPairRows / 2 * w.value_width);
  w.weight_rows = halves(kKeysPerBlock * kPairRows);
  w.score_rows = halves(kKeysPerBlock * kPairRows);
  w.flatness = floats(kKeysPerBlock * kLanes);
  lay_out_panels<VecF32>(w, kPairPanels, w.head_depth / 2 * kLanes, 0, floats);
  return used;
}

inline void clear(float* p, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) p[i] = 0;
}

// What is not finite becomes 0, of (count, width) numbers.
inline void clean_rows(BFloat16* rows, std::ptrdiff_t stride, std::int64_t count, std::int64_t width) {
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t d = 0; d < width; ++d) {
      if (!is_finite(rows[i * stride + d])) rows[i * stride + d] = BFloat16{0};
    }
  }
}

// Makes keys [begin, end) ready, and their sums 0. Rows up to a whole step are 0, too.
inline void begin_pair_keys(const BackwardTask& task, std::int64_t begin, std::int64_t end) {
  const AttentionTask& forward = task.forward;
  auto& w = pair_backward_of(task);
  lay_out_pair_backward(w, static_cast<char*>(forward.workspace), forward.head_dim, forward.value_dim);
  w.key_begin = begin;
  w.key_end = end;
  const std::int64_t count = end - begin, padded = pad_to(count, kKeysPerPairStep);
  const auto* keys = static_cast<const BFloat16*>(forward.k) + begin * forward.k_token_stride;
  const auto* values = static_cast<const BFloat16*>(forward.v) + begin * forward.v_token_stride;
  copy_padded(values, forward.v_token_stride, count, forward.value_dim, padded, w.value_depth, w.value_rows);
  const auto turn = [&](const BFloat16* rows, std::ptrdiff_t stride) {
    Fetch none;
    for (std::int64_t at = 0; at < count; at += kKeysPerBlock) {
      const std::int64_t n = count - at < kKeysPerBlock ? count - at : kKeysPerBlock;
      TilePairs::pack_values(rows + at * stride, stride, n, forward.head_dim, w.turned_keys + at * w.head_width, none);
    }
  };
  if (any_not_finite(keys, forward.k_token_stride, count, forward.head_dim)) {
    copy_padded(keys, forward.k_token_stride, count, forward.head_dim, padded, w.head_depth, w.key_rows);
    clean_rows(w.key_rows, w.head_depth, count, w.head_depth);
    turn(w.key_rows, w.head_depth);
  } else {
    turn(keys, forward.k_token_stride);
  }
  copy_padded(keys, forward.k_token_stride, count, forward.head_dim, padded, w.head_depth, w.key_rows);
  clear(w.key_sums, padded * w.head_width);
  clear(w.value_sums, padded * w.value_width);
}

// Rows of the block -> pairs of rows side by side: (kPairRows / 2, width). rows[i], of kPairRows, is null from `count` on.
inline void interleave_rows(const BFloat16* const* rows, std::int64_t count, std::int64_t dim, std::int64_t width, float* out) {
  for (std::int64_t i = 0; i < kPairRows; i += 2, out += width) {
    for (std::int64_t d = 0; d < width; d += 16) {
      if (i >= count || d >= dim) {
        VecF32::store(out + d, VecF32::zero());
      } else {
        VecF32::store(out + d, DotPairs::interleave(rows[i] + d, i + 1 < count ? rows[i + 1] + d : nullptr, dim - d));
      }
    }
  }
}

// What is not finite in pairs of numbers becomes 0.
inline void clean_pairs(float* pairs, std::int64_t count) { clean_rows(reinterpret_cast<BFloat16*>(pairs), 2 * count, 1, 2 * count); }

// Makes the task's block of rows ready.
inline void begin_pair_rows(const BackwardTask& task, const BFloat16* const* grads) {
  using S = VecF32;
  constexpr int kLanes = kPanelLanes<S>;
  const AttentionTask& forward = task.forward;
  auto& w = pair_backward_of(task);
  const auto pack = [&](const BFloat16* const* rows, int count, std::int64_t dim, std::int64_t depth, float* out) {
    const float* words[S::kLanes] = {};
    for (int i = 0; i < count; ++i) {
      const BFloat16* row = rows[i];
      if (dim != depth) {
        copy_padded(row, 0, 1, dim, 1, depth, w.row_copies + i * depth);
        row = w.row_copies + i * depth;
      }
      words[i] = reinterpret_cast<const float*>(row);
    }
    load_transposed<S>(words, count, depth / 2, out, kLanes);
  };
  const BFloat16* queries[kPairRows] = {};
  cut_panels<S, BFloat16>(
      forward, w,
      [&](auto& panel, int lane, const BFloat16* const(&rows)[S::kLanes], int count) {
        for (int i = 0; i < count; ++i) queries[(&panel - w.panels) * kLanes + lane + i] = rows[i];
        pack(rows, count, forward.head_dim, w.head_depth, panel.queries + lane);
      },
      true);
  if (const double factor = w.split.queries; factor != 1) {
    for (int p = 0; p < w.num_panels; ++p) {
      auto* numbers = reinterpret_cast<BFloat16*>(w.panels[p].queries);
      for (std::int64_t i = 0; i < w.head_depth * kLanes; ++i) narrow(widen(numbers[i]) * static_cast<float>(factor), numbers[i]);
    }
  }
  bool queries_finite = true;
  w.grads_finite = true;
  for (std::int64_t i = 0; i < forward.num_rows; ++i) {
    queries_finite = queries_finite && !any_not_finite(queries[i], 0, 1, forward.head_dim);
    w.grads_finite = w.grads_finite && !any_not_finite(grads[i], 0, 1, forward.value_dim);
  }
  interleave_rows(queries, forward.num_rows, forward.head_dim, w.head_width, w.query_steps);
  if (!queries_finite) clean_pairs(w.query_steps, kPairRows / 2 * w.head_width);
  interleave_rows(grads, forward.num_rows, forward.value_dim, w.value_width, w.grad_steps);
  if (!w.grads_finite) clean_pairs(w.grad_steps, kPairRows / 2 * w.value_width);
  for (int p = 0; p < w.num_panels; ++p) {
    for (int lane = 0; lane < kLanes; lane += S::kLanes) {
      const std::int64_t left = w.panels[p].num_rows - lane;
      const int count = static_cast<int>(left < 0 ? 0 : left < S::kLanes ? left : S::kLanes);
      pack(grads + p * kLanes + lane, count, forward.value_dim, w.value_depth, w.grad_pairs[p] + lane);
    }
  }
  set_lanes<S>(task, w);
}

}  // namespace
}  // namespace headway
