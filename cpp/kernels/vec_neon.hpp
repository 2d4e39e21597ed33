// The vector wrapper for neon: the Advanced SIMD of every 64-bit ARM CPU, without any extension. 32 registers of 128 bits.
// Register budget of a score tile: 4 x 4 accumulators, 4 lane vectors, 4 broadcasts: 24 of 32; of a context tile:
// 6 x 4 accumulators, 4 lane vectors, 1 broadcast: 29 of 32; of a projection: 8 x 3, 3 and 1: 28 of 32. A broadcast need
// not be made: the multiply-add takes one lane of a register for all of its own.
#pragma once

#include <arm_neon.h>

#include "elements.hpp"

namespace headway {
namespace {

// As many numbers of 64 bits as fit a register, and the products of their lower halves.
typedef std::uint64_t WideWords __attribute__((vector_size(16)));
[[maybe_unused]] inline WideWords multiply_low(WideWords a, WideWords b) {
  const auto low = [](WideWords x) { return vmovn_u64(reinterpret_cast<uint64x2_t>(x)); };
  return reinterpret_cast<WideWords>(vmull_u32(low(a), low(b)));
}

struct VecF32 {
  using Real = float;
  using Vec = float32x4_t;
  using Mask = uint32x4_t;  // all bits of a lane set or clear
  static constexpr int kLanes = 4;
  static constexpr int kPanelVecs = 4;             // vectors of queries in a panel
  static constexpr int kAccumulators = 16;         // of a score tile
  static constexpr int kContextAccumulators = 24;  // of a context tile

  static Vec zero() { return vdupq_n_f32(0); }
  static Vec set1(Real x) { return vdupq_n_f32(x); }
  static Vec load(const Real* p) { return vld1q_f32(p); }
  static Vec load_unaligned(const Real* p) { return vld1q_f32(p); }
  static Vec load(const Half* p) { return from_half(vld1_u16(&p->bits)); }
  static Vec load(const BFloat16* p) { return from_upper(vld1_u16(&p->bits)); }
  static void store(Real* p, Vec x) { vst1q_f32(p, x); }
  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
  static Vec swap_pairs(Vec x) { return vrev64q_f32(x); }  // x1 x0 x3 x2
  static Mask greater(Vec a, Vec b) { return vcgtq_f32(a, b); }
  static Mask not_less(Vec a, Vec b) { return vmvnq_u32(vcltq_f32(a, b)); }  // true for NaN
  static Mask either(Mask a, Mask b) { return vorrq_u32(a, b); }
  static bool any(Mask m) { return vmaxvq_u32(m) != 0; }
  static Vec select(Mask m, Vec a, Vec b) { return vbslq_f32(m, a, b); }
  static Vec max(Vec a, Vec b) { return select(greater(a, b), a, b); }  // b where either is NaN, as on x86
  static Vec min(Vec a, Vec b) { return select(greater(b, a), a, b); }
  static Vec fma_where(Mask m, Vec a, Vec b, Vec c) { return select(m, fma(a, b, c), c); }

