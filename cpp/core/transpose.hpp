// A matrix turned over, for rows that a kernel reads front to back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headway {

// to (columns, rows) = from (rows, columns) transposed. Elements of 2, 4 or 8 bytes; strides lie between rows and count
// elements.
void transpose(const void* from, std::ptrdiff_t from_stride, std::int64_t rows, std::int64_t columns, void* to,
               std::ptrdiff_t to_stride, std::size_t element_size);

}  // namespace headway
