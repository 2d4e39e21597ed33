// The kernels' elementary functions of one ISA, for function_errors.cpp: each out[i] = f(x[i]), n a multiple of 16, both
// aligned to 64 bytes. Null where the ISA has no function of its own.
#pragma once

#include <cstdint>

namespace headway {

struct Functions {
  const char* isa;
  void (*exp2_float32)(const float* x, float* out, std::int64_t n);
  void (*tanh_float32)(const float* x, float* out, std::int64_t n);
  void (*exp2_float64)(const double* x, double* out, std::int64_t n);
  void (*tanh_float64)(const double* x, double* out, std::int64_t n);
  void (*exp2_pairs)(const float* x, float* out, std::int64_t n);  // of weights that are rounded to bfloat16
};

}  // namespace headway
