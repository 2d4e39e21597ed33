#include "weight_gradient.hpp"

#include <algorithm>
#include <cstring>

#include "dispatch.hpp"
#include "parallel.hpp"
#include "problem.hpp"
#include "product.hpp"
#include "scratch.hpp"
#include "transpose.hpp"

namespace headway {
namespace {

constexpr std::int64_t kColumnsPerTask = 64;  // of x, when it is transposed

// Memory of the call: one block, its parts at whole cache lines.
class Parts {
 public:
  std::size_t take(std::int64_t bytes) {
    const std::size_t place = used_;
    used_ += (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
    return place;
  }
  std::size_t used() const { return used_; }

 private:
  std::size_t used_ = 0;
};

void fill_with_ones(std::byte* to, ElementKind kind, std::int64_t count) {
  const double wide = 1;
  const float single = 1;
  const std::uint16_t half = 0x3c00, brain = 0x3f80;
  const void* one = kind == ElementKind::kFloat64   ? static_cast<const void*>(&wide)
                    : kind == ElementKind::kFloat32 ? static_cast<const void*>(&single)
                    : kind == ElementKind::kFloat16 ? static_cast<const void*>(&half)
                                                    : static_cast<const void*>(&brain);
  const std::size_t size = element_size(kind);
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + static_cast<std::size_t>(i) * size, one, size);
}

// The sums over no token.
void fill_with_zeros(const WeightGradient& problem) {
  const auto width = static_cast<std::size_t>(problem.d_out) * element_size(problem.kind);
  const auto step = problem.weight_stride * static_cast<std::ptrdiff_t>(element_size(problem.kind));
  for (std::int64_t i = 0; i < problem.d_in; ++i) std::memset(static_cast<std::byte*>(problem.weight) + i * step, 0, width);
  if (problem.bias != nullptr) std::memset(problem.bias, 0, width);
}

}  // namespace

// The tokens of a span are the depth of a packed product: rows are columns of x, transposed, and grad is the weight,
// packed. The bias is one row more, of ones. The sums of a span are added to those before it, which wait in the result
// itself, or, of 16-bit results, beside it.
void weight_gradient(const WeightGradient& problem, const std::function<bool()>& interrupted) {
  if (problem.num_tokens == 0) return fill_with_zeros(problem);
  const KernelTable& table = headway::kernels();
  const ProjectionKernels& kernels = projection_kernels(table, problem.kind);
  const auto size = static_cast<std::ptrdiff_t>(element_size(problem.kind));
  const auto wide = static_cast<std::ptrdiff_t>(accumulation_size(problem.kind));
  const std::int64_t spans = (problem.num_tokens + kTokensPerSpan - 1) / kTokensPerSpan;
  const std::int64_t longest = std::min(problem.num_tokens, kTokensPerSpan);
  const std::int64_t num_rows = problem.d_in + (problem.bias != nullptr ? 1 : 0);
  const bool beside = spans > 1 && wide != size;

  // Rows an odd number of cache lines apart: they do not fall on the same places of a cache.
  const std::ptrdiff_t row_bytes = ((longest * size + 63) / 64 | 1) * 64;
  const PackedShape longest_shape(kernels, problem.kind, longest, problem.d_out);
  Parts parts;
  const std::size_t panels_at = parts.take(static_cast<std::int64_t>(longest_shape.bytes));
  const std::size_t rows_at = parts.take(num_rows * row_bytes);
  const std::size_t sums_at = parts.take(beside ? num_rows * problem.d_out * wide : 0);
  const Scratch scratch(parts.used());
  std::byte* panels = scratch.data() + panels_at;
  std::byte* rows = scratch.data() + rows_at;
  std::byte* sums = scratch.data() + sums_at;
  if (problem.bias != nullptr) fill_with_ones(rows + problem.d_in * row_bytes, problem.kind, longest);

  for (std::int64_t span = 0; span < spans; ++span) {
    const std::int64_t first = span * kTokensPerSpan, tokens = std::min(kTokensPerSpan, problem.num_tokens - first);
    const auto* grad = static_cast<const std::byte*>(problem.grad) + first * problem.grad_stride * size;
    const auto* x = static_cast<const std::byte*>(problem.x) + first * problem.x_stride * size;
    const PackedShape shape(kernels, problem.kind, tokens, problem.d_out);
    const std::int64_t pieces = (problem.d_in + kColumnsPerTask - 1) / kColumnsPerTask;
    const std::int64_t tasks = shape.num_panels + pieces;
    run_tasks(tasks, packing_threads(tokens * (problem.d_in + problem.d_out), tasks), interrupted,
              [&](std::int64_t index, int, StopFlag&) {
                if (index < shape.num_panels) {
                  const std::int64_t column = index * shape.columns_per_panel;
                  kernels.pack(grad + column * size, problem.grad_stride, tokens,
                               std::min(shape.columns_per_panel, problem.d_out - column), shape.panel(panels, index));
                } else {
                  const std::int64_t column = (index - shape.num_panels) * kColumnsPerTask;
                  transpose(x + column * size, problem.x_stride, tokens,
                            std::min(kColumnsPerTask, problem.d_in - column), rows + column * row_bytes,
                            row_bytes / size, element_size(problem.kind));
                }
              });
    const bool last = span + 1 == spans;
    const bool to_sums = beside && !last;
    const auto row = [&](std::int64_t index) -> Product::Row {
      const bool is_bias = index == problem.d_in;
      auto* result = static_cast<std::byte*>(is_bias ? problem.bias : problem.weight);
      if (!is_bias) result += index * problem.weight_stride * size;
      std::byte* sum = beside ? sums + index * problem.d_out * wide : result;
      return {rows + index * row_bytes, to_sums ? sum : result, sum};
    };
    multiply(table,
             {.kind = problem.kind,
              .num_rows = num_rows,
              .depth = tokens,
              .width = problem.d_out,
              .panels = panels,
              .bias = nullptr,
              .adds = span > 0,
              .wide_out = to_sums || wide == size,
              .row = row},
             interrupted);
  }
}

}  // namespace headway
