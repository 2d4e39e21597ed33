// Where the keys and values of a task lie: in one piece, or in pages.
#pragma once

#include "elements.hpp"
#include "tile.hpp"

namespace headway {
namespace {

// Some rows, one after the other, and their scales where such elements have any.
template <class Element>
struct Rows {
  const Element* data;
  std::ptrdiff_t stride;
  const float* scales;
  std::ptrdiff_t scale_stride;
  std::int64_t count;
};

// The keys from `key` on, as far as they lie one after the other; kValues: their values.
template <bool kValues, class Element>
Rows<Element> rows_from(const AttentionTask& task, std::int64_t key) {
  const KeyPages& pages = task.pages;
  const auto* data = static_cast<const Element*>(kValues ? task.v : task.k);
  const std::ptrdiff_t stride = kValues ? task.v_token_stride : task.k_token_stride;
  // In one piece: more than anyone asks for, for scores are also stored of keys beyond the task's num_keys.
  if (pages.table == nullptr) return {data + key * stride, stride, nullptr, 0, kNoLimit};
  const std::int64_t page = pages.table[key / pages.size % pages.count], slot = key % pages.size;
  Rows<Element> rows{data + page * (kValues ? pages.v_stride : pages.k_stride) + slot * stride, stride, nullptr, 0,
                     pages.size - slot};
  if constexpr (kHasScales<Element>) {
    rows.scale_stride = kValues ? pages.v_scale_token_stride : pages.k_scale_token_stride;
    const std::ptrdiff_t at = page * (kValues ? pages.v_scale_stride : pages.k_scale_stride) + slot * rows.scale_stride;
    rows.scales = (kValues ? pages.v_scales : pages.k_scales) + at;
  }
  return rows;
}

// Calls piece(rows, n, at) for each run of n keys (or values) of [begin, begin + count) that lie one after the other; the
// first of them is key begin + at.
template <bool kValues, class Element, class Piece>
[[gnu::always_inline]] inline void for_pieces(const AttentionTask& task, std::int64_t begin, std::int64_t count,
                                              const Piece& piece) {
  for (std::int64_t at = 0; at < count;) {
    const Rows<Element> rows = rows_from<kValues, Element>(task, begin + at);
    const std::int64_t n = rows.count < count - at ? rows.count : count - at;
    piece(rows, n, at);
    at += n;
  }
}

// Keys [begin, begin + count) of the task, or their values -> (count, width) in the accumulation type.
template <class S, bool kValues, class Element>
void widen_keys(const AttentionTask& task, std::int64_t begin, std::int64_t count, typename S::Real* out) {
  const std::int64_t width = kValues ? task.value_dim : task.head_dim;
  for_pieces<kValues, Element>(task, begin, count, [&](const Rows<Element>& rows, std::int64_t n, std::int64_t at) {
    const auto scaled = [&](std::int64_t i, typename S::Vec x) {
      if constexpr (kHasScales<Element>) x = S::mul(x, S::set1(rows.scales[i * rows.scale_stride]));
      return x;
    };
    widen_rows<S>(rows.data, rows.stride, n, width, out + at * width, scaled);
  });
}

}  // namespace
}  // namespace headway
