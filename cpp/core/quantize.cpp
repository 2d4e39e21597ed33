#include "quantize.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "parallel.hpp"

namespace headway {
namespace {

constexpr std::int64_t kNumbersPerTask = 1 << 15;
constexpr std::uint32_t kInfinity = 0x7f800000;
constexpr std::uint32_t kMagnitude = 0x7fffffff;

struct Half { std::uint16_t bits; };
struct BFloat16 { std::uint16_t bits; };

// Without branches, so that the compiler makes vectors of the loops below.
inline float widen(float x) { return x; }
inline float widen(BFloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
inline float widen(Half x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;  // exact, for subnormal numbers, too
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t infinite = magnitude >= 0x7c00u ? kInfinity : 0u;
  return std::bit_cast<float>(finite | infinite | std::uint32_t{x.bits & 0x8000u} << 16);
}

// x (width) -> out (width), *scale. In float64, where x / scale is near enough to its true value that it rounds to an
// integer at most 1/2 away.
template <class Element>
void to_int8(const Element* x, std::int8_t* __restrict out, float* scale, std::int64_t width) {
  std::int32_t largest = 0;  // the bits of positive numbers are ordered as the numbers are, NaN above infinity
  for (std::int64_t i = 0; i < width; ++i) {
    const auto magnitude = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(widen(x[i])) & kMagnitude);
    largest = magnitude > largest ? magnitude : largest;
  }
  const bool finite = largest < static_cast<std::int32_t>(kInfinity);
  if (largest == 0 || !finite) {
    std::fill_n(out, width, std::int8_t{0});
    *scale = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    return;
  }
  // Normal, and 127 times it finite: there the division may have rounded up.
  constexpr float kLargestScale = std::bit_cast<float>(std::bit_cast<std::uint32_t>(0x1.fffffep127f / 127.0f) - 1);
  *scale = std::clamp(std::bit_cast<float>(largest) / 127.0f, std::numeric_limits<float>::min(), kLargestScale);
  const double inverse = 1.0 / static_cast<double>(*scale);
  constexpr double kShift = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  for (std::int64_t i = 0; i < width; ++i) {
    const double nearest = (static_cast<double>(widen(x[i])) * inverse + kShift) - kShift;
    out[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(nearest));
  }
}

inline std::uint8_t to_e4m3(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & kMagnitude;
  constexpr std::uint32_t kLargest = std::bit_cast<std::uint32_t>(448.0f);
  constexpr std::uint32_t kNormal = std::bit_cast<std::uint32_t>(0x1p-6f);
  const std::uint32_t m = magnitude < kLargest ? magnitude : kLargest;
  // The exponent's bias falls from 127 to 7, the mantissa keeps 3 of 23 bits.
  const std::uint32_t normal = (m - (120u << 23) + 0x7ffffu + ((m >> 20) & 1u)) >> 20;
  // Below 2^-6: adding 2^14 leaves the number in units of 2^-9, rounded, in the low bits.
  constexpr float kShift = 0x1p14f;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(m) + kShift) - std::bit_cast<std::uint32_t>(kShift);
  // All bits set where the difference is negative: a comparison would become a branch.
  const std::uint32_t small = 0u - ((m - kNormal) >> 31);
  const std::uint32_t nan = (0u - ((kInfinity - 1u - magnitude) >> 31)) & 0x7fu;
  return static_cast<std::uint8_t>((subnormal & small) | (normal & ~small) | nan | ((bits >> 24) & 0x80u));
}

template <class Element>
void to_e4m3(const Element* x, std::uint8_t* __restrict out, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) out[i] = to_e4m3(widen(x[i]));
}

template <class Element>
void quantize_rows(const QuantizeProblem& p, std::int64_t first, std::int64_t count) {
  for (std::int64_t row = first; row < first + count; ++row) {
    const std::int64_t token = row % p.num_tokens, head = row / p.num_tokens % p.num_heads;
    const std::int64_t batch = row / p.num_tokens / p.num_heads;
    const auto offset = [&](const TensorView& view) {
      return batch * view.batch_stride + head * view.head_stride + token * view.token_stride;
    };
    const Element* x = static_cast<const Element*>(p.x.data) + offset(p.x);
    if (p.scales.data != nullptr) {
      to_int8(x, static_cast<std::int8_t*>(p.out.data) + offset(p.out),
              static_cast<float*>(p.scales.data) + offset(p.scales), p.width);
    } else {
      to_e4m3(x, static_cast<std::uint8_t*>(p.out.data) + offset(p.out), p.width);
    }
  }
}

}  // namespace

void quantize(const QuantizeProblem& p, const std::function<bool()>& interrupted) {
  const std::int64_t num_rows = p.batch * p.num_heads * p.num_tokens;
  if (num_rows == 0) return;
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kNumbersPerTask / std::max<std::int64_t>(1, p.width));
  const std::int64_t num_tasks = (num_rows + rows_per_task - 1) / rows_per_task;
  const int threads = static_cast<int>(std::min<std::int64_t>(num_threads(), num_tasks));
  run_tasks(num_tasks, threads, interrupted, [&](std::int64_t index, int, StopFlag&) {
    const std::int64_t first = index * rows_per_task;
    const std::int64_t count = std::min(rows_per_task, num_rows - first);
    switch (p.kind) {
      case ElementKind::kFloat32: return quantize_rows<float>(p, first, count);
      case ElementKind::kFloat16: return quantize_rows<Half>(p, first, count);
      case ElementKind::kBFloat16: return quantize_rows<BFloat16>(p, first, count);
      default: return;  // the caller's fault, see quantize.hpp
    }
  });
}

}  // namespace headway
