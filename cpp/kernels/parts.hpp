// float32 numbers as sums of three bfloat16 numbers, so that AMX multiplies them: x = x0 + x1 + x2, exactly, for 24 bits
// are three times 8. Of the nine products of the parts of two numbers six are made; those that are left out are below
// 2^-24 of the product. Sums are float32, as those of multiply-adds are.
//
// x0 is x rounded, so that the rest has either sign and what is left out does not lean to one side. This holds for numbers

#pragma once

#include "vec_avx512.hpp"

#include "tile_registers.hpp"

namespace headway {
namespace {

inline constexpr int kParts = 3;
inline constexpr std::ptrdiff_t kPartBytes = 1024;               // one tile of one part: 16 rows of 16 pairs
inline constexpr std::ptrdiff_t kTileBytes3 = kParts * kPartBytes;  // the tiles of all parts, one after the other

// The parts of 16 numbers, each in the upper half of its lane, the lower half 0.
struct VecParts { __m512i parts[kParts]; };

[[gnu::always_inline]] inline VecParts split_parts(VecF32::Vec x) {
  const __m512i upper = _mm512_set1_epi32(-0x10000), half = _mm512_set1_epi32(0x8000);
  VecParts found;
  found.parts[0] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper);
  const VecF32::Vec rest = _mm512_sub_ps(x, _mm512_castsi512_ps(found.parts[0]));  // 16 bits at most, exact
  found.parts[1] = _mm512_and_si512(_mm512_castps_si512(rest), upper);
  found.parts[2] = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(found.parts[1])));
  return found;
}

// Numbers in the upper halves of two registers, side by side in each lane: the first in the lower half. Along the depth of
// a product, the numbers of both factors stand so: of every 32 depths, n and n + 16 are neighbours.
[[gnu::always_inline]] inline __m512i join_pairs(__m512i first, __m512i second) {
  const __m512i upper_to_lower = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);  // bytes of each quarter
  return _mm512_mask_shuffle_epi8(second, 0x3333333333333333, first, upper_to_lower);
}

// One row of the tiles of all parts.
[[gnu::always_inline]] inline void store_joined(const VecParts& first, const VecParts& second, char* row) {
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) _mm512_store_si512(row + i * kPartBytes, join_pairs(first.parts[i], second.parts[i]));
}
[[gnu::always_inline]] inline void store_parts(VecF32::Vec first, VecF32::Vec second, char* row) {
  store_joined(split_parts(first), split_parts(second), row);
}

// Numbers are moderate if their parts, products and sums are as exact as those of multiply-adds: 0, or from 2^-100 to 2^30.
// Sizes are compared as the integers that their bits are.
inline constexpr std::uint32_t kLeastModerate = (127u - 100) << 23, kMostModerate = (127u + 30) << 23;

[[gnu::always_inline]] inline __m512i size_of(VecF32::Vec x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

// Which of 16 numbers are not moderate.
inline __mmask16 immoderate(VecF32::Vec x) {
  const __m512i below = _mm512_sub_epi32(size_of(x), _mm512_set1_epi32(1));  // 0 becomes the largest
  return _mm512_cmplt_epu32_mask(below, _mm512_set1_epi32(kLeastModerate - 1)) |
         _mm512_cmpge_epu32_mask(size_of(x), _mm512_set1_epi32(static_cast<int>(kMostModerate)));
}

// The same of all numbers that it is shown.
class Sizes {
 public:
  [[gnu::always_inline]] void add(VecF32::Vec x) {
    most_ = _mm512_max_epu32(most_, size_of(x));
    least_ = _mm512_min_epu32(least_, _mm512_sub_epi32(size_of(x), _mm512_set1_epi32(1)));
  }
  bool are_moderate() const {
    return _mm512_reduce_max_epu32(most_) < kMostModerate && _mm512_reduce_min_epu32(least_) >= kLeastModerate - 1;
  }

 private:
  __m512i most_ = _mm512_setzero_si512(), least_ = _mm512_set1_epi32(-1);
};

// Whether all of `width` numbers, a multiple of 16, are moderate.
inline bool is_moderate(const float* row, std::int64_t width) {
  Sizes sizes;
  for (std::int64_t d = 0; d < width; d += VecF32::kLanes) sizes.add(VecF32::load_unaligned(row + d));
  return sizes.are_moderate();
}

// Tiles of a factor: of `step`s along the depth, 32 numbers each, and beside one another.
struct PartTiles {
  const char* tiles;
  std::ptrdiff_t beside, step;  // bytes
};

// sums (kRows * 16, kCols * 16), rows row_bytes apart, <- or += left (kRows * 16, depth) . right (depth, kCols * 16). Tiles 0 - 3 hold
// sums, 4 and 5 a part of the left factor, 6 and 7 one of the right one, of which every second one stays for two products.
// What is small comes first. beside.next() is called between the products: work for the other units of the core.
template <int kRows, int kCols, bool kAdd, class Beside>
[[gnu::noinline]] void multiply_parts(PartTiles left, PartTiles right, std::int64_t steps, float* sums, std::ptrdiff_t row_bytes,
                                       Beside& beside) {
  char* const out[2] = {reinterpret_cast<char*>(sums), reinterpret_cast<char*>(sums) + 16 * row_bytes};
  const auto load_left = [&](int part) __attribute__((always_inline)) {
    tile_load<4>(left.tiles + part * kPartBytes, 64);
    if constexpr (kRows == 2) tile_load<5>(left.tiles + left.beside + part * kPartBytes, 64);
  };
  const auto load_right = [&](int part) __attribute__((always_inline)) {
    tile_load<6>(right.tiles + part * kPartBytes, 64);
    if constexpr (kCols == 2) tile_load<7>(right.tiles + right.beside + part * kPartBytes, 64);
  };
  const auto multiply = [&]() __attribute__((always_inline)) {
    tile_multiply<0, 4, 6>();
    if constexpr (kCols == 2) tile_multiply<1, 4, 7>();
    if constexpr (kRows == 2) tile_multiply<2, 5, 6>();
    if constexpr (kRows == 2 && kCols == 2) tile_multiply<3, 5, 7>();
    beside.next();
  };
  if constexpr (kAdd) {
    tile_load<0>(out[0], row_bytes);
    if constexpr (kCols == 2) tile_load<1>(out[0] + 64, row_bytes);
    if constexpr (kRows == 2) tile_load<2>(out[1], row_bytes);
    if constexpr (kRows == 2 && kCols == 2) tile_load<3>(out[1] + 64, row_bytes);
  } else {
    for_tiles<0, 4>([](auto tile) { tile_zero<decltype(tile)::value>(); });
  }
  for (; steps > 0; --steps, left.tiles += left.step, right.tiles += right.step) {
    load_left(2);
    load_right(0);
    multiply();
    load_left(1);
    multiply();
    load_right(1);
    multiply();
    load_left(0);
    multiply();
    load_right(2);
    multiply();
    load_right(0);
    multiply();
  }
  tile_store<0>(out[0], row_bytes);
  if constexpr (kCols == 2) tile_store<1>(out[0] + 64, row_bytes);
  if constexpr (kRows == 2) tile_store<2>(out[1], row_bytes);
  if constexpr (kRows == 2 && kCols == 2) tile_store<3>(out[1] + 64, row_bytes);
}

}  // namespace
}  // namespace headway
