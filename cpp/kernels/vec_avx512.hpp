// The vector wrapper for avx512: AVX-512 F + BW + DQ + VL. 32 registers of 512 bits.
// Register budget of a product tile: 4 x 4 accumulators, 4 lane vectors, 1 broadcast (folded into the FMA): 21 of 32;
// of a context tile: 6 x 4 accumulators, 4 lane vectors, 1 broadcast: 29 of 32; of a projection's: 8 x 3, 3, 1: 28.
#pragma once

#include <immintrin.h>

#include "elements.hpp"

namespace headway {
namespace {

// As many numbers of 64 bits as fit a register, and the products of their lower halves.
typedef std::uint64_t WideWords __attribute__((vector_size(64)));
[[maybe_unused]] inline WideWords multiply_low(WideWords a, WideWords b) {
  return reinterpret_cast<WideWords>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}

struct VecF32 {
  using Real = float;
  using Vec = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  static constexpr int kPanelVecs = 4;     // vectors of queries in a panel
  static constexpr int kAccumulators = 16;  // of a score tile
  static constexpr int kContextAccumulators = 24;  // of a context tile

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec set1(Real x) { return _mm512_set1_ps(x); }
  static Vec load(const Real* p) { return _mm512_load_ps(p); }
  static Vec load_unaligned(const Real* p) { return _mm512_loadu_ps(p); }
  static Vec load(const Half* p) { return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p))); }
  static Vec load(const BFloat16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static void store(Real* p, Vec x) { _mm512_store_ps(p, x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec mul_unless_below(Vec least, Vec a, Vec b) {  // 0 where |a| < least
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(a), least, _CMP_NLT_UQ), a, b);
  }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  // a / b where b and 1 / b are normal numbers: by 14 bits of 1 / b, and what is left by them once more.
  static Vec quotient(Vec a, Vec b) {
    const Vec inverse = _mm512_rcp14_ps(b), first = mul(a, inverse);
    return fma(_mm512_fnmadd_ps(b, first, a), inverse, first);
  }
  static Vec swap_pairs(Vec x) { return _mm512_permute_ps(x, 0xb1); }  // x1 x0 x3 x2 ...
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where either is NaN, as in min
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static Mask greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static Mask not_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }  // true for NaN
  static Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  static bool any(Mask m) { return m != 0; }
  static Vec select(Mask m, Vec a, Vec b) { return _mm512_mask_mov_ps(b, m, a); }
  static Vec fma_where(Mask m, Vec a, Vec b, Vec c) { return _mm512_mask3_fmadd_ps(a, b, c, m); }  // else c

  static Mask byte_is_zero(Vec x, int byte) {  // byte 0 is the lowest of each lane
    return _mm512_testn_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffu << (8 * byte))));
  }

  // x = n + f with n = floor(x) and 0 <= f < 1: returns f (0 for -inf).
  static Vec fraction(Vec x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  // x - n with n the whole number nearest to x, for numbers far below 2^20.
  static Vec rest(Vec x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // p * 2^floor(x) where m, else 0.
  static Vec scale_pow2(Mask m, Vec p, Vec x) { return _mm512_maskz_scalef_ps(m, p, x); }

  // a0 b0 a1 b1 ... of the lower (upper) halves of a and b.
  static Vec zip_low(Vec a, Vec b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
  }
  static Vec zip_high(Vec a, Vec b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
  }

  // Quarters of 128 bits: first the (4, 4) matrices of numbers in four rows each, then the quarters of every fourth row.
  static void transpose(Vec (&r)[kLanes]) {
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; i += 4) {
      const Vec even_low = _mm512_unpacklo_ps(r[i], r[i + 2]), even_high = _mm512_unpackhi_ps(r[i], r[i + 2]);
      const Vec odd_low = _mm512_unpacklo_ps(r[i + 1], r[i + 3]), odd_high = _mm512_unpackhi_ps(r[i + 1], r[i + 3]);
      r[i] = _mm512_unpacklo_ps(even_low, odd_low);
      r[i + 1] = _mm512_unpackhi_ps(even_low, odd_low);
      r[i + 2] = _mm512_unpacklo_ps(even_high, odd_high);
      r[i + 3] = _mm512_unpackhi_ps(even_high, odd_high);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec a = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x44), b = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xee);
      const Vec c = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x44), d = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xee);
      r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      r[i + 4] = _mm512_shuffle_f32x4(a, c, 0xdd);
      r[i + 8] = _mm512_shuffle_f32x4(b, d, 0x88);
      r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }

  // Columns at .. at + 3 of 16 rows -> r[0 .. 3], row i in lane i. The rows are put together in quarters while they are
  // loaded, which leaves two rounds of shuffles instead of four.
  static constexpr int kColumns = 4;
  static void load_columns(const float* const (&rows)[kLanes], std::ptrdiff_t at, Vec (&r)[kColumns]) {
    Vec t[kColumns];
#pragma GCC unroll 4
    for (int i = 0; i < kColumns; ++i) {
      t[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + at));
      t[i] = _mm512_insertf32x4(t[i], _mm_loadu_ps(rows[4 + i] + at), 1);
      t[i] = _mm512_insertf32x4(t[i], _mm_loadu_ps(rows[8 + i] + at), 2);
      t[i] = _mm512_insertf32x4(t[i], _mm_loadu_ps(rows[12 + i] + at), 3);
    }
    const Vec even_low = _mm512_unpacklo_ps(t[0], t[2]), even_high = _mm512_unpackhi_ps(t[0], t[2]);
    const Vec odd_low = _mm512_unpacklo_ps(t[1], t[3]), odd_high = _mm512_unpackhi_ps(t[1], t[3]);
    r[0] = _mm512_unpacklo_ps(even_low, odd_low);
    r[1] = _mm512_unpackhi_ps(even_low, odd_low);
    r[2] = _mm512_unpacklo_ps(even_high, odd_high);
    r[3] = _mm512_unpackhi_ps(even_high, odd_high);
  }

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

  // The first n elements, widened; the other lanes are 0.
  static Vec load_elements(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static Vec load_elements(const Half* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
  static Vec load_elements(const BFloat16* p, int n) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static Vec load_elements(const Int8* p, int n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)));
  }
  static Vec load_elements(const Float8* p, int n) {  // see widen: the bits of a binary16, NaN apart
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_maskz_loadu_epi8(first(n), p)), 8);  // sign, 4, 3
    const __m256i top = _mm256_set1_epi16(0x4000);  // of the exponent: set for NaN alone, whose other bits carry into it
    const __m256i half = _mm256_andnot_si256(top, _mm256_srai_epi16(wide, 1));
    const __m256i nan = _mm256_and_si256(_mm256_add_epi16(half, _mm256_set1_epi16(0x80)), top);
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, nan)), _mm512_set1_ps(256));
  }
  // Part i of each number of 32 bits, widened: parts lie side by side, the lowest first.
  static Vec part(Vec words, Int8, int i) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(_mm512_castps_si512(words), 24 - 8 * i), 24));
  }
  static Vec part(Vec words, BFloat16, int i) {
    const __m512i bits = _mm512_castps_si512(words);
    return _mm512_castsi512_ps(i == 0 ? _mm512_slli_epi32(bits, 16) : _mm512_and_si512(bits, _mm512_set1_epi32(-0x10000)));
  }
  // The first n lanes, rounded to nearest even.
  static void store_elements(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static void store_elements(Half* p, Vec x, int n) {
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_elements(BFloat16* p, Vec x, int n) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtepi32_epi16(rounded));
  }
};

