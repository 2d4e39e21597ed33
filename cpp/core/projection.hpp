// A weight matrix packed for the kernels, and the product of rows with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "../kernels/kernel_table.hpp"

namespace headway {

// The rows of x and of out: arrays (extents ..., d_in) and (extents ..., d_out) whose last axis is contiguous; strides
// count elements.
struct ProjectionRows {
  struct Axis {
    std::int64_t extent;
    std::ptrdiff_t x_stride, out_stride;
  };
  const void* x;
  void* out;
  std::vector<Axis> axes;
  bool wide_out;  // out has the accumulation type (float64 for float64, else float32), not that of the weight
};

class Projection {
 public:
  // weight (d_in, d_out), contiguous, and bias (d_out), or null, stay where they are for as long as this lives.
  // `turned`: the weight lies as (d_out, d_in), and is transposed while it is packed.
  Projection(ElementKind kind, const void* weight, bool turned, const void* bias, std::int64_t d_in, std::int64_t d_out);
  ~Projection();
  Projection(const Projection&) = delete;
  Projection& operator=(const Projection&) = delete;

  // out = x @ weight + bias. The first call with an ISA packs the weight for it. Safe from several threads at once:
  // they may pack at the same time, and one copy is kept. `interrupted` as in parallel.hpp; std::bad_alloc comes
  // before out is touched.
  void multiply(const ProjectionRows& rows, const std::function<bool()>& interrupted);

 private:
  struct Packed;
  const Packed& packed(const KernelTable& table, const std::function<bool()>& interrupted);
  void pack(const KernelTable& table, std::byte* data, const std::function<bool()>& interrupted) const;

  ElementKind kind_;
  const void* weight_;
  bool turned_;
  const void* bias_;
  std::int64_t d_in_, d_out_;
  std::atomic<Packed*> packed_{nullptr};  // a list, one per ISA that was used
};

}  // namespace headway
