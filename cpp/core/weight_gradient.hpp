// The gradients of a projection's weight and bias.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "../kernels/kernel_table.hpp"

namespace headway {

// weight (d_in, d_out) = x (num_tokens, d_in) transposed . grad (num_tokens, d_out); bias (d_out) = the sum of grad over
// the tokens. All have the type `kind` and a contiguous last axis; strides lie between rows and count elements.
struct WeightGradient {
  ElementKind kind;
  std::int64_t num_tokens, d_in, d_out;
  const void* x;
  std::ptrdiff_t x_stride;
  const void* grad;
  std::ptrdiff_t grad_stride;
  void* weight;
  std::ptrdiff_t weight_stride;
  void* bias;  // or null
};

// Each number is the sum over spans of kTokensPerSpan tokens, in their order, of one chain of multiply-adds in the
// accumulation type, rounded once: its bits do not depend on threads. `interrupted` as in parallel.hpp; std::bad_alloc
// comes before anything is written.
void weight_gradient(const WeightGradient& problem, const std::function<bool()>& interrupted);

inline constexpr std::int64_t kTokensPerSpan = 2048;

}  // namespace headway
