// The vector wrapper for any CPU: the compiler's own 128-bit vectors, compiled with the platform's baseline flags.
// Register budget of a product tile on 16 registers: 4 x 2 accumulators, 2 lane vectors, broadcast, product: 12 of 16.
// fma rounds twice: the baseline may have no fused instruction.
#pragma once

#include "elements.hpp"

namespace headway {
namespace {

// As many numbers of 64 bits as fit a register, and the products of their lower halves.
typedef std::uint64_t WideWords __attribute__((vector_size(16)));
[[maybe_unused]] inline WideWords multiply_low(WideWords a, WideWords b) {
  WideWords result;
  for (int i = 0; i < 2; ++i) result[i] = std::uint64_t{static_cast<std::uint32_t>(a[i])} * static_cast<std::uint32_t>(b[i]);
  return result;
}

// What float32 (4 lanes) and float64 (2 lanes) have in common. Int is the integer of the same width.
template <class RealType, class IntType, int kMantissaBits, int kBias>
struct BaselineVec {
  using Real = RealType;
  using Int = IntType;
  typedef Real Vec __attribute__((vector_size(16)));
  typedef Int Mask __attribute__((vector_size(16)));  // all bits of a lane set or clear
  static constexpr int kLanes = 16 / static_cast<int>(sizeof(Real));
  static constexpr int kPanelVecs = 2;  // vectors of queries in a panel
  static constexpr int kAccumulators = 8;  // of a score tile
  static constexpr int kContextAccumulators = 8;  // of a context tile
  static constexpr Real kShift = static_cast<Real>(Int{3} << (kMantissaBits - 1));  // 1.5 * 2^mantissa bits

  static Vec zero() { return Vec{}; }
  static Vec set1(Real x) {
    if constexpr (kLanes == 4) {
      return Vec{x, x, x, x};  // one shuffle; a loop over the lanes becomes several
    } else {
      return Vec{x, x};
    }
  }
  static Vec load(const Real* p) { return *reinterpret_cast<const Vec*>(p); }
  static Vec load_unaligned(const Real* p) {
    Vec x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  template <class Element>
  static Vec load(const Element* p) {
    return load_elements(p, kLanes);
  }
  static void store(Real* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }
  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec sub(Vec a, Vec b) { return a - b; }
  static Vec mul(Vec a, Vec b) { return a * b; }
  static Vec div(Vec a, Vec b) { return a / b; }
  static Mask greater(Vec a, Vec b) { return a > b; }
  static Mask not_less(Vec a, Vec b) { return ~(a < b); }  // true for NaN
  static Mask either(Mask a, Mask b) { return a | b; }
  static bool any(Mask m) {
    Int found = 0;
    for (int i = 0; i < kLanes; ++i) found |= m[i];
    return found != 0;
  }
  static Vec select(Mask m, Vec a, Vec b) {
    return m ? a : b;
  }
  static Mask byte_is_zero(Vec x, int byte) {  // byte 0 is the lowest of each lane
    return (reinterpret_cast<Mask>(x) & (Mask{} + (Int{0xff} << (8 * byte)))) == 0;
  }
  static Vec max(Vec a, Vec b) { return select(a > b, a, b); }  // b where either is NaN, as on x86
  static Vec min(Vec a, Vec b) { return select(b > a, a, b); }
  static Vec fma_where(Mask m, Vec a, Vec b, Vec c) { return select(m, fma(a, b, c), c); }

  // Right for |x| < 2^(mantissa bits - 1); elsewhere some value that the caller masks away.
  static Vec floor(Vec x) {
    const Vec nearest = (x + set1(kShift)) - set1(kShift);
    return select(nearest > x, nearest - set1(1), nearest);
  }
  // x = n + f with n = floor(x) and 0 <= f < 1: returns f.
  static Vec fraction(Vec x) { return x - floor(x); }
  static Vec rest(Vec x) { return x - ((x + set1(kShift)) - set1(kShift)); }
  // p * 2^floor(x) where m, else 0. Adding 1.5 * 2^mantissa + bias leaves floor(x) + bias in the low bits; the
  // product, unlike a sum of exponents, keeps NaN.
  static Vec scale_pow2(Mask m, Vec p, Vec x) {
    const Vec shifted = floor(x) + set1(kShift + kBias);
    const Vec power = reinterpret_cast<Vec>(reinterpret_cast<Mask>(shifted) << kMantissaBits);
    return reinterpret_cast<Vec>(m & reinterpret_cast<Mask>(p * power));
  }

  // x1 x0 x3 x2 ...
  static Vec swap_pairs(Vec x) {
    Vec result;
    for (int i = 0; i < kLanes; ++i) result[i] = x[i ^ 1];
    return result;
  }
  // a0 b0 a1 b1 ... of the lower (upper) halves of a and b.
  static Vec zip_low(Vec a, Vec b) { return zip(a, b, 0); }
  static Vec zip_high(Vec a, Vec b) { return zip(a, b, kLanes / 2); }
  static Vec zip(Vec a, Vec b, int from) {
    Vec result;
    for (int i = 0; i < kLanes / 2; ++i) {
      result[2 * i] = a[from + i];
      result[2 * i + 1] = b[from + i];
    }
    return result;
  }

  // The first n elements, widened; the other lanes are 0.
  template <class Element>
  static Vec load_elements(const Element* p, int n) {
    Vec result{};
    for (int i = 0; i < n; ++i) result[i] = widen(p[i]);
    return result;
  }
  // The first n lanes, rounded to nearest even.
  template <class Element>
  static void store_elements(Element* p, Vec x, int n) {
    for (int i = 0; i < n; ++i) narrow(x[i], p[i]);
  }
};

using VecF32 = BaselineVec<float, std::int32_t, 23, 127>;
using VecF64 = BaselineVec<double, std::int64_t, 52, 1023>;

}  // namespace
}  // namespace headway
