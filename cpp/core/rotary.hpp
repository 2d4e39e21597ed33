// Rotary embedding: pairs of numbers of each row turned by angles that grow with the row's position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "problem.hpp"

namespace headway {

struct RotaryProblem {
  ElementKind kind;  // of x
  bool wide_out;     // out has the accumulation type (float64 for float64, else float32), not kind
  bool interleaved;  // pairs are neighbours, else a number of the first half and one of the second
  std::int64_t batch, num_heads, num_tokens, head_dim;
  TensorView x, out;  // (batch, num_heads, num_tokens, head_dim); the same memory in the same strides, or none in common
  const std::int64_t* positions;  // (batch, num_tokens) with these strides; null: token t stands at first_position + t
  std::ptrdiff_t position_batch_stride, position_token_stride;
  std::int64_t first_position;
  std::int64_t num_pairs;     // 1 or more, 2 * num_pairs <= head_dim; the other numbers of a row are copied
  const double* frequencies;  // (num_pairs): radians per position
  double factor;              // of cosines and sines
};

// out = x, turned. `interrupted` as in parallel.hpp; std::bad_alloc comes before out is touched.
void rotary_embedding(const RotaryProblem& problem, const std::function<bool()>& interrupted);

}  // namespace headway