  static Mask byte_is_zero(Vec x, int byte) {  // byte 0 is the lowest of each lane
    return vceqzq_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffu << (8 * byte))));
  }

  // x = n + f with n = floor(x) and 0 <= f < 1: returns f (NaN for -inf).
  static Vec fraction(Vec x) { return vsubq_f32(x, vrndmq_f32(x)); }
  static Vec rest(Vec x) { return vsubq_f32(x, vrndnq_f32(x)); }
  // p * 2^floor(x) where m, else 0. Adding 1.5 * 2^23 + 127 leaves floor(x) + 127 in the low bits; the product,
  // unlike a sum of exponents, keeps NaN.
  static Vec scale_pow2(Mask m, Vec p, Vec x) {
    const Vec shifted = vaddq_f32(vrndmq_f32(x), vdupq_n_f32(12582912.0f + 127.0f));
    const Vec power = vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23));
    return vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(vmulq_f32(p, power))));
  }

  // a0 b0 a1 b1; a2 b2 a3 b3.
  static Vec zip_low(Vec a, Vec b) { return vzip1q_f32(a, b); }
  static Vec zip_high(Vec a, Vec b) { return vzip2q_f32(a, b); }

  // 16 bits in each lane: a binary16, the upper half of a binary32.
  static Vec from_half(uint16x4_t bits) { return vcvt_f32_f16(vreinterpret_f16_u16(bits)); }
  static Vec from_upper(uint16x4_t bits) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(bits), 16)); }

  // The first n of four numbers of 16 or of 8 bits; the other lanes are 0.
  static uint16x4_t load_16bit(const std::uint16_t* p, int n) {
    if (n == kLanes) return vld1_u16(p);
    uint16x4_t x = vdup_n_u16(0);
    if (n > 0) x = vld1_lane_u16(p, x, 0);
    if (n > 1) x = vld1_lane_u16(p + 1, x, 1);
    if (n > 2) x = vld1_lane_u16(p + 2, x, 2);
    return x;
  }
  template <class Element>
  static uint8x8_t load_8bit(const Element* p, int n) {
    std::uint32_t word = 0;
    if (n == kLanes) {
      __builtin_memcpy(&word, p, sizeof word);
    } else {
      __builtin_memcpy(&word, p, static_cast<std::size_t>(n));
    }
    return vreinterpret_u8_u32(vdup_n_u32(word));
  }
  static void store_16bit(std::uint16_t* p, uint16x4_t x, int n) {
    if (n == kLanes) return vst1_u16(p, x);
    if (n > 0) vst1_lane_u16(p, x, 0);
    if (n > 1) vst1_lane_u16(p + 1, x, 1);
    if (n > 2) vst1_lane_u16(p + 2, x, 2);
  }

  // The first n elements, widened; the other lanes are 0.
  static Vec load_elements(const float* p, int n) {
    if (n == kLanes) {
      Vec x;
      __builtin_memcpy(&x, p, sizeof x);  // the bytes may be those of narrower elements, see part
      return x;
    }
    Vec x = zero();
    if (n > 0) x = vld1q_lane_f32(p, x, 0);
    if (n > 1) x = vld1q_lane_f32(p + 1, x, 1);
    if (n > 2) x = vld1q_lane_f32(p + 2, x, 2);
    return x;
  }
  static Vec load_elements(const Half* p, int n) { return from_half(load_16bit(&p->bits, n)); }
  static Vec load_elements(const BFloat16* p, int n) { return from_upper(load_16bit(&p->bits, n)); }
  static Vec load_elements(const Int8* p, int n) {
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_8bit(p, n))))));
  }
  static Vec load_elements(const Float8* p, int n) {  // see widen: the bits of a binary16, NaN apart
    const uint16x4_t bits = vget_low_u16(vmovl_u8(load_8bit(p, n))), most = vdup_n_u16(0x7f);
    const uint16x4_t magnitude = vand_u16(bits, most), sign = vshl_n_u16(veor_u16(bits, magnitude), 8);
    const Vec x = vmulq_f32(from_half(vorr_u16(sign, vshl_n_u16(magnitude, 7))), vdupq_n_f32(256));
    const int32x4_t is_nan = vmovl_s16(vreinterpret_s16_u16(vceq_u16(magnitude, most)));
    return vreinterpretq_f32_s32(vorrq_s32(vreinterpretq_s32_f32(x), is_nan));  // all bits set is a NaN
  }
  // Part i of each number of 32 bits, widened: parts lie side by side, the lowest first.
  static Vec part(Vec words, Int8, int i) {
    return vcvtq_f32_s32(vreinterpretq_s32_f32(words) << (24 - 8 * i) >> 24);
  }
  static Vec part(Vec words, BFloat16, int i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(words);
    return vreinterpretq_f32_u32(i == 0 ? vshlq_n_u32(bits, 16) : vandq_u32(bits, vdupq_n_u32(0xffff0000u)));
  }
  // The first n lanes, rounded to nearest even.
  static void store_elements(float* p, Vec x, int n) {
    if (n == kLanes) return vst1q_f32(p, x);
    if (n > 0) vst1q_lane_f32(p, x, 0);
    if (n > 1) vst1q_lane_f32(p + 1, x, 1);
    if (n > 2) vst1q_lane_f32(p + 2, x, 2);
  }
  static void store_elements(Half* p, Vec x, int n) { store_16bit(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x)), n); }
  static void store_elements(BFloat16* p, Vec x, int n) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x), upper = vshrq_n_u32(bits, 16);
    const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    const uint32x4_t quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
    store_16bit(&p->bits, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet)), n);
  }
};

