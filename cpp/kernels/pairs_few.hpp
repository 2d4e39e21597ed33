// Few rows in pairs: decoding, and short chunks. Values are not transposed as for many rows: pairs of keys are put side by
// side as they come, and the context has the rows of queries in rows, columns of values in lanes.
//
//   context (rows, columns) += weights (rows, keys) . values (keys, columns)
//
// Each sum is the same chain of products as for many rows, so the bits are the same. Where a value is not finite, its block and
// the rest of the span are left to the way of many rows. Here stands what the two ways of multiplying (pairs_dot_few.hpp, pairs_tile_few.hpp) share.
#pragma once

#include "pair_block.hpp"

namespace headway {
namespace {

inline constexpr int kSide = 16;

// Columns are taken 32 at a time: the even vector of two has columns 0 - 3, 8 - 11, 16 - 19 and 24 - 27 of them, the odd
// one the others, which is how the CPU puts neighbouring 16-bit numbers of two registers side by side.
inline constexpr std::int64_t kFewColumns = 32;

struct FewPairs {
  static constexpr int kRows = 8;  // at most

  // Whether a task goes this way.
  static bool serves(const AttentionTask& task, const PairWorkspace& w) {
    return w.num_panels == 1 && w.panels[0].num_rows <= kRows && task.value_dim > 0 && task.value_dim % kFewColumns == 0;
  }

  // What a block's keys [begin, end) add to the context; begin is a multiple of 32.
  struct Values {
    const BFloat16* values;  // (count, value_dim)
    std::ptrdiff_t stride;
    std::int64_t count, begin, end;
  };

  // context (rows, value_dim) -> (value_dim, 16 lanes), the columns in their order, 0 in the other lanes.
  static void to_lanes(const float* context, std::int64_t rows, std::int64_t value_dim, float* out) {
    for (std::int64_t d = 0; d < value_dim; d += 16) {
      __m512 r[kSide];
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) {
        r[i] = i < rows ? _mm512_load_ps(context + i * value_dim + d) : _mm512_setzero_ps();
      }
      VecF32::transpose(r);
      const std::int64_t first = d / kFewColumns * kFewColumns + (d % kFewColumns != 0 ? 4 : 0);
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) _mm512_store_ps(out + (first + i / 4 * 8 + i % 4) * 16, r[i]);
    }
  }

  // Each row of context (rows, value_dim) times its factor, as raise_reference does it in lanes.
  static void rescale(float* context, std::int64_t rows, std::int64_t value_dim, const float* factors) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const __m512 factor = _mm512_set1_ps(factors[i]);
      const __m512 least = _mm512_div_ps(_mm512_set1_ps(kLeastNormal<float>), factor);
      for (std::int64_t d = 0; d < value_dim; d += 16) {
        const __m512 x = _mm512_load_ps(context + i * value_dim + d);
        const __m512 size = VecF32::max(x, _mm512_sub_ps(_mm512_setzero_ps(), x));
        const __m512 kept = VecF32::select(VecF32::greater(least, size), VecF32::zero(), x);
        _mm512_store_ps(context + i * value_dim + d, _mm512_mul_ps(kept, factor));
      }
    }
  }
};

}  // namespace
}  // namespace headway
