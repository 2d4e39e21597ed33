// Cosine and sine of many angles at once: without branches, in integer and floating-point operations that compilers turn
// into vectors. std::sin and std::cos, one angle after the other, take longer than the rest of a rotary embedding.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace headway {

// Angles up to this size are made by cosine_and_sine, others by the standard library.
inline constexpr double kLargestAngle = 1048576;  // 2^20

// Cosine and sine of |angle| <= kLargestAngle, to 2e-16. The angle less n quarter turns, n = the nearest whole number,
// in three steps: the first two products with n (20 bits) are exact, a quarter turn's first parts having 33 bits. Then
// the first terms of the Taylor series, which leave 1e-18 on |r| <= pi / 4. NaN stays NaN.
inline void cosine_and_sine(double angle, double& cosine, double& sine) {
  constexpr double kShift = 0x1.8p52;  // added, it leaves the nearest whole number in the low bits
  const double shifted = angle * 0x1.45f306dc9c883p-1 + kShift;  // 2 / pi
  const double n = shifted - kShift;
  const double r = ((angle - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
  const double z = r * r;
  double odd = 0x1.952c77030ad4ap-49;  // 1 / 17!
  odd = odd * z - 0x1.ae7f3e733b81fp-41;
  odd = odd * z + 0x1.6124613a86d09p-33;
  odd = odd * z - 0x1.ae64567f544e4p-26;
  odd = odd * z + 0x1.71de3a556c734p-19;
  odd = odd * z - 0x1.a01a01a01a01ap-13;
  odd = odd * z + 0x1.1111111111111p-7;
  odd = odd * z - 0x1.5555555555555p-3;
  const double sine_of_r = r + r * z * odd;
  double even = 0x1.ae7f3e733b81fp-45;  // 1 / 16!
  even = even * z - 0x1.93974a8c07c9dp-37;
  even = even * z + 0x1.1eed8eff8d898p-29;
  even = even * z - 0x1.27e4fb7789f5cp-22;
  even = even * z + 0x1.a01a01a01a01ap-16;
  even = even * z - 0x1.6c16c16c16c17p-10;
  even = even * z + 0x1.5555555555555p-5;
  const double cosine_of_r = 1 - (z * 0.5 - z * z * even);

  // An odd n changes the two over; n = 2, 3 (mod 4) turns the sine's sign, n = 1, 2 the cosine's.
  const auto quarters = std::bit_cast<std::uint64_t>(shifted);
  const std::uint64_t change = 0 - (quarters & 1);
  const auto c = std::bit_cast<std::uint64_t>(cosine_of_r), s = std::bit_cast<std::uint64_t>(sine_of_r);
  cosine = std::bit_cast<double>(((c & ~change) | (s & change)) ^ (((quarters + 1) & 2) << 62));
  sine = std::bit_cast<double>(((s & ~change) | (c & change)) ^ ((quarters & 2) << 62));
}

}  // namespace headway
