// The product of bfloat16 rows with packed weights by VDPBF16PS: projection.hpp's tiles, with a pair of neighbouring
// depths in the place of a number. d_in is padded with a zero to whole pairs.
#pragma once

#include "pairs_dot.hpp"
#include "projection.hpp"

namespace headway {
namespace {

// Columns of weight (d_in, columns) -> panel (pairs, lanes), the lanes beyond the columns 0.
inline void pack_pairs(const void* weight, std::ptrdiff_t row_stride, std::int64_t d_in, std::int64_t columns, void* panel) {
  const auto* from = static_cast<const BFloat16*>(weight);
  auto* to = static_cast<float*>(panel);
  const std::int64_t lanes = pad_to(columns, VecF32::kLanes);
  for (std::int64_t d = 0; d < d_in; d += 2, to += lanes) {
    for (std::int64_t c = 0; c < lanes; c += VecF32::kLanes) {
      const BFloat16* even = from + d * row_stride + c;
      VecF32::store(to + c, DotPairs::interleave(even, d + 1 < d_in ? even + row_stride : nullptr, columns - c));
    }
  }
}

inline std::size_t pairs_workspace_bytes() {
  ProjectionWorkspace<float> w;
  return lay_out<VecPairs>(w, nullptr, true, false);
}

inline void project_pairs(const ProjectionTask& task) {
  ProjectionWorkspace<float> w;
  lay_out<VecPairs>(w, static_cast<char*>(task.workspace), true, false);
  ProjectionTask words = task;
  words.d_in = pad_to(task.d_in, 2) / 2;
  project_words<VecPairs, float, BFloat16>(words, w, [&](std::int64_t i, std::int64_t from, std::int64_t depth) {
    const auto* row = static_cast<const BFloat16*>(task.x_rows[i]) + 2 * from;
    if (DotPairs::reads(row, 0, task.d_in)) return reinterpret_cast<const float*>(row);
    float* copy = w.x + i * depth;
    const std::int64_t left = task.d_in - 2 * from;
    copy_padded(row, 0, 1, left < 2 * depth ? left : 2 * depth, 1, 2 * depth, reinterpret_cast<BFloat16*>(copy));
    return static_cast<const float*>(copy);
  });
}

constexpr ProjectionKernels pair_projection() {
  return ProjectionKernels{
      .lanes = VecPairs::kLanes,
      .depth_step = 2,
      .columns_per_panel = kColumnsPerPanel<VecPairs>,
      .columns_per_task = kColumnsPerTask<VecPairs>,
      .rows_per_tile = kTileRows<VecPairs>,
      .rows_per_task = kRowsPerTask,
      .workspace_bytes = pairs_workspace_bytes,
      .pack = pack_pairs,
      .project = project_pairs,
  };
}

}  // namespace
}  // namespace headway
