// What plain loops over ordinary numbers do not show, on every ISA of the build: all numbers of 16 and 8 bits and how they
// are rounded, exp and tanh over their range, NaN and infinities, the bits of a row in whatever company, and the caller's
// floating-point mode.
//
//   numbers [ISA ...]
#include "numbers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../core/parallel.hpp"
#include "../core/projection.hpp"
#include "../core/rotary.hpp"

namespace headway {
namespace {

constexpr std::int64_t kPatterns = 65536;  // of 16 bits

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// x, rounded to the nearest number of the kind, ties to even: by division, not by bits.
double rounded(double x, ElementKind kind) {
  const int digits = kind == ElementKind::kFloat16 ? 11 : 8, least = kind == ElementKind::kFloat16 ? -14 : -126;
  const double limit = kind == ElementKind::kFloat16 ? 0x1p16 : 0x1p128;
  if (x == 0 || !std::isfinite(x)) return x;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), least) - digits + 1);
  const double result = std::nearbyint(x / unit) * unit;
  return std::abs(result) < limit ? result : std::copysign(std::numeric_limits<double>::infinity(), x);
}

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> patterns(kPatterns);
  for (std::int64_t i = 0; i < kPatterns; ++i) patterns[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
  return patterns;
}

// factor (1, 1) times every number: of 16 bits each, so that the product is exact before it is rounded once.
void check_products(ElementKind kind, Report& report) {
  const auto patterns = all_patterns();
  const auto* all = reinterpret_cast<const char*>(patterns.data());
  Projection projection(kind, all, false, nullptr, 1, kPatterns);
  std::vector<char> out(kPatterns * 4), factor(8);
  const double least = multiplies_pairs(kind) ? 0x1p-126 : 0;  // what is nearer to 0 may count for 0
  for (const double wanted_factor : {1.0, 1.0009765625, 0.3, 3.0, 0x1p-15, -0.7}) {
    write(factor.data(), kind, 0, wanted_factor);
    const double f = read(factor.data(), kind, 0);
    for (const bool wide : {true, false}) {
      projection.multiply({factor.data(), out.data(), {{1, 1, kPatterns}}, wide}, kNever);
      std::int64_t bad = 0;
      for (std::int64_t i = 0; i < kPatterns; ++i) {
        const double x = read(all, kind, i), product = x * f;
        // Products that no float32 holds exactly are rounded twice: they are left to others.
        if (std::isfinite(product) && product != 0 && (std::abs(product) < 0x1p-110 || std::abs(product) > 0x1p127)) continue;
        if (std::abs(x) < least) continue;
        const double got = read(out.data(), wide ? ElementKind::kFloat32 : kind, i);
        bad += !same(got, wide ? product : rounded(product, kind));
      }
      report.check(bad == 0, wide ? "products" : "rounded products", kind, static_cast<double>(bad));
    }
  }
}

// Rows that are turned by no angle: loads and stores of whole vectors, and of every shorter piece.
void check_rows(ElementKind kind, Report& report) {
  const auto patterns = all_patterns();
  const double no_angle[8] = {};
  for (const std::int64_t pairs : {1, 2, 3, 4, 5, 6, 7, 8}) {
    // Half-split pairs of a number and 0: the first half comes out as it went in.
    const std::int64_t tokens = kPatterns / pairs, width = 2 * pairs;
    std::vector<std::uint16_t> x(static_cast<std::size_t>(tokens * width), 0), out(x.size(), 1);
    for (std::int64_t i = 0; i < tokens * pairs; ++i) {
      x[static_cast<std::size_t>(i / pairs * width + i % pairs)] = patterns[static_cast<std::size_t>(i)];
    }
    RotaryProblem p{};
    p.kind = kind;
    p.batch = p.num_heads = 1;
    p.num_tokens = tokens;
    p.head_dim = width;
    p.x = {x.data(), 0, 0, width};
    p.out = {out.data(), 0, 0, width};
    p.num_pairs = pairs;
    p.frequencies = no_angle;
    p.factor = 1;
    rotary_embedding(p, kNever);
    std::int64_t bad = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t d = 0; d < pairs; ++d) {
        bad += !same(read(reinterpret_cast<const char*>(x.data()), kind, t * width + d),
                     read(reinterpret_cast<const char*>(out.data()), kind, t * width + d));
      }
    }
    report.check(bad == 0, "rows of pairs", kind, static_cast<double>(bad));
  }
}

