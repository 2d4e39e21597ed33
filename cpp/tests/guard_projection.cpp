// The projection's cases of the guard-page executable: weight, bias, x, gradients and results each between unreadable
// pages.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "../core/dispatch.hpp"
#include "../core/projection.hpp"
#include "../core/weight_gradient.hpp"
#include "guarded.hpp"

namespace headway {
namespace {

// x and result have rows of their width, or `gap` more elements between them. The weight lies as it is read, or turned.
bool run(std::int64_t rows, std::int64_t d_in, std::int64_t d_out, std::int64_t gap, ElementKind kind, bool wide_out,
         bool at_end, bool turned = false) {
  const std::size_t size = element_size(kind), out_size = wide_out ? accumulation_size(kind) : size;
  const ElementKind out_kind = wide_out && size == 2 ? ElementKind::kFloat32 : kind;
  const auto bytes = [](std::int64_t count, std::size_t each) { return static_cast<std::size_t>(count) * each; };
  const std::int64_t x_count = rows * (d_in + gap) - gap, out_count = rows * (d_out + gap) - gap;
  const Guarded weight(bytes(d_in * d_out, size), at_end), bias(bytes(d_out, size), at_end);
  const Guarded x(bytes(x_count, size), at_end), out(bytes(out_count, out_size), at_end);
  fill(weight.data(), kind, d_in * d_out, 1);
  fill(bias.data(), kind, d_out, 2);
  fill(x.data(), kind, x_count, 3);

  Projection projection(kind, weight.data(), turned, bias.data(), d_in, d_out);
  projection.multiply({x.data(), out.data(), {{rows, d_in + gap, d_out + gap}}, wide_out}, [] { return false; });

  double worst = 0, largest = 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < d_out; ++column) {
      double sum = read(bias.data(), kind, column);
      for (std::int64_t n = 0; n < d_in; ++n) {
        const std::int64_t at = turned ? column * d_in + n : n * d_out + column;
        sum += read(x.data(), kind, row * (d_in + gap) + n) * read(weight.data(), kind, at);
      }
      const double error = std::abs(read(out.data(), out_kind, row * (d_out + gap) + column) - sum);
      worst = error <= worst ? worst : error;  // NaN counts
      largest = std::max(largest, std::abs(sum));
    }
  }
  if (worst <= tolerance(out_kind) * largest) return true;
  std::printf("FAILED projection %s kind %d rows %d sizes %d, %d gap %d wide %d turned %d: error %g\n", kernels().name,
              static_cast<int>(kind), static_cast<int>(rows), static_cast<int>(d_in), static_cast<int>(d_out),
              static_cast<int>(gap), wide_out, turned, worst);
  return false;
}

// The same of the gradients of weight and bias.
bool run_gradient(std::int64_t tokens, std::int64_t d_in, std::int64_t d_out, std::int64_t gap, ElementKind kind,
                  bool at_end) {
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * element_size(kind); };
  const std::int64_t x_count = tokens * (d_in + gap) - gap, grad_count = tokens * (d_out + gap) - gap;
  const Guarded x(bytes(x_count), at_end), grad(bytes(grad_count), at_end);
  const Guarded weight(bytes(d_in * (d_out + gap) - gap), at_end), bias(bytes(d_out), at_end);
  fill(x.data(), kind, x_count, 1);
  fill(grad.data(), kind, grad_count, 2);
  weight_gradient({.kind = kind, .num_tokens = tokens, .d_in = d_in, .d_out = d_out, .x = x.data(), .x_stride = d_in + gap,
                   .grad = grad.data(), .grad_stride = d_out + gap, .weight = weight.data(), .weight_stride = d_out + gap,
                   .bias = bias.data()},
                  [] { return false; });

  double worst = 0, largest = 1;
  for (std::int64_t row = 0; row <= d_in; ++row) {
    for (std::int64_t column = 0; column < d_out; ++column) {
      double sum = 0;
      for (std::int64_t n = 0; n < tokens; ++n) {
        const double factor = row < d_in ? read(x.data(), kind, n * (d_in + gap) + row) : 1;
        sum += factor * read(grad.data(), kind, n * (d_out + gap) + column);
      }
      const double got = row < d_in ? read(weight.data(), kind, row * (d_out + gap) + column) : read(bias.data(), kind, column);
      const double error = std::abs(got - sum);
      worst = error <= worst ? worst : error;  // NaN counts
      largest = std::max(largest, std::abs(sum));
    }
  }
  if (worst <= tolerance(kind) * largest) return true;
  std::printf("FAILED weight gradient %s kind %d tokens %d sizes %d, %d gap %d: error %g\n", kernels().name,
              static_cast<int>(kind), static_cast<int>(tokens), static_cast<int>(d_in), static_cast<int>(d_out),
              static_cast<int>(gap), worst);
  return false;
}

}  // namespace

void run_projections(ElementKind kind, bool at_end, Tally& tally) {
  for (const bool wide_out : {false, true}) {
    // Every width with a few rows and depths, every number of rows with a few sizes, then what crosses blocks.
    for (std::int64_t width = 1; width <= 68; ++width) {
      for (const std::int64_t rows : {1, 3, 9}) {
        tally.count([&] { return run(rows, 69 - width, width, 0, kind, wide_out, at_end); });
      }
    }
    for (std::int64_t rows = 1; rows <= 14; ++rows) {
      tally.count([&] { return run(rows, 5, 130, 3, kind, wide_out, at_end); });
      tally.count([&] { return run(rows, 17, 7, 1, kind, wide_out, at_end); });
    }
    for (const std::int64_t d_out : {95, 127, 191, 257, 321, 600}) {
      tally.count([&] { return run(1, 11, d_out, 0, kind, wide_out, at_end); });
      tally.count([&] { return run(97, 3, d_out, 1, kind, wide_out, at_end); });
    }
    tally.count([&] { return run(100, 800, 33, 0, kind, wide_out, at_end); });
    tally.count([&] { return run(8, 1601, 20, 2, kind, wide_out, at_end); });
    tally.count([&] { return run(291, 40, 129, 1, kind, wide_out, at_end); });
    tally.count([&] { return run(67, 7000, 18, 0, kind, wide_out, at_end); });
  }
  for (std::int64_t width = 1; width <= 68; width += width < 20 ? 1 : 3) {
    for (const std::int64_t d_in : {69 - width, std::int64_t{257}, std::int64_t{600}}) {
      tally.count([&] { return run(3, d_in, width, 0, kind, false, at_end, true); });
    }
    for (const std::int64_t tokens : {1, 2, 31, 65}) {
      tally.count([&] { return run_gradient(tokens, 69 - width, width, 0, kind, at_end); });
      tally.count([&] { return run_gradient(tokens, width, 69 - width, 3, kind, at_end); });
    }
  }
  tally.count([&] { return run(3, 300, 700, 0, kind, false, at_end, true); });
  tally.count([&] { return run_gradient(2 * kTokensPerSpan + 5, 17, 40, 0, kind, at_end); });
  tally.count([&] { return run_gradient(kTokensPerSpan + 1, 3, 130, 1, kind, at_end); });
  tally.count([&] { return run_gradient(kTokensPerSpan, 130, 5, 0, kind, at_end); });
}

}  // namespace headway
