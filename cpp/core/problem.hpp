// What the bindings and the core speak: views of arrays, and one attention problem. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "../kernels/kernel_table.hpp"

namespace headway {

inline std::size_t element_size(ElementKind kind) {
  return kind == ElementKind::kFloat64 ? 8 : kind == ElementKind::kFloat32 ? 4 : 2;
}

// Of the type that sums are made in.
inline std::size_t accumulation_size(ElementKind kind) { return kind == ElementKind::kFloat64 ? 8 : 4; }

// A (batch, heads, tokens, width) array; the last axis is contiguous, the others have any stride, counted in elements.
struct TensorView {
  void* data = nullptr;
  std::ptrdiff_t batch_stride = 0, head_stride = 0, token_stride = 0;
};

struct AttentionProblem {
  ElementKind kind;   // of q, k and v
  bool wide_out;      // out has the accumulation type (float64 for float64, else float32), not kind
  std::int64_t batch, num_heads, num_kv_heads, num_queries, num_keys, head_dim, value_dim;
  TensorView q;       // (batch, num_heads, num_queries, head_dim)
  TensorView k;       // (batch, num_kv_heads, num_keys, head_dim)
  TensorView v;       // (batch, num_kv_heads, num_keys, value_dim)
  TensorView out;     // (batch, num_heads, num_queries, value_dim), or num_keys for scores and weights
  TensorView lse;     // (batch, num_heads, num_queries) in the accumulation type, or no data
  const std::int64_t* positions;  // (batch): key position at which query 0 stands
  std::optional<double> scale;    // 1 / sqrt(head_dim) where it is not given
  bool causal;
};

}  // namespace headway
