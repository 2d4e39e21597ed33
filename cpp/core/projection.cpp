#include "projection.hpp"

#include <algorithm>
#include <memory>
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
Plan make_plan(const ProjectionKernels& kernels, std::int64_t rows, std::int64_t d_in, std::int64_t d_out) {
  const double work = static_cast<double>(rows) * static_cast<double>(d_in) * static_cast<double>(d_out);
  Plan plan{};
  plan.num_threads = threads_for(work, kWorkPerThread, kMaxThreads);
  const std::int64_t wanted = plan.num_threads > 1 ? kTasksPerThread * plan.num_threads : 1;
  const std::int64_t panels = divide_up(d_out, kernels.columns_per_panel);
  // The number of blocks, at least, of which all but the last are of one size.
  const auto cut_columns = [&](std::int64_t blocks) {
    const std::int64_t columns = divide_up(panels, std::clamp<std::int64_t>(blocks, 1, panels)) * kernels.columns_per_panel;
    plan.columns_per_task = std::min(columns, kernels.columns_per_task);
    plan.column_blocks = divide_up(d_out, plan.columns_per_task);
  };
  const auto cut_rows = [&](std::int64_t blocks) {
    const std::int64_t count = divide_up(rows, std::clamp<std::int64_t>(blocks, 1, rows));
    plan.rows_per_task = std::min(round_up(count, kernels.rows_per_tile), kernels.rows_per_task);
    plan.row_blocks = divide_up(rows, plan.rows_per_task);
  };
  cut_rows(divide_up(rows, kernels.rows_per_task));
  cut_columns(std::max(divide_up(wanted, plan.row_blocks), divide_up(d_out, kernels.columns_per_task)));
  if (plan.row_blocks * plan.column_blocks < wanted) cut_rows(divide_up(wanted, plan.column_blocks));
  plan.num_threads = static_cast<int>(std::min<std::int64_t>(plan.num_threads, plan.row_blocks * plan.column_blocks));
  return plan;
}

// Where row `index` of the rows stands, from their first one.
struct RowOffset {
  std::ptrdiff_t x, out;
};

RowOffset offset_of(const std::vector<ProjectionRows::Axis>& axes, std::int64_t index) {
  RowOffset offset{0, 0};
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    const std::int64_t at = index % axis->extent;
    index /= axis->extent;
    offset.x += at * axis->x_stride;
    offset.out += at * axis->out_stride;
  }
  return offset;
}

// The same rows in fewer axes, where one stride leads through two of them.
std::vector<ProjectionRows::Axis> merged(const std::vector<ProjectionRows::Axis>& axes) {
  std::vector<ProjectionRows::Axis> result;
  for (const auto& axis : axes) {
    if (axis.extent == 1) continue;
    if (!result.empty() && result.back().x_stride == axis.extent * axis.x_stride &&
        result.back().out_stride == axis.extent * axis.out_stride) {
      result.back() = {result.back().extent * axis.extent, axis.x_stride, axis.out_stride};
    } else {
      result.push_back(axis);
    }
  }
  return result;
}

}  // namespace

struct Projection::Packed {
  Packed(const KernelTable& for_table, std::size_t bytes)
      : table(&for_table), size(bytes), data(allocate(bytes)) {}
  ~Packed() { deallocate(data, size); }
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;

  const KernelTable* table;
  std::size_t size;
  std::byte* data;  // panel after panel
  Packed* next = nullptr;
};

Projection::Projection(ElementKind kind, const void* weight, const void* bias, std::int64_t d_in, std::int64_t d_out)
    : kind_(kind), weight_(weight), bias_(bias), d_in_(d_in), d_out_(d_out) {}

Projection::~Projection() {
  for (Packed* packed = packed_.load(); packed != nullptr;) {
    const std::unique_ptr<Packed> owner(packed);
    packed = packed->next;
  }
}

