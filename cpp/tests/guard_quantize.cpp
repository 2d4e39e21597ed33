// The cases of the guard-page executable for numbers of 8 bits: those to be rounded, the results and the scales each
// between unreadable pages, of every width, rows with and without a gap.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "../core/quantize.hpp"
#include "guarded.hpp"

namespace headway {
namespace {

constexpr std::int64_t kHeads = 2, kTokens = 3;

// The smallest distance of x from a finite number of e4m3fn.
double least_error(double x) {
  double least = std::numeric_limits<double>::infinity();
  for (int bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7f) == 0x7f) continue;
    const double number = static_cast<double>(widen(Float8{static_cast<std::uint8_t>(bits)}));
    least = std::min(least, std::abs(number - x));
  }
  return least;
}

// Of one row, whose numbers are as they should be.
bool is_good(const char* x, ElementKind kind, const char* out, const float* scale, std::int64_t width) {
  double largest = 0;
  bool finite = true;
  for (std::int64_t d = 0; d < width; ++d) {
    largest = std::max(largest, std::abs(read(x, kind, d)));
    finite = finite && std::isfinite(read(x, kind, d));
  }
  if (scale != nullptr) {
    if (!finite) return std::isnan(*scale);
    const double step = static_cast<double>(*scale);
    if (std::abs(step - largest / 127) > 1e-7 * largest) return false;
    for (std::int64_t d = 0; d < width; ++d) {
      if (std::abs(read(out, ElementKind::kInt8, d) * step - read(x, kind, d)) > step / 2) return false;
    }
    return true;
  }
  for (std::int64_t d = 0; d < width; ++d) {
    const double given = read(x, kind, d), got = read(out, ElementKind::kFloat8, d);
    if (!std::isfinite(given) ? !std::isnan(got) : std::abs(got - given) > least_error(given)) return false;
  }
  return true;
}

bool run(std::int64_t width, std::int64_t gap, ElementKind kind, bool scaled, bool at_end) {
  const std::int64_t rows = kHeads * kTokens, step = width + gap, count = rows * step - gap;
  const auto bytes = [](std::int64_t n, std::size_t each) { return static_cast<std::size_t>(n) * each; };
  const Guarded x(bytes(count, element_size(kind)), at_end), out(bytes(count, 1), at_end);
  const Guarded scales(bytes(rows, sizeof(float)), at_end);
  fill(x.data(), kind, count, 7);
  for (std::int64_t d = 0; d < width; ++d) {  // a row of zeros, one of small numbers, one of numbers of all sizes
    const double number = read(x.data(), kind, d);
    write(x.data(), kind, d, 0);
    write(x.data(), kind, step + d, std::ldexp(number, -9));
    write(x.data(), kind, 2 * step + d, std::ldexp(number, static_cast<int>(d % 25 - 12)));
  }
  write(x.data(), kind, 4 * step + width / 2, std::numeric_limits<double>::infinity());
  write(x.data(), kind, 5 * step + width - 1, std::numeric_limits<double>::quiet_NaN());

  QuantizeProblem p{};
  p.kind = kind;
  p.batch = 1;
  p.num_heads = kHeads;
  p.num_tokens = kTokens;
  p.width = width;
  p.x = {x.data(), 0, kTokens * step, step};
  p.out = {out.data(), 0, kTokens * step, step};
  if (scaled) p.scales = {scales.data(), 0, kTokens, 1};
  quantize(p, [] { return false; });

  const auto size = static_cast<std::int64_t>(element_size(kind));
  const auto* scale = reinterpret_cast<const float*>(scales.data());
  bool good = true;
  for (std::int64_t row = 0; row < rows; ++row) {
    const char *from = x.data() + row * step * size, *to = out.data() + row * step;
    good = good && is_good(from, kind, to, scaled ? scale + row : nullptr, width);
  }
  if (good) return true;
  std::printf("FAILED quantize kind %d width %d gap %d scaled %d\n", static_cast<int>(kind), static_cast<int>(width),
              static_cast<int>(gap), scaled);
  return false;
}

}  // namespace

void run_quantize(ElementKind kind, bool at_end, Tally& tally) {
  if (kind == ElementKind::kFloat64) return;
  for (const bool scaled : {true, false}) {
    for (std::int64_t width = 1; width <= 70; ++width) {
      for (const std::int64_t gap : {0, 3}) tally.count([&] { return run(width, gap, kind, scaled, at_end); });
    }
    tally.count([&] { return run(9000, 0, kind, scaled, at_end); });  // each task a few rows
  }
}

}  // namespace headway
