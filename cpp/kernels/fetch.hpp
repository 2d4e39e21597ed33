// Rows of keys and values to be read soon, asked for line by line while others are read and computed with: the memory then
// works all the time, not only where its numbers are waited for. Evenly: lines asked for in bursts of four and more come a
// quarter more slowly, for a core waits for few at once.
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
    fetch.parts_[0] = {reinterpret_cast<const char*>(values.data), values.stride * kSize, task.value_dim * kSize, rows};
    fetch.parts_[1] = {reinterpret_cast<const char*>(keys.data), keys.stride * kSize, task.head_dim * kSize, rows};
    fetch.left_ = 1;
    fetch.part_ = fetch.parts_[1];
    return fetch;
  }

  // Asks for the next line, into the second-level cache: a block of keys is too large for the first.
  [[gnu::always_inline]] void line() {
    if (part_.rows <= 0) return;
    __builtin_prefetch(part_.row + at_, 0, 2);
    at_ += kLineBytes;
    if (__builtin_expect(at_ < part_.width, 1)) return;
    at_ = 0;
    part_.row += part_.stride;
    if (--part_.rows == 0 && left_ > 0) part_ = parts_[--left_];
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
  Part part_{nullptr, 0, 0, 0};
  Part parts_[2] = {};
  std::ptrdiff_t at_ = 0;
  int left_ = 0;
};

// The same for a list of rows.
class FetchList {
 public:
  FetchList(const RowsAhead* list, int count) : next_(list), left_(count) { take(); }

  [[gnu::always_inline]] void line() {
    if (now_.rows <= 0) return;
    __builtin_prefetch(static_cast<const char*>(now_.data) + at_, 0, 2);
    at_ += kLineBytes;
    if (__builtin_expect(at_ < now_.width, 1)) return;
    at_ = 0;
    now_.data = static_cast<const char*>(now_.data) + now_.stride;
    if (--now_.rows == 0) take();
  }

 private:
  void take() {
    now_.rows = 0;
    for (; now_.rows <= 0 && left_ > 0; --left_) now_ = *next_++;
  }
  const RowsAhead* next_;
  RowsAhead now_{};
  std::ptrdiff_t at_ = 0;
  int left_;
};

}  // namespace
}  // namespace headway
