// Rows of keys and values to be read soon, asked for line by line while others are read and computed with: the memory then
// works all the time, not only where its numbers are waited for. One line is asked for beside each that is read: in bursts of
// four and more they come a quarter more slowly, for a core waits for so few at once.
#pragma once

#include "key_rows.hpp"

namespace headway {
namespace {

inline constexpr std::ptrdiff_t kLineBytes = 64;

class Fetch {
 public:
  // The keys [begin, begin + count) of the task and their values, as far as they lie in the first page of them.
  template <class Element>
  static Fetch of(const AttentionTask& task, std::int64_t begin, std::int64_t count) {
    Fetch fetch;
    if (count <= 0) return fetch;
    const auto keys = rows_from<false, Element>(task, begin), values = rows_from<true, Element>(task, begin);
    constexpr std::ptrdiff_t kSize = sizeof(Element);
    const std::int64_t rows = keys.count < count ? keys.count : count;
    fetch.part_ = part(keys.data, keys.stride * kSize, task.head_dim * kSize, rows);
    fetch.after_ = part(values.data, values.stride * kSize, task.value_dim * kSize, rows);
    return fetch;
  }

  // Asks for the next line, into the second-level cache: a block of keys is too large for the first.
  [[gnu::always_inline]] void line() {
    if (__builtin_expect(at_ >= end_, 0)) {
      if (part_.rows == 0) {
        part_ = after_;
        after_.rows = 0;
      }
      if (part_.rows == 0) return;
      at_ = part_.row;
      end_ = at_ + part_.width;
      part_.row += part_.stride;
      --part_.rows;
    }
    __builtin_prefetch(at_, 0, 2);
    at_ += kLineBytes;
  }
  void lines(int n) {
    for (; n > 0; --n) line();
  }

 private:
  struct Part {
    const char* row;
    std::ptrdiff_t stride, width;  // in bytes
    std::int64_t rows;
  };

  // Rows without a gap are one.
  static Part part(const void* rows, std::ptrdiff_t stride, std::ptrdiff_t width, std::int64_t count) {
    const auto* first = static_cast<const char*>(rows);
    return stride == width ? Part{first, 0, width * count, 1} : Part{first, stride, width, count};
  }

  const char *at_ = nullptr, *end_ = nullptr;
  Part part_{nullptr, 0, 0, 0}, after_{nullptr, 0, 0, 0};
};

}  // namespace
}  // namespace headway
