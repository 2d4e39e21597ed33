// The vector wrapper for avx2: AVX2 + FMA + F16C. 16 registers of 256 bits.
// Register budget of a product tile: 4 x 3 accumulators, 3 lane vectors, 1 broadcast: 16 of 16.
#pragma once

#include <immintrin.h>

#include "elements.hpp"

namespace headway {
namespace {

// As many numbers of 64 bits as fit a register, and the products of their lower halves.
typedef std::uint64_t WideWords __attribute__((vector_size(32)));
[[maybe_unused]] inline WideWords multiply_low(WideWords a, WideWords b) {
  return reinterpret_cast<WideWords>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}

struct VecF32 {
  using Real = float;
  using Vec = __m256;
  using Mask = __m256;  // all bits of a lane set or clear
  static constexpr int kLanes = 8;
  static constexpr int kPanelVecs = 3;     // vectors of queries in a panel
  static constexpr int kAccumulators = 12;  // of a score tile
  static constexpr int kContextAccumulators = 12;  // of a context tile

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec set1(Real x) { return _mm256_set1_ps(x); }
  static Vec load(const Real* p) { return _mm256_load_ps(p); }
  static Vec load_unaligned(const Real* p) { return _mm256_loadu_ps(p); }
  static Vec load(const Half* p) { return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec load(const BFloat16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static void store(Real* p, Vec x) { _mm256_store_ps(p, x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec swap_pairs(Vec x) { return _mm256_permute_ps(x, 0xb1); }  // x1 x0 x3 x2 ...
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // b where either is NaN, as in min
  static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  static Mask greater(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static Mask not_less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }  // true for NaN
  static Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  static bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
  static Vec select(Mask m, Vec a, Vec b) { return _mm256_blendv_ps(b, a, m); }
  static Vec fma_where(Mask m, Vec a, Vec b, Vec c) { return select(m, fma(a, b, c), c); }

  static Mask byte_is_zero(Vec x, int byte) {  // byte 0 is the lowest of each lane
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(static_cast<int>(0xffu << (8 * byte))));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, _mm256_setzero_si256()));
  }

  // x = n + f with n = floor(x) and 0 <= f < 1: returns f (NaN for -inf).
  static Vec fraction(Vec x) { return _mm256_sub_ps(x, _mm256_floor_ps(x)); }
  static Vec rest(Vec x) { return _mm256_sub_ps(x, _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
  // p * 2^floor(x) where m, else 0. Adding 1.5 * 2^23 + 127 leaves floor(x) + 127 in the low bits; the product,
  // unlike a sum of exponents, keeps NaN.
  static Vec scale_pow2(Mask m, Vec p, Vec x) {
    const __m256 shifted = _mm256_add_ps(_mm256_floor_ps(x), _mm256_set1_ps(12582912.0f + 127.0f));
    const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
    return _mm256_and_ps(m, _mm256_mul_ps(p, power));
  }

  // Transposes in place: 4 x 4 within the halves of the registers, then halves are exchanged.
  static void transpose(Vec (&r)[kLanes]) {
    Vec t[kLanes];
#pragma GCC unroll 2
    for (int i = 0; i < kLanes; i += 4) {
      const Vec even_low = _mm256_unpacklo_ps(r[i], r[i + 2]), even_high = _mm256_unpackhi_ps(r[i], r[i + 2]);
      const Vec odd_low = _mm256_unpacklo_ps(r[i + 1], r[i + 3]), odd_high = _mm256_unpackhi_ps(r[i + 1], r[i + 3]);
      t[i] = _mm256_unpacklo_ps(even_low, odd_low);
      t[i + 1] = _mm256_unpackhi_ps(even_low, odd_low);
      t[i + 2] = _mm256_unpacklo_ps(even_high, odd_high);
      t[i + 3] = _mm256_unpackhi_ps(even_high, odd_high);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
  }

  // Columns at .. at + 3 of 8 rows -> r[0 .. 3], row i in lane i: the rows are put together in halves while they are
  // loaded, which leaves two rounds of shuffles instead of three.
  static constexpr int kColumns = 4;
  static void load_columns(const float* const (&rows)[kLanes], std::ptrdiff_t at, Vec (&r)[kColumns]) {
    Vec t[kColumns];
#pragma GCC unroll 4
    for (int i = 0; i < kColumns; ++i) {
      t[i] = _mm256_castps128_ps256(_mm_loadu_ps(rows[i] + at));
      t[i] = _mm256_insertf128_ps(t[i], _mm_loadu_ps(rows[4 + i] + at), 1);
    }
    const Vec even_low = _mm256_unpacklo_ps(t[0], t[2]), even_high = _mm256_unpackhi_ps(t[0], t[2]);
    const Vec odd_low = _mm256_unpacklo_ps(t[1], t[3]), odd_high = _mm256_unpackhi_ps(t[1], t[3]);
    r[0] = _mm256_unpacklo_ps(even_low, odd_low);
    r[1] = _mm256_unpackhi_ps(even_low, odd_low);
    r[2] = _mm256_unpacklo_ps(even_high, odd_high);
    r[3] = _mm256_unpackhi_ps(even_high, odd_high);
  }

  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  // The first n of eight 16-bit values; there is no masked load of that width.
  template <class Element>
  static __m128i load_16bit(const Element* p, int n) {
    if (n == kLanes) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    alignas(16) Element padded[kLanes] = {};
    for (int i = 0; i < n; ++i) padded[i] = p[i];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(padded));
  }
  template <class Element>
  static __m128i load_8bit(const Element* p, int n) {
    if (n == kLanes) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    alignas(16) Element padded[2 * kLanes] = {};
    for (int i = 0; i < n; ++i) padded[i] = p[i];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(padded));
  }
  template <class Element>
  static void store_16bit(Element* p, __m128i x, int n) {
    if (n == kLanes) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
    alignas(16) Element padded[kLanes];
    _mm_store_si128(reinterpret_cast<__m128i*>(padded), x);
    for (int i = 0; i < n; ++i) p[i] = padded[i];
  }

  // The first n elements, widened; the other lanes are 0.
  static Vec load_elements(const float* p, int n) {
    return n == kLanes ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first(n));
  }
  static Vec load_elements(const Half* p, int n) { return _mm256_cvtph_ps(load_16bit(p, n)); }
  static Vec load_elements(const BFloat16* p, int n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16bit(p, n)), 16));
  }
  static Vec load_elements(const Int8* p, int n) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8bit(p, n)));
  }
  static Vec load_elements(const Float8* p, int n) {  // see widen: the bits of a binary16, NaN apart
    const __m256i bits = _mm256_cvtepu8_epi32(load_8bit(p, n)), most = _mm256_set1_epi32(0x7f);
    const __m256i magnitude = _mm256_and_si256(bits, most), sign = _mm256_slli_epi32(_mm256_xor_si256(bits, magnitude), 8);
    const __m256i half = _mm256_or_si256(sign, _mm256_slli_epi32(magnitude, 7));
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const Vec x = _mm256_mul_ps(_mm256_cvtph_ps(packed), _mm256_set1_ps(256));
    return _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, most)));  // all bits set is a NaN
  }
  // Part i of each number of 32 bits, widened: parts lie side by side, the lowest first.
  static Vec part(Vec words, Int8, int i) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(_mm256_castps_si256(words), 24 - 8 * i), 24));
  }
  static Vec part(Vec words, BFloat16, int i) {
    const __m256i bits = _mm256_castps_si256(words);
    return _mm256_castsi256_ps(i == 0 ? _mm256_slli_epi32(bits, 16) : _mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)));
  }
  // The first n lanes, rounded to nearest even.
  static void store_elements(float* p, Vec x, int n) {
    if (n == kLanes) return _mm256_storeu_ps(p, x);
    _mm256_maskstore_ps(p, first(n), x);
  }
  static void store_elements(Half* p, Vec x, int n) {
    store_16bit(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
  }
  static void store_elements(BFloat16* p, Vec x, int n) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i wide = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0x08);
    store_16bit(p, _mm256_castsi256_si128(packed), n);
  }
};

