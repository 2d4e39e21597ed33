// A mask that several heads share, one after the other in one thread: its blocks are moved into the lanes for the first
// head and kept for the others, as far as the keys of one span.
#pragma once

#include "mask.hpp"

namespace headway {
namespace {

inline constexpr int kBlocksPerSpan = kKeysPerSpan / kKeysPerBlock;

// AttentionTask::kept_mask: what the mask does to each block of keys, for each panel of the task, and then the addends,
// (panels, blocks, kKeysPerBlock, lanes).
template <class S>
struct KeptMask {
  using Real = typename S::Real;
  static constexpr std::int64_t kNumbers = kKeysPerBlock * S::kPanelVecs * S::kLanes;  // of a block

  alignas(64) MaskBlock<Real> blocks[kMostPanels][kBlocksPerSpan];

  Real* addends(int panel, std::int64_t block) {
    return reinterpret_cast<Real*>(this + 1) + (panel * kBlocksPerSpan + block) * kNumbers;
  }
};

template <class S>
constexpr std::size_t kept_mask_bytes(int panels) {
  return sizeof(KeptMask<S>) + static_cast<std::size_t>(panels * kBlocksPerSpan * KeptMask<S>::kNumbers) * sizeof(typename S::Real);
}

template <class S>
KeptMask<S>* kept_mask_of(const AttentionTask& task) {
  return static_cast<KeptMask<S>*>(task.kept_mask);
}

// Before the first block of a task: nothing is kept of a mask that no head before this one has read.
template <class S>
void begin_mask(const AttentionTask& task) {
  auto* kept = kept_mask_of<S>(task);
  if (kept == nullptr || task.mask_is_kept) return;
  for (auto& blocks : kept->blocks) {
    for (auto& block : blocks) block = {Shown::kNothing, 0, 0, nullptr, false, true, {}};
  }
}

// What the mask does to keys [begin, begin + count) for the panel, a block or its beginning, by load_mask or kept.
template <class S>
MaskBlock<typename S::Real> mask_block(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin,
                                       std::int64_t count, bool fill_all) {
  auto& w = workspace_of<S>(task);
  auto* kept = kept_mask_of<S>(task);
  if (kept == nullptr) return load_mask<S>(task, panel, begin, count, w.bias, fill_all);
  const auto number = static_cast<int>(&panel - w.panels);
  auto& block = kept->blocks[number][begin / kKeysPerBlock];
  if (!task.mask_is_kept) block = load_mask<S>(task, panel, begin, count, kept->addends(number, begin / kKeysPerBlock), fill_all);
  return block;
}

// Whether the mask shows some row of the panel a key of the block [begin, begin + count).
template <class S>
bool block_shows(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin, std::int64_t count) {
  const auto* kept = kept_mask_of<S>(task);
  if (kept == nullptr || !task.mask_is_kept) return mask_shows<S>(task, panel, begin, count);
  return kept->blocks[&panel - workspace_of<S>(task).panels][begin / kKeysPerBlock].shown != Shown::kNothing;
}

}  // namespace
}  // namespace headway
