// The backward pass of float32 and float16 by parts of bfloat16, see parts.hpp: the workspace, and what becomes of keys and
// rows. It has all that the kernels of multiply-adds have, which serve for blocks whose numbers are too large or too small
// for parts, or not finite. Tiles of all parts, along the depth of each product:
//   scores    keys (keys, head_dim) . queries (head_dim, rows)     likewise values and gradients
//   dv, dk    weights, score gradients (keys, rows) . gradients, queries (rows, columns)
//   dq        keys transposed (head_dim, keys) . score gradients (keys, rows)
#pragma once

#include "backward.hpp"
#include "fetch.hpp"
#include "pair_block.hpp"
#include "parts.hpp"

namespace headway {
namespace {

inline constexpr std::int64_t kDepthPerStep = 32;   // of a tile
inline constexpr std::int64_t kKeysPerUnit = 64;    // whose share of dq is added at once; half of kKeysKept at most
inline constexpr std::int64_t kKeysKept = 128;      // whose weights and score gradients are kept: by their key modulo this
inline constexpr std::int64_t kRowSteps = kBackwardRows<VecF32> / kDepthPerStep;

struct PartBackwardWorkspace : BackwardWorkspace<float> {
  char *key_tiles, *value_tiles;    // (chunk / 16, depth steps): left factors of 16 keys
  char* turned_keys;                // (chunk / 32, head_width / 16): left factors of 16 columns
  char *query_tiles, *grad_tiles;   // (depth steps, vectors of lanes): right factors
  char *query_steps, *grad_steps;   // (kRowSteps, width / 16): right factors of 16 columns
  char *weight_tiles, *score_tiles; // (kKeysKept / 16, kRowSteps): left factors of 16 keys
  char* score_steps;                // (kKeysKept / 32, vectors of lanes): right factors
  float* turned;                    // (width, 32): keys on their way into turned_keys
  std::int64_t head_steps, value_steps;           // depth steps of head_dim and value_dim
  bool is_moderate[kKeysPerSpan / kKeysPerBlock];  // of each block of keys: it can be multiplied in parts
  bool rows_are_moderate;                         // of the block of rows
};

inline PartBackwardWorkspace& part_backward_of(const BackwardTask& task) {
  return static_cast<PartBackwardWorkspace&>(backward_workspace_of<VecF32>(task));
}

// Keys of a chunk, see keys_per_chunk: what is read for every block of rows, 6 + 6 + 6 bytes for tiles and 4 + 4 for sums,
// is to stay in the second cache level.
inline std::int64_t part_keys_per_chunk(std::int64_t head_dim, std::int64_t value_dim) {
  constexpr std::int64_t kBytes = 1 << 20;
  const std::int64_t row = 16 * pad_to(head_dim, 32) + 10 * pad_to(value_dim, 32);
  std::int64_t keys = keys_per_chunk<VecF32>(head_dim, value_dim);
  while (keys > kKeysPerBlock && keys * row > kBytes) keys /= 2;
  return keys;
}

// Lays the workspace out in memory of the returned size; without memory (base = nullptr) only counts.
inline std::size_t lay_out_part_backward(PartBackwardWorkspace& w, char* base, std::int64_t head_dim, std::int64_t value_dim) {
  std::size_t used = (sizeof(w) + 63) / 64 * 64;
  used += lay_out_backward<VecF32>(w, base ? base + used : nullptr, head_dim, value_dim);
  w.head_steps = (head_dim + kDepthPerStep - 1) / kDepthPerStep;
  w.value_steps = (value_dim + kDepthPerStep - 1) / kDepthPerStep;
  const auto tiles = [&](std::int64_t count) {
    char* p = base ? base + used : nullptr;
    used += static_cast<std::size_t>(count * kTileBytes3);
    return p;
  };
  const std::int64_t chunk = part_keys_per_chunk(head_dim, value_dim);
  w.key_tiles = tiles(chunk / 16 * w.head_steps);
  w.value_tiles = tiles(chunk / 16 * w.value_steps);
  w.turned_keys = tiles(chunk / kDepthPerStep * w.head_width / 16);
  w.query_tiles = tiles(w.head_steps * VecF32::kPanelVecs);
  w.grad_tiles = tiles(w.value_steps * VecF32::kPanelVecs);
  w.query_steps = tiles(kRowSteps * w.head_width / 16);
  w.grad_steps = tiles(kRowSteps * w.value_width / 16);
  w.weight_tiles = tiles(kKeysKept / 16 * kRowSteps);
  w.score_tiles = tiles(kKeysKept / 16 * kRowSteps);
  w.score_steps = tiles(kKeysKept / kDepthPerStep * VecF32::kPanelVecs);
  w.turned = base ? reinterpret_cast<float*>(base + used) : nullptr;
  used += static_cast<std::size_t>(w.head_width * kDepthPerStep) * sizeof(float);
  return used;
}

// A row (width), a multiple of 16, -> row i of left factors, one for each step; a null row is one of zeros.
inline void split_left_row(const float* row, std::int64_t width, std::int64_t steps, std::int64_t i, char* tiles) {
  const auto load = [&](std::int64_t d) { return row != nullptr && d < width ? VecF32::load(row + d) : VecF32::zero(); };
  char* to = tiles + i / 16 * steps * kTileBytes3 + i % 16 * 64;
  for (std::int64_t s = 0; s < steps; ++s, to += kTileBytes3) store_parts(load(s * kDepthPerStep), load(s * kDepthPerStep + 16), to);
}

// Keys [at, at + 32) of the chunk -> the tiles of its step, transposed.
inline void turn_keys(PartBackwardWorkspace& w, std::int64_t at, std::int64_t count) {
  using S = VecF32;
  for (int half = 0; half < 2; ++half) {
    const float* rows[S::kLanes] = {};
    const std::int64_t left = count - at - half * S::kLanes;
    const int used = static_cast<int>(left < 0 ? 0 : left < S::kLanes ? left : S::kLanes);
    for (int i = 0; i < used; ++i) rows[i] = w.chunk_keys + (at + half * S::kLanes + i) * w.head_width;
    load_transposed<S>(rows, used, w.head_width, w.turned + half * S::kLanes, kDepthPerStep);
  }
  char* to = w.turned_keys + at / kDepthPerStep * (w.head_width / 16) * kTileBytes3;
  for (std::int64_t d = 0; d < w.head_width; ++d) {
    const float* from = w.turned + d * kDepthPerStep;
    store_parts(S::load(from), S::load(from + S::kLanes), to + d / 16 * kTileBytes3 + d % 16 * 64);
  }
}

// Makes keys [begin, end) ready, and their sums 0, of whole steps.
template <class Element>
void begin_part_keys(const BackwardTask& task, std::int64_t begin, std::int64_t end) {
  auto& w = part_backward_of(task);
  char* base = static_cast<char*>(task.forward.workspace);
  lay_out_part_backward(w, base, task.forward.head_dim, task.forward.value_dim);
  load_keys<VecF32, Element>(task, begin, end);
  const std::int64_t count = end - begin, padded = pad_to(count, kDepthPerStep);
  for (std::int64_t at = 0; at < count; at += kKeysPerBlock) {
    bool& moderate = w.is_moderate[at / kKeysPerBlock];
    moderate = true;
    for (std::int64_t i = at; moderate && i < at + kKeysPerBlock && i < count; ++i) {
      moderate = is_moderate(w.chunk_keys + i * w.head_width, w.head_width) && is_moderate(w.chunk_values + i * w.value_width, w.value_width);
    }
  }
  for (std::int64_t i = 0; i < padded; ++i) {
    split_left_row(i < count ? w.chunk_keys + i * w.head_width : nullptr, w.head_width, w.head_steps, i, w.key_tiles);
    split_left_row(i < count ? w.chunk_values + i * w.value_width : nullptr, w.value_width, w.value_steps, i, w.value_tiles);
  }
  for (std::int64_t at = 0; at < count; at += kDepthPerStep) turn_keys(w, at, count);
  const auto clear = [&](float* sums, std::int64_t width) {
    for (std::int64_t i = count * width; i < padded * width; i += VecF32::kLanes) VecF32::store(sums + i, VecF32::zero());
  };
  clear(w.key_sums, w.head_width);
  clear(w.value_sums, w.value_width);
}

// Lanes (dim, lanes) -> right factors (steps, vectors).
inline void split_lanes(const float* lanes, std::int64_t dim, std::int64_t steps, char* tiles) {
  using S = VecF32;
  for (std::int64_t d = 0; d < steps * kDepthPerStep; d += d % 16 == 15 ? 17 : 1) {
    const auto load = [&](std::int64_t at, int j) { return at < dim ? S::load(lanes + at * kPanelLanes<S> + j * S::kLanes) : S::zero(); };
    char* to = tiles + d / kDepthPerStep * S::kPanelVecs * kTileBytes3 + d % 16 * 64;
    for (int j = 0; j < S::kPanelVecs; ++j) store_parts(load(d, j), load(d + 16, j), to + j * kTileBytes3);
  }
}

// Rows (num_rows, width) -> right factors (kRowSteps, width / 16).
inline void split_row_steps(const float* rows, std::int64_t num_rows, std::int64_t width, char* tiles) {
  using S = VecF32;
  for (std::int64_t r = 0; r < kRowSteps * kDepthPerStep; r += r % 16 == 15 ? 17 : 1) {
    const auto load = [&](std::int64_t row, std::int64_t d) { return row < num_rows ? S::load(rows + row * width + d) : S::zero(); };
    char* to = tiles + r / kDepthPerStep * (width / 16) * kTileBytes3 + r % 16 * 64;
    for (std::int64_t d = 0; d < width; d += 16, to += kTileBytes3) store_parts(load(r, d), load(r + 16, d), to);
  }
}

// Makes the task's block of rows ready.
template <class Element>
void begin_part_rows(const BackwardTask& task) {
  begin_rows<VecF32, Element, Element>(task);
  auto& w = part_backward_of(task);
  const std::int64_t num_rows = task.forward.num_rows;
  constexpr double kLeastFactor = 0x1p-30, kMostFactor = 0x1p30;
  constexpr float kMostDelta = 0x1p80f, kMostReference = 0x1p100f;
  const auto& lanes = w.gradients[0];
  w.rows_are_moderate = w.split.queries >= kLeastFactor && w.split.queries <= kMostFactor;
  for (std::int64_t i = 0; w.rows_are_moderate && i < num_rows; ++i) {
    const float reference = lanes.reference[i], delta = lanes.delta[i];
    w.rows_are_moderate = is_moderate(w.query_rows + i * w.head_width, w.head_width) &&
                          is_moderate(w.grad_rows + i * w.value_width, w.value_width) && delta < kMostDelta && delta > -kMostDelta &&
                          ((reference < kMostReference && reference > -kMostReference) || reference > -kLowest<float>);
  }
  if (!w.rows_are_moderate) return;
  split_lanes(w.panels[0].queries, task.forward.head_dim, w.head_steps, w.query_tiles);
  split_lanes(lanes.grads, task.forward.value_dim, w.value_steps, w.grad_tiles);
  split_row_steps(w.query_rows, num_rows, w.head_width, w.query_steps);
  split_row_steps(w.grad_rows, num_rows, w.value_width, w.grad_steps);
}

}  // namespace
}  // namespace headway
