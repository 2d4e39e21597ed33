// What a thread of the backward pass will read soon, for kernels that fetch it beside their products.
#pragma once

#include <algorithm>
#include <array>

#include "tasks.hpp"

namespace headway {

class AheadList {
 public:
  // Tokens [begin, end) of a head; what does not fit any more is left out.
  void add(const TensorView& view, std::size_t size, std::int64_t batch, std::int64_t head, std::int64_t begin, std::int64_t end,
           std::int64_t width) {
    if (count_ == kMost || view.data == nullptr || begin >= end) return;
    rows_[static_cast<std::size_t>(count_++)] = {offset(view, size, batch, head, begin),
                                                 view.token_stride * static_cast<std::ptrdiff_t>(size),
                                                 static_cast<std::ptrdiff_t>(width) * static_cast<std::ptrdiff_t>(size), end - begin};
  }
  // Rows of a block, of every head of its group.
  void add_rows(const TensorView& view, std::size_t size, const TaskPlace& place, std::int64_t group, std::int64_t width) {
    const std::int64_t first = place.sequence.first_query;
    const std::int64_t begin = first + place.first_row / group, end = first + (place.first_row + place.num_rows + group - 1) / group;
    for (std::int64_t h = 0; h < group; ++h) add(view, size, place.batch, place.kv_head * group + h, begin, end, width);
  }
  const RowsAhead* data() const { return rows_.data(); }
  int count() const { return count_; }

 private:
  static constexpr int kMost = 48;
  std::array<RowsAhead, kMost> rows_;
  int count_ = 0;
};

}  // namespace headway
