#include "transpose.hpp"

#include <algorithm>

namespace headway {
namespace {

constexpr std::int64_t kLine = 64;  // bytes of a cache line

// Blocks of a cache line by a cache line: each line is read once and written once, whatever the strides. A block passes
// through registers in squares, which the compiler unrolls.
template <class Word>
void transpose_words(const Word* from, std::ptrdiff_t from_stride, std::int64_t rows, std::int64_t columns, Word* to,
                     std::ptrdiff_t to_stride) {
  constexpr std::int64_t kBlock = kLine / sizeof(Word), kSquare = 8;
  const auto square = [&](std::int64_t row, std::int64_t column) {
    const Word* source = from + row * from_stride + column;
    Word* target = to + column * to_stride + row;
    Word words[kSquare][kSquare];
#pragma GCC unroll 8
    for (std::int64_t r = 0; r < kSquare; ++r) {
#pragma GCC unroll 8
      for (std::int64_t c = 0; c < kSquare; ++c) words[c][r] = source[r * from_stride + c];
    }
#pragma GCC unroll 8
    for (std::int64_t c = 0; c < kSquare; ++c) {
#pragma GCC unroll 8
      for (std::int64_t r = 0; r < kSquare; ++r) target[c * to_stride + r] = words[c][r];
    }
  };
  for (std::int64_t row = 0; row < rows; row += kBlock) {
    const std::int64_t row_end = std::min(row + kBlock, rows);
    for (std::int64_t column = 0; column < columns; column += kBlock) {
      const std::int64_t column_end = std::min(column + kBlock, columns);
      for (std::int64_t c = column; c < column_end; c += kSquare) {
        for (std::int64_t r = row; r < row_end; r += kSquare) {
          if (r + kSquare <= row_end && c + kSquare <= column_end) {
            square(r, c);
            continue;
          }
          for (std::int64_t j = c; j < std::min(c + kSquare, column_end); ++j) {
            for (std::int64_t i = r; i < std::min(r + kSquare, row_end); ++i) {
              to[j * to_stride + i] = from[i * from_stride + j];
            }
          }
        }
      }
    }
  }
}

}  // namespace

void transpose(const void* from, std::ptrdiff_t from_stride, std::int64_t rows, std::int64_t columns, void* to,
               std::ptrdiff_t to_stride, std::size_t element_size) {
  const auto run = [&]<class Word>(const Word* source) {
    transpose_words(source, from_stride, rows, columns, static_cast<Word*>(to), to_stride);
  };
  if (element_size == 2) return run(static_cast<const std::uint16_t*>(from));
  if (element_size == 4) return run(static_cast<const std::uint32_t*>(from));
  run(static_cast<const std::uint64_t*>(from));
}

}  // namespace headway