struct VecF64 {
  using Real = double;
  using Vec = float64x2_t;
  using Mask = uint64x2_t;
  static constexpr int kLanes = 2;
  static constexpr int kPanelVecs = 4;
  static constexpr int kAccumulators = 16;
  static constexpr int kContextAccumulators = 24;

  static Vec zero() { return vdupq_n_f64(0); }
  static Vec set1(Real x) { return vdupq_n_f64(x); }
  static Vec load(const Real* p) { return vld1q_f64(p); }
  static Vec load_unaligned(const Real* p) { return vld1q_f64(p); }
  static void store(Real* p, Vec x) { vst1q_f64(p, x); }
  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f64(c, a, b); }
  static Vec add(Vec a, Vec b) { return vaddq_f64(a, b); }
  static Vec sub(Vec a, Vec b) { return vsubq_f64(a, b); }
  static Vec mul(Vec a, Vec b) { return vmulq_f64(a, b); }
  static Vec div(Vec a, Vec b) { return vdivq_f64(a, b); }
  static Vec swap_pairs(Vec x) { return vextq_f64(x, x, 1); }
  static Mask greater(Vec a, Vec b) { return vcgtq_f64(a, b); }
  static Mask not_less(Vec a, Vec b) { return vceqzq_u64(vcltq_f64(a, b)); }
  static Mask either(Mask a, Mask b) { return vorrq_u64(a, b); }
  static bool any(Mask m) { return vmaxvq_u32(vreinterpretq_u32_u64(m)) != 0; }
  static Vec select(Mask m, Vec a, Vec b) { return vbslq_f64(m, a, b); }
  static Vec max(Vec a, Vec b) { return select(greater(a, b), a, b); }
  static Vec min(Vec a, Vec b) { return select(greater(b, a), a, b); }
  static Vec fma_where(Mask m, Vec a, Vec b, Vec c) { return select(m, fma(a, b, c), c); }
  static Mask byte_is_zero(Vec x, int byte) {
    return vceqzq_u64(vandq_u64(vreinterpretq_u64_f64(x), vdupq_n_u64(std::uint64_t{0xff} << (8 * byte))));
  }
  static Vec fraction(Vec x) { return vsubq_f64(x, vrndmq_f64(x)); }
  static Vec rest(Vec x) { return vsubq_f64(x, vrndnq_f64(x)); }
  static Vec scale_pow2(Mask m, Vec p, Vec x) {  // as above, with 1.5 * 2^52 + 1023
    const Vec shifted = vaddq_f64(vrndmq_f64(x), vdupq_n_f64(6755399441055744.0 + 1023.0));
    const Vec power = vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(shifted), 52));
    return vreinterpretq_f64_u64(vandq_u64(m, vreinterpretq_u64_f64(vmulq_f64(p, power))));
  }
  static Vec zip_low(Vec a, Vec b) { return vzip1q_f64(a, b); }
  static Vec zip_high(Vec a, Vec b) { return vzip2q_f64(a, b); }
  static Vec load_elements(const double* p, int n) {
    if (n == kLanes) return vld1q_f64(p);
    return n > 0 ? vld1q_lane_f64(p, zero(), 0) : zero();
  }
  static void store_elements(double* p, Vec x, int n) {
    if (n == kLanes) return vst1q_f64(p, x);
    if (n > 0) vst1q_lane_f64(p, x, 0);
  }
};

}  // namespace
}  // namespace headway
