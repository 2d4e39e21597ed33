// The product of rows with packed panels, shared out among the threads: what Projection and weight_gradient run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "../kernels/kernel_table.hpp"

namespace headway {

// Panels of a matrix (depth, width), one after the other, as ProjectionKernels::pack writes them.
struct PackedShape {
  PackedShape(const ProjectionKernels& kernels, ElementKind kind, std::int64_t depth, std::int64_t width);

  std::int64_t num_panels;
  std::int64_t columns_per_panel;
  std::ptrdiff_t bytes_per_column;  // of a panel but for its padding
  std::size_t bytes;                // of all panels; std::bad_alloc where it is beyond what can be counted
  std::byte* panel(std::byte* data, std::int64_t index) const;
};

// Threads that packing is worth, for so many numbers in so many tasks.
int packing_threads(std::int64_t numbers, std::int64_t num_tasks);

// out (num_rows, width) = x (num_rows, depth) . panels (depth, width) + added + bias.
struct Product {
  // Where the row of this index stands; `added` in the accumulation type, or null for all rows.
  struct Row {
    const void* x;
    std::byte* out;
    const std::byte* added;
  };
  ElementKind kind;
  std::int64_t num_rows, depth, width;  // at least 1
  const std::byte* panels;
  const void* bias;                     // (width), or null
  bool adds;                            // rows have `added`
  bool wide_out;                        // out has the accumulation type, not kind
  std::function<Row(std::int64_t)> row;
};

// `interrupted` as in parallel.hpp; std::bad_alloc comes before out is touched.
void multiply(const KernelTable& table, const Product& product, const std::function<bool()>& interrupted);

}  // namespace headway
