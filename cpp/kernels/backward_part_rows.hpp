// The backward pass of float32 and float16 by parts of bfloat16, see parts.hpp: the workspace, and what becomes of keys and
// rows. Tiles of all parts, along the depth of each product:
//   scores    keys (keys, head_dim) . queries (head_dim, rows)     likewise values and gradients
//   dv, dk    weights, score gradients (keys, rows) . gradients, queries (rows, columns)
//   dq        keys transposed (head_dim, keys) . score gradients (keys, rows)
//
// Numbers that are not moderate, see parts.hpp, are 0 in the right factors of dv and dk and the left one of dq, where they
// would meet those of other rows and keys; backward_part_others.hpp has what becomes of them.
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

// Keys or values of a chunk, padded to whole vectors.
struct ChunkRows {
  const float* data;
  std::ptrdiff_t stride;
  std::int64_t count, width;
  const float* row(std::int64_t i) const { return data + i * stride; }
};

struct PartBackwardWorkspace : BackwardWorkspace<float> {
  ChunkRows keys, values;           // where they lie, or in chunk_keys and chunk_values
  char *key_tiles, *value_tiles;    // (chunk / 16, depth steps): left factors of 16 keys
  char* turned_keys;                // (chunk / 32, head_width / 16): left factors of 16 columns
  char *query_tiles, *grad_tiles;   // (depth steps, vectors of lanes): right factors
  char *query_steps, *grad_steps;   // (kRowSteps, width / 16): right factors of 16 columns
  char *weight_tiles, *score_tiles; // (kKeysKept / 16, kRowSteps): left factors of 16 keys
  char* score_steps;                // (kKeysKept / 32, vectors of lanes): right factors
  float *turned, *cleaned;          // (width, 32), (32, width): keys on their way into turned_keys
  std::int64_t head_steps, value_steps;           // depth steps of head_dim and value_dim
  bool key_is_moderate[kKeysPerSpan], value_is_moderate[kKeysPerSpan];        // of each key of the chunk, and its value
  bool query_is_moderate[kPanelLanes<VecF32>], grad_is_moderate[kPanelLanes<VecF32>];  // of each row
  bool scores_are_moderate[kPanelLanes<VecF32>];                              // likewise, see kMostModerateLse
  bool block_is_moderate[kKeysPerSpan / kKeysPerBlock], rows_are_moderate;    // of a block of keys, of the block of rows
  bool started[kKeysPerSpan / kDepthPerStep];     // of each 32 keys: they have sums
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
  const std::int64_t chunk = part_keys_per_chunk(head_dim, value_dim);
  used += lay_out_backward<VecF32>(w, base ? base + used : nullptr, head_dim, value_dim, chunk);
  w.head_steps = (head_dim + kDepthPerStep - 1) / kDepthPerStep;
  w.value_steps = (value_dim + kDepthPerStep - 1) / kDepthPerStep;
  const auto tiles = [&](std::int64_t count) {
    char* p = base ? base + used : nullptr;
    used += static_cast<std::size_t>(count * kTileBytes3);
    return p;
  };
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
  w.cleaned = base ? w.turned + w.head_width * kDepthPerStep : nullptr;
  used += static_cast<std::size_t>(2 * w.head_width * kDepthPerStep) * sizeof(float);
  return used;
}

// Rows [begin, end) -> left factors (padded rows / 16, steps), row after row; those from `count` on are 0.
inline void split_left_rows(const ChunkRows& rows, std::int64_t begin, std::int64_t end, std::int64_t steps, char* tiles, Sizes& sizes) {
  for (std::int64_t i = begin; i < end; ++i) {
    const auto load = [&](std::int64_t d) __attribute__((always_inline)) {
      if (i >= rows.count || d >= rows.width) return VecF32::zero();
      const auto x = VecF32::load_unaligned(rows.row(i) + d);
      sizes.add(x);
      return x;
    };
    char* to = tiles + i / 16 * steps * kTileBytes3 + i % 16 * 64;
    for (std::int64_t d = 0; d < steps * kDepthPerStep; d += kDepthPerStep, to += kTileBytes3) {
      const auto first = load(d);
      store_parts(first, load(d + 16), to);
    }
  }
}

// Numbers that are not moderate become 0.
inline VecF32::Vec clean(VecF32::Vec x) { return _mm512_mask_mov_ps(x, immoderate(x), VecF32::zero()); }

// Keys [at, at + 32) of the chunk -> left factors of their step, transposed.
inline void turn_keys(PartBackwardWorkspace& w, std::int64_t at) {
  using S = VecF32;
  const std::int64_t width = w.head_width;
  for (int half = 0; half < 2; ++half) {
    const float* lanes[S::kLanes] = {};
    int used = 0;
    for (std::int64_t key = at + half * S::kLanes; used < S::kLanes && key < w.keys.count; ++key) {
      lanes[used] = w.keys.row(key);
      if (!w.key_is_moderate[key]) {
        float* row = w.cleaned + (half * S::kLanes + used) * width;
        for (std::int64_t d = 0; d < width; d += S::kLanes) S::store(row + d, clean(S::load_unaligned(w.keys.row(key) + d)));
        lanes[used] = row;
      }
      ++used;
    }
    load_transposed<S>(lanes, used, width, w.turned + half * S::kLanes, kDepthPerStep);
  }
  char* to = w.turned_keys + at / kDepthPerStep * (width / 16) * kTileBytes3;
  for (std::int64_t d = 0; d < width; ++d) {
    const float* from = w.turned + d * kDepthPerStep;
    store_parts(S::load(from), S::load(from + S::kLanes), to + d / 16 * kTileBytes3 + d % 16 * 64);
  }
}

