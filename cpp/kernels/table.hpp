// Gathers one ISA's kernels into its KernelTable.
#pragma once

#include "backward.hpp"
#include "peak.hpp"
#include "projection.hpp"
#include "rotation.hpp"
#include "store_scores.hpp"

namespace headway {
namespace {

template <class S, class Element, class KeyElement = Element>
constexpr KindKernels kernels_of() {
  return KindKernels{
      .rows_per_panel = S::kPanelVecs * S::kLanes,
      .rows_per_task = kPanelsPerTask * S::kPanelVecs * S::kLanes,
      .workspace_bytes =
          [](std::int64_t head_dim, std::int64_t value_dim) {
            Workspace<typename S::Real> w;
            return lay_out<S>(w, nullptr, head_dim, value_dim);
          },
      .kept_mask_bytes = kept_mask_bytes<S>(kPanelsPerTask),
      .begin = begin_task<S, Element>,
      .attend_span = attend_span<S, Element, KeyElement>,
      .join = join_tasks<S>,
      .finish = finish_task<S, Element>,
      .store_scores = __is_same(Element, KeyElement) ? store_scores<S, Element> : nullptr,
  };
}

template <class S, class Element>
constexpr ProjectionKernels projection_of() {
  return ProjectionKernels{
      .lanes = S::kLanes,
      .depth_step = 1,
      .columns_per_panel = kColumnsPerPanel<S>,
      .columns_per_task = kColumnsPerTask<S>,
      .rows_per_tile = kTileRows<S>,
      .rows_per_task = kRowsPerTask,
      .workspace_bytes =
          [] {
            ProjectionWorkspace<typename S::Real> w;
            return lay_out<S>(w, nullptr, sizeof(Element) == 2, sizeof(Element) == 2);
          },
      .pack = pack_panel<S, Element>,
      .project = project<S, Element>,
  };
}

constexpr KernelTable table_of(const char* name) {
  return KernelTable{.name = name,
                     .base = nullptr,
                     .kinds = {kernels_of<VecF32, float>(), kernels_of<VecF64, double>(), kernels_of<VecF32, Half>(),
                               kernels_of<VecF32, BFloat16>(), kernels_of<VecF32, float, Int8>(),
                               kernels_of<VecF32, float, Float8>()},
                     .backward = {backward_of<VecF32, float>(), backward_of<VecF64, double>(), backward_of<VecF32, Half>(),
                                  backward_of<VecF32, BFloat16>()},
                     .projections = {projection_of<VecF32, float>(), projection_of<VecF64, double>(),
                                     projection_of<VecF32, Half>(), projection_of<VecF32, BFloat16>()},
                     .rotations = {rotate<VecF32, float>, rotate<VecF64, double>, rotate<VecF32, Half>,
                                   rotate<VecF32, BFloat16>},
                     .bursts = {fma_burst<VecF32>, fma_burst<VecF64>, nullptr, nullptr}};
}

}  // namespace
}  // namespace headway