const Projection::Packed& Projection::packed(const KernelTable& table, const std::function<bool()>& interrupted) {
  const auto find = [&](Packed* first) {
    while (first != nullptr && first->table != &table) first = first->next;
    return first;
  };
  Packed* head = packed_.load(std::memory_order_acquire);
  if (const Packed* found = find(head)) return *found;

  const ProjectionKernels& kernels = projection_kernels(table, kind_);
  const auto size = static_cast<std::ptrdiff_t>(element_size(kind_));
  const std::int64_t lanes = round_up(d_out_, kernels.lanes), depth = round_up(d_in_, kernels.depth_step);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(lanes, depth, &bytes) || __builtin_mul_overflow(bytes, size, &bytes)) {
    throw std::bad_alloc();
  }
  auto made = std::make_unique<Packed>(table, static_cast<std::size_t>(bytes));
  const std::int64_t panels = divide_up(d_out_, kernels.columns_per_panel);
  const int threads = threads_for(static_cast<double>(lanes) * static_cast<double>(d_in_), kPackingPerThread, panels);
  run_tasks(panels, threads, interrupted, [&](std::int64_t panel, int, StopFlag&) {
    const std::int64_t column = panel * kernels.columns_per_panel;
    kernels.pack(static_cast<const std::byte*>(weight_) + column * size, d_out_, d_in_,
                 std::min(kernels.columns_per_panel, d_out_ - column),
                 made->data + column * depth * size);
  });
  for (;;) {
    made->next = head;
    if (packed_.compare_exchange_weak(head, made.get(), std::memory_order_acq_rel)) return *made.release();
    if (const Packed* found = find(head)) return *found;  // another thread was first
  }
}

void Projection::multiply(const ProjectionRows& rows, const std::function<bool()>& interrupted) {
  std::int64_t num_rows = 1;
  for (const auto& axis : rows.axes) num_rows *= axis.extent;
  if (num_rows == 0) return;
  const KernelTable& table = headway::kernels();
  const ProjectionKernels& kernels = projection_kernels(table, kind_);
  const Packed& weights = packed(table, interrupted);
  const std::vector<ProjectionRows::Axis> axes = merged(rows.axes);
  const Plan plan = make_plan(kernels, num_rows, d_in_, d_out_);
  const std::int64_t depth = round_up(d_in_, kernels.depth_step);

  const auto size = static_cast<std::ptrdiff_t>(element_size(kind_));
  const auto out_size = rows.wide_out ? static_cast<std::ptrdiff_t>(accumulation_size(kind_)) : size;
  const auto workspace = static_cast<std::size_t>(round_up(static_cast<std::int64_t>(kernels.workspace_bytes()), 64));
  const auto pointers = static_cast<std::size_t>(round_up(kernels.rows_per_task, 8)) * sizeof(void*);
  const std::size_t per_thread = workspace + 2 * pointers;
  const Scratch scratch(per_thread * static_cast<std::size_t>(plan.num_threads));
  run_tasks(plan.row_blocks * plan.column_blocks, plan.num_threads, interrupted,
            [&](std::int64_t index, int thread, StopFlag&) {
              std::byte* memory = scratch.data() + per_thread * static_cast<std::size_t>(thread);
              auto** x_rows = reinterpret_cast<const void**>(memory + workspace);
              auto** out_rows = reinterpret_cast<void**>(memory + workspace + pointers);
              // All columns of some rows, then the next rows: x stays in cache.
              const std::int64_t first_row = index / plan.column_blocks * plan.rows_per_task;
              const std::int64_t first = index % plan.column_blocks * plan.columns_per_task;
              const std::int64_t next = (index + plan.num_threads) % plan.column_blocks * plan.columns_per_task;
              const std::int64_t count = std::min(plan.rows_per_task, num_rows - first_row);
              for (std::int64_t i = 0; i < count; ++i) {
                const RowOffset offset = offset_of(axes, first_row + i);
                x_rows[i] = static_cast<const std::byte*>(rows.x) + offset.x * size;
                out_rows[i] = static_cast<std::byte*>(rows.out) + (offset.out + first) * out_size;
              }
              kernels.project({.x_rows = x_rows,
                               .panels = weights.data + first * depth * size,
                               .next_panels = weights.data + next * depth * size,
                               .bias = bias_ ? static_cast<const std::byte*>(bias_) + first * size : nullptr,
                               .out_rows = out_rows,
                               .num_rows = count,
                               .num_columns = std::min(plan.columns_per_task, d_out_ - first),
                               .d_in = d_in_,
                               .wide_out = rows.wide_out,
                               .workspace = memory});
            });
}

}  // namespace headway
