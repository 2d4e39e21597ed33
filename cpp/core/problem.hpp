// What the bindings and the core speak: views of arrays, and one attention problem. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "../kernels/kernel_table.hpp"

namespace headway {

inline std::size_t element_size(ElementKind kind) {
  if (kind == ElementKind::kInt8 || kind == ElementKind::kFloat8) return 1;
  return kind == ElementKind::kFloat64 ? 8 : kind == ElementKind::kFloat32 ? 4 : 2;
}

inline std::size_t element_size(MaskKind kind) {
  return kind == MaskKind::kBool ? 1 : element_size(static_cast<ElementKind>(kind));
}

// Of the type that sums are made in.
inline std::size_t accumulation_size(ElementKind kind) { return kind == ElementKind::kFloat64 ? 8 : 4; }

// A (batch, heads, tokens, width) array; the last axis is contiguous, the others have any stride, counted in elements.
struct TensorView {
  void* data = nullptr;
  std::ptrdiff_t batch_stride = 0, head_stride = 0, token_stride = 0;
};

// (batch, num_heads, num_queries, num_keys), any strides, counted in elements.
struct MaskView {
  const void* data = nullptr;  // null: no mask
  MaskKind kind = MaskKind::kBool;
  std::ptrdiff_t batch_stride = 0, head_stride = 0, token_stride = 0, key_stride = 0;
};

// Keys and values in pages, which then are what the batch axis of AttentionProblem's k and v counts.
struct PagesView {
  const std::int64_t* table = nullptr;  // (batch, pages_per_entry), see KeyPages; null: no pages
  std::int64_t pages_per_entry = 0, page_size = 0;
  TensorView k_scales, v_scales;  // (pages, num_kv_heads, page_size) float32, of kInt8; or no data
};

struct AttentionProblem {
  ElementKind kind;      // of q and the results
  ElementKind key_kind;  // of k and v: the same, or that of a cache, see ElementKind
  bool wide_out;      // out has the accumulation type (float64 for float64, else float32), not kind
  std::int64_t batch, num_heads, num_kv_heads, num_queries, num_keys, head_dim, value_dim;
  TensorView q;       // (batch, num_heads, num_queries, head_dim)
  TensorView k;       // (batch, num_kv_heads, num_keys, head_dim)
  TensorView v;       // (batch, num_kv_heads, num_keys, value_dim)
  TensorView out;     // (batch, num_heads, num_queries, value_dim), or num_keys for scores and weights
  TensorView lse;     // (batch, num_heads, num_queries) in the accumulation type, or no data
  const std::int64_t* positions;  // (batch): key position at which query 0 stands
  std::optional<double> scale;    // 1 / sqrt(head_dim) where it is not given
  std::int64_t left = kNoLimit, right = kNoLimit;  // keys seen before and after a query's own position; causal: right = 0

  // Batch entries of different lengths. Packed: the tokens of entry b are query_begins[b] .. query_begins[b + 1] - 1 of q,
  // out and lse, and key_begins likewise of k and v; then the batch strides are 0, and num_queries and num_keys are the
  // longest entry's.
  const std::int64_t* query_begins = nullptr;  // (batch + 1), or null
  const std::int64_t* key_begins = nullptr;
  const std::int64_t* key_counts = nullptr;    // (batch): keys that count, at most num_keys; or null

  double softcap = 0;              // 0: none
  const double* slopes = nullptr;  // (batch, num_heads), or null
  const double* sinks = nullptr;   // (num_heads), or null
  double dropout = 0;              // 0 .. 1, less than 1: the probability of a weight to be dropped
  std::uint64_t seed = 0;          // of the dropout
  MaskView mask;
  PagesView pages;
};

}  // namespace headway