// Makes keys [begin, end) ready; their sums are yet to start.
template <class Element>
void begin_part_keys(const BackwardTask& task, std::int64_t begin, std::int64_t end) {
  const AttentionTask& forward = task.forward;
  auto& w = part_backward_of(task);
  lay_out_part_backward(w, static_cast<char*>(forward.workspace), forward.head_dim, forward.value_dim);
  w.key_begin = begin;
  w.key_end = end;
  const std::int64_t count = end - begin, padded = pad_to(count, kDepthPerStep);
  if (sizeof(Element) == sizeof(float) && forward.head_dim == w.head_width && forward.value_dim == w.value_width) {
    w.keys = {static_cast<const float*>(forward.k) + begin * forward.k_token_stride, forward.k_token_stride, count, w.head_width};
    w.values = {static_cast<const float*>(forward.v) + begin * forward.v_token_stride, forward.v_token_stride, count, w.value_width};
  } else {
    load_keys<VecF32, Element>(task);
    w.keys = {w.chunk_keys, w.head_width, count, w.head_width};
    w.values = {w.chunk_values, w.value_width, count, w.value_width};
  }
  for (std::int64_t at = 0; at < padded; at += kKeysPerBlock) {
    const std::int64_t to = at + kKeysPerBlock < padded ? at + kKeysPerBlock : padded;
    Sizes sizes;
    split_left_rows(w.keys, at, to, w.head_steps, w.key_tiles, sizes);
    split_left_rows(w.values, at, to, w.value_steps, w.value_tiles, sizes);
    const bool moderate = w.block_is_moderate[at / kKeysPerBlock] = sizes.are_moderate();
    for (std::int64_t i = at; i < to; ++i) {
      w.key_is_moderate[i] = moderate || i >= count || is_moderate(w.keys.row(i), w.head_width);
      w.value_is_moderate[i] = moderate || i >= count || is_moderate(w.values.row(i), w.value_width);
    }
  }
  for (std::int64_t at = 0; at < count; at += kDepthPerStep) turn_keys(w, at);
  for (bool& started : w.started) started = false;
}

// The sums of keys [from, to) of the chunk, which no row saw so far, become 0.
inline void start_key_sums(PartBackwardWorkspace& w, std::int64_t from, std::int64_t to) {
  for (std::int64_t key = from; key < to; key += kDepthPerStep) {
    bool& started = w.started[key / kDepthPerStep];
    if (!started) clear_key_sums<VecF32>(w, key, key + kDepthPerStep);
    started = true;
  }
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

// Rows (num_rows, width) -> right factors (kRowSteps, width / 16), cleaned where they are not moderate.
inline void split_row_steps(const float* rows, const bool* moderate, std::int64_t num_rows, std::int64_t width, char* tiles) {
  using S = VecF32;
  for (std::int64_t r = 0; r < kRowSteps * kDepthPerStep; r += r % 16 == 15 ? 17 : 1) {
    const auto load = [&](std::int64_t row, std::int64_t d) __attribute__((always_inline)) {
      if (row >= num_rows) return S::zero();
      const auto x = S::load(rows + row * width + d);
      return moderate[row] ? x : clean(x);
    };
    char* to = tiles + r / kDepthPerStep * (width / 16) * kTileBytes3 + r % 16 * 64;
    for (std::int64_t d = 0; d < width; d += 16, to += kTileBytes3) {
      const auto first = load(r, d);
      store_parts(first, load(r + 16, d), to);
    }
  }
}

// Rows whose lse is larger have their scores made by multiply-adds, as in the forward pass, whose rounding the lse has, too:
// what two ways of rounding make different is multiplied by the size of the scores in the exponent.
inline constexpr float kMostModerateLse = 256;

// Judges the rows.
inline void judge_rows(const BackwardTask& task, PartBackwardWorkspace& w) {
  const std::int64_t num_rows = task.forward.num_rows;
  const double factor = w.split.queries, unit = w.unit();
  const bool scaled = factor == 1 || factor == -1 || factor == 0;
  bool all = is_moderate(w.query_rows, num_rows * w.head_width) && is_moderate(w.grad_rows, num_rows * w.value_width);
  for (std::int64_t i = 0; i < num_rows; ++i) {
    w.query_is_moderate[i] = all || is_moderate(w.query_rows + i * w.head_width, w.head_width);
    w.grad_is_moderate[i] = all || is_moderate(w.grad_rows + i * w.value_width, w.value_width);
  }
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const float reference = w.gradients[0].reference[i];
    const double lse = static_cast<double>(reference) * unit;
    const bool none = reference > -kLowest<float>;  // the row saw nothing
    w.scores_are_moderate[i] = scaled && w.query_is_moderate[i] && (none || (lse < kMostModerateLse && lse > -kMostModerateLse));
    all = all && w.scores_are_moderate[i];
  }
  w.rows_are_moderate = all;
}

// Makes the task's block of rows ready.
template <class Element>
void begin_part_rows(const BackwardTask& task) {
  begin_rows<VecF32, Element, Element>(task);
  auto& w = part_backward_of(task);
  const std::int64_t num_rows = task.forward.num_rows;
  judge_rows(task, w);
  split_row_steps(w.query_rows, w.query_is_moderate, num_rows, w.head_width, w.query_steps);
  split_row_steps(w.grad_rows, w.grad_is_moderate, num_rows, w.value_width, w.grad_steps);
  split_lanes(w.panels[0].queries, task.forward.head_dim, w.head_steps, w.query_tiles);
  split_lanes(w.gradients[0].grads, task.forward.value_dim, w.value_steps, w.grad_tiles);
}

}  // namespace
}  // namespace headway