struct VecF64 {
  using Real = double;
  using Vec = __m256d;
  using Mask = __m256d;
  static constexpr int kLanes = 4;
  static constexpr int kPanelVecs = 3;
  static constexpr int kAccumulators = 12;  // of a score tile
  static constexpr int kContextAccumulators = 12;  // of a context tile

  static Vec zero() { return _mm256_setzero_pd(); }
  static Vec set1(Real x) { return _mm256_set1_pd(x); }
  static Vec load(const Real* p) { return _mm256_load_pd(p); }
  static Vec load_unaligned(const Real* p) { return _mm256_loadu_pd(p); }
  static void store(Real* p, Vec x) { _mm256_store_pd(p, x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_pd(a, b, c); }
  static Vec add(Vec a, Vec b) { return _mm256_add_pd(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_pd(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_pd(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_pd(a, b); }
  static Vec swap_pairs(Vec x) { return _mm256_permute_pd(x, 0x5); }
  static Vec max(Vec a, Vec b) { return _mm256_max_pd(a, b); }
  static Vec min(Vec a, Vec b) { return _mm256_min_pd(a, b); }
  static Mask greater(Vec a, Vec b) { return _mm256_cmp_pd(a, b, _CMP_GT_OQ); }
  static Mask not_less(Vec a, Vec b) { return _mm256_cmp_pd(a, b, _CMP_NLT_UQ); }
  static Mask either(Mask a, Mask b) { return _mm256_or_pd(a, b); }
  static bool any(Mask m) { return _mm256_movemask_pd(m) != 0; }
  static Vec select(Mask m, Vec a, Vec b) { return _mm256_blendv_pd(b, a, m); }
  static Vec fma_where(Mask m, Vec a, Vec b, Vec c) { return select(m, fma(a, b, c), c); }
  static Mask byte_is_zero(Vec x, int byte) {
    const __m256i bits = _mm256_and_si256(_mm256_castpd_si256(x), _mm256_set1_epi64x(static_cast<long long>(0xffull << (8 * byte))));
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(bits, _mm256_setzero_si256()));
  }
  static Vec fraction(Vec x) { return _mm256_sub_pd(x, _mm256_floor_pd(x)); }
  static Vec rest(Vec x) { return _mm256_sub_pd(x, _mm256_round_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
  static Vec scale_pow2(Mask m, Vec p, Vec x) {  // as above, with 1.5 * 2^52 + 1023
    const __m256d shifted = _mm256_add_pd(_mm256_floor_pd(x), _mm256_set1_pd(6755399441055744.0 + 1023.0));
    const __m256d power = _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(shifted), 52));
    return _mm256_and_pd(m, _mm256_mul_pd(p, power));
  }
  static void transpose(Vec (&r)[kLanes]) {
    Vec t[kLanes];
#pragma GCC unroll 2
    for (int i = 0; i < kLanes; i += 2) {
      t[i] = _mm256_unpacklo_pd(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_pd(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      r[i] = _mm256_permute2f128_pd(t[i], t[i + 2], 0x20);
      r[i + 2] = _mm256_permute2f128_pd(t[i], t[i + 2], 0x31);
    }
  }
  static __m256i first(int n) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)); }
  static Vec load_elements(const double* p, int n) { return _mm256_maskload_pd(p, first(n)); }
  static void store_elements(double* p, Vec x, int n) { _mm256_maskstore_pd(p, first(n), x); }
};

}  // namespace
}  // namespace headway
