// The backward pass of float32 and float16 by AMX, numbers in parts of bfloat16: see parts.hpp. The loop of backward.hpp; as
// there, sums are float32, in the order of rows and of keys, and the bits depend on neither the threads nor a chunk's size.
//
// Keys come in steps of 32. While the tiles make the products of one step's weights and score gradients, the vectors make
// those of the next one, see Beside.
#pragma once

#include "backward_part_others.hpp"

namespace headway {
namespace {

// Keys [from, to) of the block, as scores that options act on: weights and score gradients in memory. False: the mask shows
// none of them.
inline bool shape_part_block(const BackwardTask& task, std::int64_t offset, std::int64_t from, std::int64_t to, Beside& beside) {
  using S = VecF32;
  const AttentionTask& forward = task.forward;
  auto& w = part_backward_of(task);
  const auto& panel = w.panels[0];
  const auto& gradients = w.gradients[0];
  const std::int64_t begin = w.key_begin + offset, left = w.key_end - begin, keys = to < left ? to : left;
  const float* bias = nullptr;
  if (forward.options.mask != nullptr) {
    if (!mask_shows<S>(forward, panel, begin, keys)) return false;
    bias = mask_of<S>(forward, panel, begin, keys);
  }
  for (std::int64_t i = 0; i < from * kPanelLanes<S>; i += S::kLanes) {
    S::store(gradients.weights + i, S::zero());
    S::store(gradients.products + i, S::zero());
  }
  for (std::int64_t key = from; key < to; key += kDepthPerStep) multiply_keys(task, offset + key, key, kAllVectors, beside);
  const bool others = !w.rows_are_moderate || !w.block_is_moderate[offset / kKeysPerBlock];
  if (others) multiply_others(task, offset, from, keys);
  for (int lane = 0; lane < kPanelLanes<S>; lane += S::kLanes) {
    shape_weights<S>(task, panel, gradients, lane, offset, to, bias);
    if (forward.options.dropout.drops) drop_gradients<S>(task, panel, gradients, lane, begin, to);
    shape_gradients<S>(gradients, lane, to);
  }
  if (Shape<float>(forward, w, ScoreStage::kWeights).capped) uncap_gradients<S>(w, gradients, to);
  if (others) add_others(task, offset, from, keys);
  return true;
}

// Adds what keys [from, to) of the chunk give to all sums, step after step. kShaped: of one block, whose weights and score
// gradients are in memory.
template <bool kShaped>
void add_part_keys(const BackwardTask& task, std::int64_t from, std::int64_t to, Beside& beside) {
  const auto& w = part_backward_of(task);
  const auto& panel = w.panels[0];
  const std::int64_t full = panel.first_limit + 1 - w.key_begin, open = panel.last_start - w.key_begin;  // keys [open, full): seen by all
  VectorRange ranges[kKeysKept / kDepthPerStep] = {};
  const auto range_of = [&](std::int64_t key) -> VectorRange& { return ranges[key % kKeysKept / kDepthPerStep]; };
  const auto multiply = [&](std::int64_t key) {
    if (key >= to) return;
    range_of(key) = kShaped ? kAllVectors : vectors_that_see(panel, key);
    if constexpr (!kShaped) multiply_keys(task, key, 0, range_of(key), beside);
  };
  const auto weigh = [&](std::int64_t key) {
    if (key >= to) return;
    const KeyStep step{&task, key, kShaped ? key % kKeysPerBlock : 0, range_of(key)};
    const bool masked = key + kDepthPerStep > full || key < open;
    beside.begin(kShaped ? weigh_keys<true, false> : masked ? weigh_keys<false, true> : weigh_keys<false, false>, step);
  };
  multiply(from);
  weigh(from);
  beside.finish();
  for (std::int64_t key = from, unit = from; key < to; key += kDepthPerStep) {
    const std::int64_t next = key + kDepthPerStep;
    multiply(next);
    weigh(next);
    add_to_key_sums(task, key, range_of(key), beside);
    if (next == to || next % kKeysPerUnit == 0) {
      for (int j = 0; j < VecF32::kPanelVecs; j += 2) {  // of the unit, the steps in which these two vectors take part
        std::int64_t first = unit, last = next;
        while (first < last && !range_of(first).has(j)) first += kDepthPerStep;
        while (first < last && !range_of(last - kDepthPerStep).has(j)) last -= kDepthPerStep;
        if (first < last) add_to_query_sums(task, first, last, j, beside);
      }
      unit = next;
    }
    beside.finish();
  }
}

// The task's block of rows with the chunk of keys: runs of blocks of keys; or single ones, by way of memory, where options
// act on scores or some numbers are not moderate, which gives the same bits.
template <class Element>
void add_part_rows(const BackwardTask& task) {
  const TileSession session;
  begin_part_rows<Element>(task);
  const AttentionTask& forward = task.forward;
  auto& w = part_backward_of(task);
  const auto& panel = w.panels[0];
  const bool shaped = w.shaped || forward.options.dropout.drops || forward.options.mask != nullptr;
  const auto in_run = [&](std::int64_t offset) { return !shaped && w.rows_are_moderate && w.block_is_moderate[offset / kKeysPerBlock]; };
  Beside beside(task);
  const std::int64_t count = w.key_end - w.key_begin;
  std::int64_t first = panel.first_start - w.key_begin, last = panel.last_limit + 1 - w.key_begin;
  first = first < 0 ? 0 : first / kDepthPerStep * kDepthPerStep;
  last = pad_to(last < count ? last : count, kDepthPerStep);
  for (std::int64_t offset = 0, end; offset < count; offset = end) {
    end = offset + kKeysPerBlock;
    const bool run = in_run(offset);
    while (run && end < count && in_run(end)) end += kKeysPerBlock;
    const std::int64_t from = first > offset ? first : offset, to = last < end ? last : end;
    if (from >= to) continue;
    if (run) {
      add_part_keys<false>(task, from, to, beside);
    } else if (shape_part_block(task, offset, from - offset, to - offset, beside)) {
      add_part_keys<true>(task, from, to, beside);
    }
  }
}

template <class Element>
void finish_part_keys(const BackwardTask& task) {
  auto& w = part_backward_of(task);
  start_key_sums(w, 0, pad_to(w.key_end - w.key_begin, kDepthPerStep));
  finish_keys<VecF32, Element>(task);
}

template <class Element>
constexpr BackwardKernels part_backward() {
  BackwardKernels kernels = backward_of<VecF32, Element>();
  kernels.keys_per_chunk = part_keys_per_chunk;
  kernels.workspace_bytes = [](std::int64_t head_dim, std::int64_t value_dim) {
    PartBackwardWorkspace w;
    return lay_out_part_backward(w, nullptr, head_dim, value_dim);
  };
  kernels.fetches_ahead = true;
  kernels.exact = false;
  kernels.begin_keys = begin_part_keys<Element>;
  kernels.add_rows = add_part_rows<Element>;
  kernels.finish_keys = finish_part_keys<Element>;
  return kernels;
}

}  // namespace
}  // namespace headway
