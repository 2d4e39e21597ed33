#include "product.hpp"

#include <algorithm>
#include <new>

#include "dispatch.hpp"
#include "parallel.hpp"
#include "problem.hpp"
#include "scratch.hpp"

namespace headway {
namespace {

// Multiply-adds below which a second thread costs more than it brings: a few microseconds of one core.
constexpr double kWorkPerThread = 200e3;
// Numbers to pack, likewise.
constexpr double kPackingPerThread = 100e3;
// With fewer tasks than this per thread, tasks are cut to fewer rows, so that the threads end together.
constexpr std::int64_t kTasksPerThread = 2;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

int threads_for(double work, double per_thread, std::int64_t num_tasks) {
  const double most = static_cast<double>(std::min<std::int64_t>(num_threads(), std::max<std::int64_t>(num_tasks, 1)));
  return static_cast<int>(std::clamp(work / per_thread, 1.0, most));
}

struct Plan {
  std::int64_t rows_per_task, row_blocks;
  std::int64_t columns_per_task, column_blocks;
  int num_threads;
};

// Blocks of rows by blocks of columns, as large as the kernels take them, but for the threads to end together; few
// rows, which are a matter of reading the weight, share out its columns.
Plan make_plan(const ProjectionKernels& kernels, std::int64_t rows, std::int64_t depth, std::int64_t width) {
  const double work = static_cast<double>(rows) * static_cast<double>(depth) * static_cast<double>(width);
  Plan plan{};
  plan.num_threads = threads_for(work, kWorkPerThread, kMaxThreads);
  const std::int64_t wanted = plan.num_threads > 1 ? kTasksPerThread * plan.num_threads : 1;
  const std::int64_t panels = divide_up(width, kernels.columns_per_panel);
  // The number of blocks, at least, of which all but the last are of one size.
  const auto cut_columns = [&](std::int64_t blocks) {
    const std::int64_t columns = divide_up(panels, std::clamp<std::int64_t>(blocks, 1, panels)) * kernels.columns_per_panel;
    plan.columns_per_task = std::min(columns, kernels.columns_per_task);
    plan.column_blocks = divide_up(width, plan.columns_per_task);
  };
  const auto cut_rows = [&](std::int64_t blocks) {
    const std::int64_t count = divide_up(rows, std::clamp<std::int64_t>(blocks, 1, rows));
    plan.rows_per_task = std::min(round_up(count, kernels.rows_per_tile), kernels.rows_per_task);
    plan.row_blocks = divide_up(rows, plan.rows_per_task);
  };
  cut_rows(divide_up(rows, kernels.rows_per_task));
  cut_columns(std::max(divide_up(wanted, plan.row_blocks), divide_up(width, kernels.columns_per_task)));
  if (plan.row_blocks * plan.column_blocks < wanted) cut_rows(divide_up(wanted, plan.column_blocks));
  plan.num_threads = static_cast<int>(std::min<std::int64_t>(plan.num_threads, plan.row_blocks * plan.column_blocks));
  return plan;
}

}  // namespace

PackedShape::PackedShape(const ProjectionKernels& kernels, ElementKind kind, std::int64_t depth, std::int64_t width)
    : num_panels(divide_up(width, kernels.columns_per_panel)), columns_per_panel(kernels.columns_per_panel),
      bytes_per_column(0), bytes(0) {
  std::int64_t all = 0;
  if (__builtin_mul_overflow(round_up(depth, kernels.depth_step), static_cast<std::int64_t>(element_size(kind)),
                             &bytes_per_column) ||
      __builtin_mul_overflow(round_up(width, kernels.lanes), bytes_per_column, &all)) {
    throw std::bad_alloc();
  }
  bytes = static_cast<std::size_t>(all);
}

std::byte* PackedShape::panel(std::byte* data, std::int64_t index) const {
  return data + index * columns_per_panel * bytes_per_column;
}

int packing_threads(std::int64_t numbers, std::int64_t num_tasks) {
  return threads_for(static_cast<double>(numbers), kPackingPerThread, num_tasks);
}

void multiply(const KernelTable& table, const Product& product, const std::function<bool()>& interrupted) {
  const ProjectionKernels& kernels = projection_kernels(table, product.kind);
  const Plan plan = make_plan(kernels, product.num_rows, product.depth, product.width);
  const auto size = static_cast<std::ptrdiff_t>(element_size(product.kind));
  const auto wide = static_cast<std::ptrdiff_t>(accumulation_size(product.kind));
  const std::ptrdiff_t out_size = product.wide_out ? wide : size;
  const std::ptrdiff_t column_bytes = PackedShape(kernels, product.kind, product.depth, product.width).bytes_per_column;

  const auto workspace = static_cast<std::size_t>(round_up(static_cast<std::int64_t>(kernels.workspace_bytes()), 64));
  const auto pointers = static_cast<std::size_t>(round_up(kernels.rows_per_task, 8)) * sizeof(void*);
  const std::size_t per_thread = workspace + 3 * pointers;
  const Scratch scratch(per_thread * static_cast<std::size_t>(plan.num_threads));
  run_tasks(plan.row_blocks * plan.column_blocks, plan.num_threads, interrupted,
            [&](std::int64_t index, int thread, StopFlag&) {
              std::byte* memory = scratch.data() + per_thread * static_cast<std::size_t>(thread);
              auto** x_rows = reinterpret_cast<const void**>(memory + workspace);
              auto** out_rows = reinterpret_cast<void**>(memory + workspace + pointers);
              auto** added_rows = reinterpret_cast<const void**>(memory + workspace + 2 * pointers);
              // All columns of some rows, then the next rows: x stays in cache.
              const std::int64_t first_row = index / plan.column_blocks * plan.rows_per_task;
              const std::int64_t first = index % plan.column_blocks * plan.columns_per_task;
              const std::int64_t next = (index + plan.num_threads) % plan.column_blocks * plan.columns_per_task;
              const std::int64_t count = std::min(plan.rows_per_task, product.num_rows - first_row);
              for (std::int64_t i = 0; i < count; ++i) {
                const Product::Row row = product.row(first_row + i);
                x_rows[i] = row.x;
                out_rows[i] = row.out + first * out_size;
                if (product.adds) added_rows[i] = row.added + first * wide;
              }
              const auto* bias = static_cast<const std::byte*>(product.bias);
              kernels.project({.x_rows = x_rows,
                               .panels = product.panels + first * column_bytes,
                               .next_panels = product.panels + next * column_bytes,
                               .bias = bias != nullptr ? bias + first * size : nullptr,
                               .added_rows = product.adds ? added_rows : nullptr,
                               .out_rows = out_rows,
                               .num_rows = count,
                               .num_columns = std::min(plan.columns_per_task, product.width - first),
                               .d_in = product.depth,
                               .wide_out = product.wide_out,
                               .workspace = memory});
            });
}

}  // namespace headway
