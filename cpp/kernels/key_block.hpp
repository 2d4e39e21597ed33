// A block of keys and values on its way to the tiles: read in place, or copied, see load_block.
#pragma once

#include "panel.hpp"

namespace headway {
namespace {

// One block of keys and values as the tiles read them, in the accumulation type.
template <class Real>
struct KeyBlock {
  const Real* keys;    // (count, head_dim)
  const Real* values;  // (count, value_dim)
  const Real* tail;    // (kKeysPerGroup, head_dim): the last, incomplete group, padded
  std::ptrdiff_t key_stride, value_stride;
  std::int64_t count;
  std::int64_t offset;  // of the first key from the span's first
  const Real* clean;    // (count, value_dim): `values`, or a copy without those that are not finite; null: not looked at
  std::ptrdiff_t clean_stride;

  // The rows of a group of keys; the padded copy where fewer than a whole group are left.
  const Real* group(std::int64_t key) const { return key + kKeysPerGroup <= count ? keys + key * key_stride : tail; }
  std::ptrdiff_t group_stride(std::int64_t key, std::int64_t head_dim) const {
    return key + kKeysPerGroup <= count ? key_stride : head_dim;
  }
};

// Rows so far apart, by a large power of two, that a block of them finds room in few places of the caches only: it is
// copied, once for all panels.
template <class Element>
bool is_crowded(const AttentionTask& task) {
  constexpr std::ptrdiff_t kFar = 16384 / sizeof(Element);
  return task.k_token_stride % kFar == 0 && task.k_token_stride != 0 && task.k_token_stride != task.head_dim;
}

// Keys [begin, begin + count) of the task, ready for the tiles: in place, or copied into the workspace, widened there if
// they have 16 bits.
template <class S, class Element>
KeyBlock<typename S::Real> load_block(const AttentionTask& task, std::int64_t begin, std::int64_t count,
                                      std::int64_t span_begin, bool with_values) {
  using Real = typename S::Real;
  auto& w = workspace_of<S>(task);
  const auto* k = static_cast<const Element*>(task.k) + begin * task.k_token_stride;
  KeyBlock<Real> block{};
  block.count = count;
  block.offset = begin - span_begin;
  block.tail = w.tail;
  const std::int64_t whole = count / kKeysPerGroup * kKeysPerGroup;
  if (whole < count) {
    for (std::int64_t i = 0; i < kKeysPerGroup * task.head_dim; ++i) w.tail[i] = 0;
    widen_rows<S>(k + whole * task.k_token_stride, task.k_token_stride, count - whole, task.head_dim, w.tail);
  }
  if (sizeof(Element) == 2 || is_crowded<Element>(task)) {
    widen_rows<S>(k, task.k_token_stride, whole, task.head_dim, w.keys);
    block.keys = w.keys;
    block.key_stride = task.head_dim;
    if (with_values) {
      const auto* v = static_cast<const Element*>(task.v) + begin * task.v_token_stride;
      widen_rows<S>(v, task.v_token_stride, count, task.value_dim, w.values);
    }
    block.values = w.values;
    block.value_stride = task.value_dim;
  } else if constexpr (sizeof(Element) != 2) {
    block.keys = k;
    block.key_stride = task.k_token_stride;
    block.values = static_cast<const Element*>(task.v) + begin * task.v_token_stride;
    block.value_stride = task.v_token_stride;
  }
  return block;
}

}  // namespace
}  // namespace headway
