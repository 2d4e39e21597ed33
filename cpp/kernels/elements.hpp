// The element types of 8 and 16 bits, and their conversion in plain integer arithmetic for CPUs without an instruction
// for it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headway {
namespace {

struct Half { std::uint16_t bits; };      // IEEE binary16
struct BFloat16 { std::uint16_t bits; };  // upper half of an IEEE binary32
struct Int8 { std::int8_t number; };
struct Float8 { std::uint8_t bits; };      // OCP's E4M3: sign, 4 bits of exponent (bias 7), 3 of fraction; no infinities

// Whether a scale goes with each row of such elements.
template <class Element>
inline constexpr bool kHasScales = __is_same(Element, Int8);

[[maybe_unused]] inline float float_from_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

[[maybe_unused]] inline std::uint32_t bits_from_float(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

[[maybe_unused]] inline float widen(float x) { return x; }
[[maybe_unused]] inline double widen(double x) { return x; }
[[maybe_unused]] inline float widen(BFloat16 x) { return float_from_bits(std::uint32_t{x.bits} << 16); }

[[maybe_unused]] inline float widen(Half x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return float_from_bits(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;  // exact
  return float_from_bits(sign | bits_from_float(subnormal));
}

[[maybe_unused]] inline float widen(Int8 x) { return x.number; }

// The bits of a binary16 2^8 times smaller.
[[maybe_unused]] inline float widen(Float8 x) {
  const std::uint32_t magnitude = x.bits & 0x7fu, sign = std::uint32_t{x.bits & 0x80u} << 8;
  if (magnitude == 0x7fu) return float_from_bits(sign << 16 | 0x7fc00000u);
  return widen(Half{static_cast<std::uint16_t>(sign | magnitude << 7)}) * 256;
}

// Rounding is to nearest, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
[[maybe_unused]] inline void narrow(float x, float& out) { out = x; }
[[maybe_unused]] inline void narrow(double x, double& out) { out = x; }

[[maybe_unused]] inline void narrow(float x, BFloat16& out) {
  const std::uint32_t bits = bits_from_float(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}

[[maybe_unused]] inline void narrow(float x, Half& out) {
  const std::uint32_t bits = bits_from_float(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // NaN
  } else if (magnitude >= 0x477ff000u) {
    result = 0x7c00u;  // 65520 and above round to infinity
  } else if (magnitude >= 0x38800000u) {
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    result = (rounded - 0x38000000u) >> 13;
  } else {
    // Subnormal result: adding 0.5 leaves the value in units of 2^-24, rounded, in the low bits.
    result = bits_from_float(float_from_bits(magnitude) + 0.5f) - bits_from_float(0.5f);
  }
  out.bits = static_cast<std::uint16_t>(sign | result);
}

}  // namespace
}  // namespace headway