// A single key has weight 1: the context is its value, all 256 numbers of 8 bits beside each other, and some of them.
void check_cache(ElementKind key_kind, Report& report) {
  for (const std::int64_t width : {256, 255, 130, 65, 7, 3, 2, 1}) {
    OneHead one(ElementKind::kFloat32, 1, 1, 2, width, key_kind);
    const std::int64_t page = 0;
    float scale = 0.75f;
    one.p.pages = {&page, 1, 1, {}, {}};
    if (key_kind == ElementKind::kInt8) {
      one.p.pages.k_scales.data = one.p.pages.v_scales.data = &scale;
    }
    for (std::int64_t i = 0; i < width; ++i) one.v[static_cast<std::size_t>(i)] = static_cast<char>(256 - width + i);
    attention(one.p, kNever);
    std::int64_t bad = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double value = read(one.v.data(), key_kind, i) * (key_kind == ElementKind::kInt8 ? 0.75 : 1);
      bad += !same(read(one.out.data(), ElementKind::kFloat32, i), value);
    }
    report.check(bad == 0, "8-bit values", key_kind, static_cast<double>(bad));
  }
}

}  // namespace

void check_conversions(ElementKind kind, Report& report) {
  if (kind == ElementKind::kFloat32) {
    check_cache(ElementKind::kInt8, report);
    check_cache(ElementKind::kFloat8, report);
  }
  if (element_size(kind) != 2) return;
  check_products(kind, report);
  check_rows(kind, report);
}

// Weights exp(score - lse), in units of the largest, and soft caps tanh(score) over their range; errors as a share of each.
void check_functions(ElementKind kind, Report& report) {
  if (element_size(kind) == 2) return;  // the same functions, and results of few digits
  const double ulp = kind == ElementKind::kFloat64 ? 0x1p-52 : 0x1p-23, deepest = kind == ElementKind::kFloat64 ? 700 : 80;
  constexpr std::int64_t kKeys = 4001;
  OneHead one(kind, 1, kKeys, 1, 1, kind);
  write(one.q.data(), kind, 0, 1);
  for (const bool exponential : {true, false}) {
    const double from = exponential ? -deepest : -12, to = exponential ? 0 : 12;
    for (std::int64_t j = 0; j < kKeys; ++j) write(one.k.data(), kind, j, from + (to - from) * static_cast<double>(j) / (kKeys - 1));
    AttentionProblem p = one.p;
    std::vector<char> out(kKeys * 8);
    p.out.data = out.data();
    p.softcap = exponential ? 0 : 1;
    attention_scores(p, exponential ? ScoreStage::kWeights : ScoreStage::kCapped, kNever);
    double worst = 0;
    const double unit = exponential ? read(out.data(), kind, kKeys - 1) : 1;  // the weight of the score 0
    for (std::int64_t j = 0; j < kKeys; ++j) {
      const double x = read(one.k.data(), kind, j), got = read(out.data(), kind, j) / unit;
      const double wanted = exponential ? std::exp(x) : std::tanh(x);
      // On its way the score is rounded once more as a distance from the reference, which may be 16 powers of two below it.
      const double allowed = ulp * (exponential ? 12 + std::abs(x) : 4) * std::abs(wanted);
      const double error = wanted == 0 ? std::abs(got) / ulp : std::abs(got - wanted) / allowed;
      worst = error <= worst ? worst : error;
    }
    report.check(worst <= 1, exponential ? "exponential, as a share of what is allowed" : "tanh, likewise", kind, worst);
  }
}

}  // namespace headway

int main(int argc, char** argv) {
  using namespace headway;
  std::vector<std::string> isas(argv + 1, argv + argc);
  if (isas.empty()) isas = available_isas();
  Report report;
  for (const std::string& isa : isas) {
    set_isa(isa);
    for (const auto kind : {ElementKind::kFloat32, ElementKind::kFloat64, ElementKind::kFloat16, ElementKind::kBFloat16}) {
      set_num_threads(1);
      check_conversions(kind, report);
      check_functions(kind, report);
      check_hiding(kind, report);
      check_float_mode(kind, report);
      check_bits(kind, report);
    }
    std::printf("%s ", isa.c_str());
  }
  std::printf("%d passed, %d failed\n", report.passed, report.failed);
  return report.failed == 0 && report.passed > 0 ? 0 : 1;
}
