// What the products of pairs work on: the workspace of a task, its packed queries, and blocks of keys and values.
#pragma once

#include "vec_avx512.hpp"

#include "finish.hpp"
#include "prefill.hpp"

namespace headway {
namespace {

inline constexpr int kKeysPerJudgement = 32;  // divides kKeysPerBlock; a multiple of what a product takes at a time

struct PairWorkspace : Workspace<float> {
  float* scores;           // (kKeysPerJudgement, lanes)
  BFloat16* rows;          // (kLanes, depth): queries on their way into the lanes
  BFloat16* key_rows;      // (kKeysPerBlock, depth): keys, padded with zeros
  BFloat16* value_rows;    // (kKeysPerBlock, value_dim): values that lie in several pages
  BFloat16* clean_values;  // (kKeysPerBlock, value_dim): values without those that are not finite
  BFloat16* packed;        // (kKeysPerBlock, values): values as the products want them
  float* few_context;      // (2, 16, value_dim): see RowContext
};

// One block of keys and values as the products read them.
struct PairBlock {
  const BFloat16* keys;  // (count, depth), rows up to a multiple of Products::kKeysPerTile readable
  std::ptrdiff_t key_stride;
  const BFloat16* packed;
  const BFloat16* values;  // (count, value_dim), as they came
  std::ptrdiff_t value_stride;
  std::int64_t depth;    // head_dim, padded
  std::int64_t count;
  std::int64_t offset;   // of the first key from the span's first
  bool cleaned;          // values that are not finite were left out of `packed`
};

inline std::int64_t pad_to(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

template <class Products>
std::size_t lay_out_pairs(PairWorkspace& w, char* base, std::int64_t head_dim, std::int64_t value_dim) {
  constexpr std::int64_t kLanes = VecF32::kPanelVecs * VecF32::kLanes;
  const std::int64_t depth = pad_to(head_dim, Products::kDepthStep), values = pad_to(value_dim, Products::kValueStep);
  std::size_t used = (sizeof(w) + 63) / 64 * 64;
  const auto take = [&](std::int64_t bytes) {
    char* p = base ? base + used : nullptr;
    used += (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
    return p;
  };
  const auto floats = [&](std::int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
  const auto halves = [&](std::int64_t count) { return reinterpret_cast<BFloat16*>(take(count * 2)); };
  w.weights = floats(kKeysPerBlock / 2 * kLanes);
  w.scores = floats(kKeysPerJudgement * kLanes);
  lay_out_panels<VecF32>(w, Products::kPanels, depth / 2 * kLanes, values * kLanes, floats);
  for (int p = 0; p < Products::kPanels; ++p) {
    w.panels[p].total.divisor = floats(kLanes);
    w.panels[p].span.divisor = floats(kLanes);
  }
  w.rows = halves(VecF32::kLanes * depth);
  w.key_rows = halves(kKeysPerBlock * depth);
  w.value_rows = halves(kKeysPerBlock * value_dim);
  w.clean_values = halves(kKeysPerBlock * value_dim);
  w.packed = halves(kKeysPerBlock * values);
  w.few_context = floats(2 * 16 * value_dim);
  return used;
}

inline PairWorkspace& pair_workspace_of(const AttentionTask& task) {
  return static_cast<PairWorkspace&>(workspace_of<VecF32>(task));
}

// The first n of 32 lanes of 16 bits, all from n = 32 on, none below 1.
inline __mmask32 first_of_32(std::int64_t n) {
  return n >= 32 ? ~__mmask32{0} : n <= 0 ? __mmask32{0} : (__mmask32{1} << n) - 1;
}

// rows (count, width) -> out (padded_count, padded_width), zeros around them.
inline void copy_padded(const BFloat16* rows, std::ptrdiff_t stride, std::int64_t count, std::int64_t width,
                        std::int64_t padded_count, std::int64_t padded_width, BFloat16* out) {
  if (count == padded_count && width == padded_width && width % 32 == 0) {  // nothing to pad: no masks
    for (std::int64_t i = 0; i < count; ++i, out += width) {
      for (std::int64_t at = 0; at < width; at += 32) _mm512_storeu_si512(out + at, _mm512_loadu_si512(rows + i * stride + at));
    }
    return;
  }
  for (std::int64_t i = 0; i < padded_count; ++i, out += padded_width) {
    const BFloat16* row = rows + (i < count ? i * stride : 0);
    for (std::int64_t at = 0; at < padded_width; at += 32) {
      const __mmask32 used = i < count ? first_of_32(width - at) : 0;
      _mm512_mask_storeu_epi16(out + at, first_of_32(padded_width - at), _mm512_maskz_loadu_epi16(used, row + at));
    }
  }
}

// Packs the task's queries: rows (head_dim) -> lanes of pairs (depth / 2, lanes), times the scale's part for them,
// a power of two. A pair is moved as one 32-bit word.
template <class Products>
void begin_pairs(const AttentionTask& task) {
  using S = VecF32;
  auto& w = pair_workspace_of(task);
  lay_out_pairs<Products>(w, static_cast<char*>(task.workspace), task.head_dim, task.value_dim);
  const std::int64_t depth = pad_to(task.head_dim, Products::kDepthStep);
  cut_panels<S, BFloat16>(task, w, [&](auto& panel, int lane, const BFloat16* const(&rows)[S::kLanes], int count) {
    const float* words[S::kLanes] = {};
    for (int i = 0; i < count; ++i) {
      const BFloat16* row = rows[i];
      if (task.head_dim != depth) {
        copy_padded(row, 0, 1, task.head_dim, 1, depth, w.rows + i * depth);
        row = w.rows + i * depth;
      }
      words[i] = reinterpret_cast<const float*>(row);
    }
    load_transposed<S>(words, count, depth / 2, panel.queries + lane, panel.vecs * S::kLanes);
  });
  const double factor = w.split.queries;
  if (factor == 1) return;
  for (int p = 0; p < w.num_panels; ++p) {
    auto* queries = reinterpret_cast<BFloat16*>(w.panels[p].queries);
    for (std::int64_t i = 0; i < depth * w.panels[p].vecs * S::kLanes; ++i) {
      narrow(widen(queries[i]) * static_cast<float>(factor), queries[i]);
    }
  }
}

inline bool is_finite(BFloat16 x) { return (x.bits & 0x7f80u) != 0x7f80u; }

// Whether values (count, value_dim) hold an infinity or NaN.
inline bool any_not_finite(const BFloat16* values, std::ptrdiff_t stride, std::int64_t count, std::int64_t value_dim) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t d = 0; d < value_dim; d += 32) {
      const __m512i x = _mm512_maskz_loadu_epi16(first_of_32(value_dim - d), values + i * stride + d);
      found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
    }
  }
  return found != 0;
}

// Keys [begin, begin + count) of the task, ready for the products of many rows, or few; their values where they lie in one
// piece.
template <class Products>
PairBlock load_pair_keys(const AttentionTask& task, std::int64_t begin, std::int64_t count, std::int64_t span_begin, bool is_few) {
  auto& w = pair_workspace_of(task);
  const auto keys = rows_from<false, BFloat16>(task, begin), values_lie = rows_from<true, BFloat16>(task, begin);
  PairBlock block{};
  block.count = count;
  block.offset = begin - span_begin;
  block.depth = pad_to(task.head_dim, Products::kDepthStep);
  block.keys = keys.data;
  block.key_stride = keys.stride;
  const bool split = keys.count < count;
  const auto reads = is_few ? Products::Few::reads : Products::reads;
  if (split || count % Products::kKeysPerTile != 0 || !reads(keys.data, keys.stride, task.head_dim)) {
    for_pieces<false, BFloat16>(task, begin, count, [&](const Rows<BFloat16>& rows, std::int64_t n, std::int64_t at) {
      const std::int64_t padded = at + n == count ? pad_to(count, Products::kKeysPerTile) - at : n;
      copy_padded(rows.data, rows.stride, n, task.head_dim, padded, block.depth, w.key_rows + at * block.depth);
    });
    block.keys = w.key_rows;
    block.key_stride = block.depth;
  }

  block.values = values_lie.data;
  block.value_stride = values_lie.stride;
  if (split) {
    for_pieces<true, BFloat16>(task, begin, count, [&](const Rows<BFloat16>& rows, std::int64_t n, std::int64_t at) {
      copy_padded(rows.data, rows.stride, n, task.value_dim, n, task.value_dim, w.value_rows + at * task.value_dim);
    });
    block.values = w.value_rows;
    block.value_stride = task.value_dim;
  }
  return block;
}

// The block's values, ready for the products.
template <class Products>
void load_pair_values(const AttentionTask& task, PairBlock& block) {
  auto& w = pair_workspace_of(task);
  const std::int64_t count = block.count;
  const BFloat16* values = block.values;
  std::ptrdiff_t stride = block.value_stride;
  block.cleaned = any_not_finite(values, stride, count, task.value_dim);
  if (block.cleaned) {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < task.value_dim; ++d) {
        const BFloat16 x = values[i * stride + d];
        w.clean_values[i * task.value_dim + d] = is_finite(x) ? x : BFloat16{0};
      }
    }
    values = w.clean_values;
    stride = task.value_dim;
  }
  Products::pack_values(values, stride, count, task.value_dim, w.packed, w.fetch);
  block.packed = w.packed;
}

}  // namespace
}  // namespace headway
