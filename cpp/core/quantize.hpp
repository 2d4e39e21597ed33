// Numbers of 8 bits for the caches: made from floating-point numbers when they are appended.
#pragma once

#include <cstdint>
#include <functional>

#include "problem.hpp"

namespace headway {

// Where a scale is given for each token and head: int8, number = scale * integer, scale = max|x| / 127 over the token's
// `width` numbers; the integers are rounded to nearest, so no number is off by more than scale / 2. A scale below the
// smallest normal float32 is raised to it, one of zeros alone is 0, and one of a token with inf or NaN is NaN.
//
// Else: OCP e4m3fn, one sign, four exponent and three mantissa bits, no infinity. Rounded to nearest, ties to even: off
// by 2^-4 of the number at most from 2^-6 on, by 2^-10 below. Finite numbers beyond 448 become 448 with their sign, inf
// and NaN become NaN.
struct QuantizeProblem {
  ElementKind kind;  // of x; not float64
  std::int64_t batch, num_heads, num_tokens, width;
  TensorView x;       // (batch, num_heads, num_tokens, width)
  TensorView out;     // the same, of bytes
  TensorView scales;  // (batch, num_heads, num_tokens) float32, or no data
};

// `interrupted` as in parallel.hpp.
void quantize(const QuantizeProblem& problem, const std::function<bool()>& interrupted);

}  // namespace headway
