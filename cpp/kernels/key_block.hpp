// A block of keys and values on its way to the tiles: read in place, or copied, see load_block.
#pragma once

#include "key_rows.hpp"
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

// Keys [begin, begin + count) of the task, ready for the tiles: in place, or copied into the workspace where they lie in
// several pages, are crowded, or are to be widened.
template <class S, class Element>
KeyBlock<typename S::Real> load_block(const AttentionTask& task, std::int64_t begin, std::int64_t count,
                                      std::int64_t span_begin, bool with_values) {
  using Real = typename S::Real;
  auto& w = workspace_of<S>(task);
  KeyBlock<Real> block{};
  block.count = count;
  block.offset = begin - span_begin;
  block.tail = w.tail;
  const std::int64_t whole = count / kKeysPerGroup * kKeysPerGroup;
  if (whole < count) {
    for (std::int64_t i = 0; i < kKeysPerGroup * task.head_dim; ++i) w.tail[i] = 0;
    widen_keys<S, false, Element>(task, begin + whole, count - whole, w.tail);
  }
  const auto keys = rows_from<false, Element>(task, begin);
  const bool split = keys.count < count;
  if (!__is_same(Element, Real) || split || is_crowded<Element>(task)) {
    widen_keys<S, false, Element>(task, begin, whole, w.keys);
    if (with_values) widen_keys<S, true, Element>(task, begin, count, w.values);
    block.keys = w.keys;
    block.key_stride = task.head_dim;
    block.values = w.values;
    block.value_stride = task.value_dim;
  } else if constexpr (__is_same(Element, Real)) {
    block.keys = keys.data;
    block.key_stride = keys.stride;
    block.values = rows_from<true, Element>(task, begin).data;
    block.value_stride = task.v_token_stride;
  }
  return block;
}

}  // namespace
}  // namespace headway
