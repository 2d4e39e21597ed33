// The rotary embedding's cases of the guard-page executable: x, positions, frequencies and result each between unreadable
// pages, every width, both kinds of pairs, in place and not.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "../core/dispatch.hpp"
#include "../core/rotary.hpp"
#include "guarded.hpp"

namespace headway {
namespace {

struct Case {
  std::int64_t num_heads, num_tokens, head_dim, num_pairs;
  std::int64_t gap;  // elements between rows
  bool interleaved, in_place, wide_out;
};

bool run(const Case& c, ElementKind kind, bool at_end) {
  const std::size_t size = element_size(kind), out_size = c.wide_out ? accumulation_size(kind) : size;
  const ElementKind out_kind = c.wide_out && size == 2 ? ElementKind::kFloat32 : kind;
  const auto bytes = [](std::int64_t count, std::size_t each) { return static_cast<std::size_t>(count) * each; };
  const std::int64_t row = c.head_dim + c.gap, rows = c.num_heads * c.num_tokens, count = rows * row - c.gap;
  const Guarded x(bytes(count, size), at_end), out(bytes(count, out_size), at_end), before(bytes(count, size), at_end);
  const Guarded positions(bytes(c.num_tokens, 8), at_end), frequencies(bytes(c.num_pairs, 8), at_end);
  fill(x.data(), kind, count, 1);
  fill(before.data(), kind, count, 1);
  fill(out.data(), out_kind, count, 2);
  auto* places = reinterpret_cast<std::int64_t*>(positions.data());
  auto* turns = reinterpret_cast<double*>(frequencies.data());
  for (std::int64_t t = 0; t < c.num_tokens; ++t) places[t] = 37 * t - 5;
  for (std::int64_t i = 0; i < c.num_pairs; ++i) turns[i] = 1.0 / static_cast<double>(i + 1);

  RotaryProblem p{};
  p.kind = kind;
  p.wide_out = c.wide_out;
  p.interleaved = c.interleaved;
  p.batch = 1;
  p.num_heads = c.num_heads;
  p.num_tokens = c.num_tokens;
  p.head_dim = c.head_dim;
  p.x = {x.data(), 0, c.num_tokens * row, row};
  p.out = p.x;
  if (!c.in_place) p.out.data = out.data();
  p.positions = places;
  p.position_token_stride = 1;
  p.num_pairs = c.num_pairs;
  p.frequencies = turns;
  p.factor = 1;
  rotary_embedding(p, [] { return false; });

  const char* result = c.in_place ? x.data() : out.data();
  double worst = 0;
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t d = 0; d < c.head_dim; ++d) {
      const std::int64_t pair = c.interleaved ? d / 2 : d % c.num_pairs;
      const bool first = c.interleaved ? d % 2 == 0 : d < c.num_pairs;
      const std::int64_t step = c.interleaved ? 1 : c.num_pairs;
      double wanted = read(before.data(), kind, n * row + d);
      if (d < 2 * c.num_pairs) {
        const double angle = static_cast<double>(places[n % c.num_tokens]) * turns[pair];
        const double other = read(before.data(), kind, n * row + (first ? d + step : d - step));
        wanted = wanted * std::cos(angle) + (first ? -other : other) * std::sin(angle);
      }
      const double error = std::abs(read(result, out_kind, n * row + d) - wanted);
      worst = error <= worst ? worst : error;  // NaN counts
    }
  }
  if (worst <= tolerance(out_kind) * 2) return true;
  std::printf("FAILED rotary %s kind %d heads %d tokens %d width %d pairs %d gap %d interleaved %d in place %d: error %g\n",
              kernels().name, static_cast<int>(kind), static_cast<int>(c.num_heads), static_cast<int>(c.num_tokens),
              static_cast<int>(c.head_dim), static_cast<int>(c.num_pairs), static_cast<int>(c.gap), c.interleaved,
              c.in_place, worst);
  return false;
}

}  // namespace

void run_rotations(ElementKind kind, bool at_end, Tally& tally) {
  for (const bool interleaved : {false, true}) {
    for (std::int64_t width = 2; width <= 70; ++width) {
      const std::int64_t all = width / 2, some = std::max<std::int64_t>(1, width / 3);
      tally.count([&] { return run({2, 3, width, all, 0, interleaved, false, false}, kind, at_end); });
      tally.count([&] { return run({2, 3, width, some, 1, interleaved, false, true}, kind, at_end); });
      tally.count([&] { return run({3, 1, width, all, 0, interleaved, true, false}, kind, at_end); });
      tally.count([&] { return run({1, 2, width, some, 3, interleaved, true, false}, kind, at_end); });
    }
    tally.count([&] { return run({2, 200, 66, 33, 0, interleaved, false, false}, kind, at_end); });
    tally.count([&] { return run({1, 3, 9000, 4400, 0, interleaved, true, false}, kind, at_end); });
  }
}

}  // namespace headway
