#include "projection.hpp"

#include <algorithm>
#include <memory>

#include "dispatch.hpp"
#include "parallel.hpp"
#include "problem.hpp"
#include "product.hpp"
#include "scratch.hpp"
#include "transpose.hpp"

namespace headway {
namespace {

// Rows of a turned weight that are transposed at a time: a whole number of every kernel's depth_step.
constexpr std::int64_t kTurnedRows = 256;

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

Projection::Projection(ElementKind kind, const void* weight, bool turned, const void* bias, std::int64_t d_in,
                       std::int64_t d_out)
    : kind_(kind), weight_(weight), turned_(turned), bias_(bias), d_in_(d_in), d_out_(d_out) {}

Projection::~Projection() {
  for (Packed* packed = packed_.load(); packed != nullptr;) {
    const std::unique_ptr<Packed> owner(packed);
    packed = packed->next;
  }
}

void Projection::pack(const KernelTable& table, std::byte* data, const std::function<bool()>& interrupted) const {
  const ProjectionKernels& kernels = projection_kernels(table, kind_);
  const PackedShape shape(kernels, kind_, d_in_, d_out_);
  const auto size = static_cast<std::ptrdiff_t>(element_size(kind_));
  const auto* weight = static_cast<const std::byte*>(weight_);
  const int threads = packing_threads(d_in_ * d_out_, shape.num_panels);
  const auto turned_bytes = static_cast<std::size_t>(kTurnedRows * shape.columns_per_panel * size);
  const Scratch scratch(turned_ ? turned_bytes * static_cast<std::size_t>(threads) : 0);
  run_tasks(shape.num_panels, threads, interrupted, [&](std::int64_t panel, int thread, StopFlag&) {
    const std::int64_t column = panel * shape.columns_per_panel;
    const std::int64_t columns = std::min(shape.columns_per_panel, d_out_ - column);
    std::byte* to = shape.panel(data, panel);
    if (!turned_) return kernels.pack(weight + column * size, d_out_, d_in_, columns, to);
    const std::int64_t lanes = (columns + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
    std::byte* rows = scratch.data() + turned_bytes * static_cast<std::size_t>(thread);
    for (std::int64_t row = 0; row < d_in_; row += kTurnedRows) {
      const std::int64_t count = std::min(kTurnedRows, d_in_ - row);
      transpose(weight + (column * d_in_ + row) * size, d_in_, columns, count, rows, columns, element_size(kind_));
      kernels.pack(rows, columns, count, columns, to + row * lanes * size);
    }
  });
}

const Projection::Packed& Projection::packed(const KernelTable& table, const std::function<bool()>& interrupted) {
  const auto find = [&](Packed* first) {
    while (first != nullptr && first->table != &table) first = first->next;
    return first;
  };
  Packed* head = packed_.load(std::memory_order_acquire);
  if (const Packed* found = find(head)) return *found;

  auto made = std::make_unique<Packed>(table, PackedShape(projection_kernels(table, kind_), kind_, d_in_, d_out_).bytes);
  pack(table, made->data, interrupted);
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
  const Packed& weights = packed(table, interrupted);
  const std::vector<ProjectionRows::Axis> axes = merged(rows.axes);
  const auto size = static_cast<std::ptrdiff_t>(element_size(kind_));
  const auto out_size = rows.wide_out ? static_cast<std::ptrdiff_t>(accumulation_size(kind_)) : size;
  const auto row = [&](std::int64_t index) -> Product::Row {
    const RowOffset offset = offset_of(axes, index);
    return {static_cast<const std::byte*>(rows.x) + offset.x * size,
            static_cast<std::byte*>(rows.out) + offset.out * out_size, nullptr};
  };
  headway::multiply(table,
                    {.kind = kind_,
                     .num_rows = num_rows,
                     .depth = d_in_,
                     .width = d_out_,
                     .panels = weights.data,
                     .bias = bias_,
                     .adds = false,
                     .wide_out = rows.wide_out,
                     .row = row},
                    interrupted);
}

}  // namespace headway