struct VecF64 {
  using Real = double;
  using Vec = __m512d;
  using Mask = __mmask8;
  static constexpr int kLanes = 8;
  static constexpr int kPanelVecs = 4;
  static constexpr int kAccumulators = 16;  // of a score tile
  static constexpr int kContextAccumulators = 24;  // of a context tile

  static Vec zero() { return _mm512_setzero_pd(); }
  static Vec set1(Real x) { return _mm512_set1_pd(x); }
  static Vec load(const Real* p) { return _mm512_load_pd(p); }
  static Vec load_unaligned(const Real* p) { return _mm512_loadu_pd(p); }
  static void store(Real* p, Vec x) { _mm512_store_pd(p, x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_pd(a, b, c); }
  static Vec add(Vec a, Vec b) { return _mm512_add_pd(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_pd(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_pd(a, b); }
  static Vec mul_unless_below(Vec least, Vec a, Vec b) {  // 0 where |a| < least
    return _mm512_maskz_mul_pd(_mm512_cmp_pd_mask(_mm512_abs_pd(a), least, _CMP_NLT_UQ), a, b);
  }
  static Vec div(Vec a, Vec b) { return _mm512_div_pd(a, b); }
  static Vec swap_pairs(Vec x) { return _mm512_permute_pd(x, 0x55); }
  static Vec max(Vec a, Vec b) { return _mm512_max_pd(a, b); }
  static Vec min(Vec a, Vec b) { return _mm512_min_pd(a, b); }
  static Mask greater(Vec a, Vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ); }
  static Mask not_less(Vec a, Vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_NLT_UQ); }
  static Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  static bool any(Mask m) { return m != 0; }
  static Vec select(Mask m, Vec a, Vec b) { return _mm512_mask_mov_pd(b, m, a); }
  static Vec fma_where(Mask m, Vec a, Vec b, Vec c) { return _mm512_mask3_fmadd_pd(a, b, c, m); }
  static Mask byte_is_zero(Vec x, int byte) {
    return _mm512_testn_epi64_mask(_mm512_castpd_si512(x), _mm512_set1_epi64(static_cast<long long>(0xffull << (8 * byte))));
  }
  static Vec fraction(Vec x) { return _mm512_reduce_pd(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static Vec rest(Vec x) { return _mm512_reduce_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Vec scale_pow2(Mask m, Vec p, Vec x) { return _mm512_maskz_scalef_pd(m, p, x); }
  static Vec zip_low(Vec a, Vec b) {
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b);
  }
  static Vec zip_high(Vec a, Vec b) {
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b);
  }
  static __mmask8 first(int n) { return static_cast<__mmask8>((1u << n) - 1u); }
  static Vec load_elements(const double* p, int n) { return _mm512_maskz_loadu_pd(first(n), p); }
  static void store_elements(double* p, Vec x, int n) { _mm512_mask_storeu_pd(p, first(n), x); }
};

}  // namespace
}  // namespace headway
