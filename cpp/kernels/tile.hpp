// Building blocks over one tile: the register-blocked product, and the transposition between rows in memory and
// lanes in a panel. In a panel the lanes are query rows: a matrix (depth, lanes) holds one value per row and depth.
#pragma once

#include "kernel_table.hpp"

namespace headway {
namespace {

// A number that a function body takes as a constant.
template <int n> struct Constant { static constexpr int value = n; };

inline constexpr int kStepsPerFetch = 4;

// For multiply_tile: there is nothing to do beside the product.
struct NoFetch {};

// acc (kRows, kVecs vectors) += A (kRows, depth) . B (depth, lanes). A is read where it lies and broadcast element by
// element: A[i][n] = a[i * a_row_step + n * a_depth_step]. Each sum is one chain of FMAs in ascending depth. Vectors
// before kFirst and from kEnd on stay as they are. fetch(), called every kStepsPerFetch steps of the depth, may ask for what is needed
// later, so that memory works while the product runs.
template <class S, int kRows, int kVecs, int kFirst = 0, int kEnd = kVecs, class Fetch = NoFetch>
[[gnu::always_inline]] inline void multiply_tile(typename S::Vec (&acc)[kRows][kVecs], const typename S::Real* a,
                                                 std::ptrdiff_t a_row_step, std::ptrdiff_t a_depth_step,
                                                 const typename S::Real* b, std::ptrdiff_t b_depth_step,
                                                 std::int64_t depth, Fetch fetch = {}) {
  const auto step = [&](std::int64_t n) __attribute__((always_inline)) {
    typename S::Vec lanes[kVecs];
#pragma GCC unroll 32
    for (int j = kFirst; j < kEnd; ++j) lanes[j] = S::load(b + n * b_depth_step + j * S::kLanes);
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
      const auto x = S::set1(a[i * a_row_step + n * a_depth_step]);
#pragma GCC unroll 32
      for (int j = kFirst; j < kEnd; ++j) acc[i][j] = S::fma(x, lanes[j], acc[i][j]);
    }
  };
  std::int64_t n = 0;
  if constexpr (!__is_same(Fetch, NoFetch)) {
    for (; n + kStepsPerFetch <= depth; n += kStepsPerFetch) {
      fetch();
#pragma GCC unroll 4
      for (int i = 0; i < kStepsPerFetch; ++i) step(n + i);
    }
  }
#pragma GCC unroll 4
  for (; n < depth; ++n) step(n);
}

// sums (kRows, kVecs vectors) += what a block of keys came to by itself; or <- that, where nothing came before. So no chain
// of multiply-adds is longer than a block, for its rounding errors grow with its length.
template <class S, int kRows, int kVecs>
[[gnu::always_inline]] inline void store_sums(const typename S::Vec (&acc)[kRows][kVecs], typename S::Real* sums,
                                              bool started) {
  constexpr int kLanes = kVecs * S::kLanes;
  if (started) {
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
      for (int j = 0; j < kVecs; ++j) {
        auto* p = sums + i * kLanes + j * S::kLanes;
        S::store(p, S::add(S::load(p), acc[i][j]));
      }
    }
  } else {
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
      for (int j = 0; j < kVecs; ++j) S::store(sums + i * kLanes + j * S::kLanes, acc[i][j]);
    }
  }
}

// For widen_rows: the numbers as they are.
struct Unscaled {
  template <class Vec>
  Vec operator()(std::int64_t, Vec x) const {
    return x;
  }
};

// Rows (count, depth) of elements -> (count, depth) in the accumulation type; scaled(i, x) is what row i's numbers become.
template <class S, class Element, class Scaled = Unscaled>
void widen_rows(const Element* rows, std::ptrdiff_t stride, std::int64_t count, std::int64_t depth,
                typename S::Real* out, const Scaled& scaled = {}) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto widen = [&](std::int64_t at, int n) {
      S::store_elements(out + i * depth + at, scaled(i, S::load_elements(rows + i * stride + at, n)), n);
    };
    std::int64_t at = 0;
    for (; at + S::kLanes <= depth; at += S::kLanes) widen(at, S::kLanes);
    if (at < depth) widen(at, static_cast<int>(depth - at));
  }
}

// r (kLanes, kLanes) -> its transpose, by the wrapper's own way where it has one, else in log2(kLanes) rounds that
// interleave register i with register i + kLanes / 2.
template <class S>
[[gnu::always_inline]] inline void transpose(typename S::Vec (&r)[S::kLanes]) {
  if constexpr (requires { S::transpose(r); }) {
    S::transpose(r);
  } else {
    constexpr int kHalf = S::kLanes / 2;
#pragma GCC unroll 8
    for (int round = 1; round < S::kLanes; round *= 2) {
      typename S::Vec t[S::kLanes];
#pragma GCC unroll 32
      for (int i = 0; i < kHalf; ++i) {
        t[2 * i] = S::zip_low(r[i], r[i + kHalf]);
        t[2 * i + 1] = S::zip_high(r[i], r[i + kHalf]);
      }
#pragma GCC unroll 32
      for (int i = 0; i < S::kLanes; ++i) r[i] = t[i];
    }
  }
}

// Walks the rows of a task: row r is token r / group, head r % group.
struct RowCursor {
  std::int64_t token, head, group;
  RowCursor(std::int64_t row, std::int64_t heads)
      : token(heads == 1 ? row : row / heads), head(heads == 1 ? 0 : row % heads), group(heads) {}
  void next() {
    if (++head == group) {
      head = 0;
      ++token;
    }
  }
  std::ptrdiff_t offset(std::ptrdiff_t token_stride, std::ptrdiff_t head_stride) const {
    return token * token_stride + head * head_stride;
  }
};

// n columns of `count` rows <-> lanes of n rows of a matrix. Whole blocks (both kLanes, constants after inlining) go
// through registers alone, without a branch or a mask.
template <class S, class Element>
[[gnu::always_inline]] inline void load_block_transposed(const Element* const (&rows)[S::kLanes], std::int64_t at,
                                                         int count, int n, typename S::Real* matrix,
                                                         std::ptrdiff_t lane_stride) {
  typename S::Vec r[S::kLanes];
#pragma GCC unroll 32
  for (int i = 0; i < S::kLanes; ++i) r[i] = i < count ? S::load_elements(rows[i] + at, n) : S::zero();
  transpose<S>(r);
#pragma GCC unroll 32
  for (int i = 0; i < S::kLanes; ++i) {
    if (i < n) S::store(matrix + (at + i) * lane_stride, r[i]);
  }
}

template <class S, class Element, class Map>
[[gnu::always_inline]] inline void store_block_transposed(const typename S::Real* matrix, std::ptrdiff_t lane_stride,
                                                          std::int64_t at, int count, int n, const Map& map,
                                                          Element* const (&rows)[S::kLanes]) {
  typename S::Vec r[S::kLanes];
#pragma GCC unroll 32
  for (int i = 0; i < S::kLanes; ++i) {
    r[i] = i < n ? map(S::load(matrix + (at + i) * lane_stride)) : S::zero();
  }
  transpose<S>(r);
#pragma GCC unroll 32
  for (int i = 0; i < S::kLanes; ++i) {
    if (i < count) S::store_elements(rows[i] + at, r[i], n);
  }
}

// rows[i] (depth), i < count -> lanes i of matrix (depth, lane_stride); lanes from count to kLanes become 0.
template <class S, class Element>
void load_transposed(const Element* const (&rows)[S::kLanes], int count, std::int64_t depth,
                     typename S::Real* matrix, std::ptrdiff_t lane_stride) {
  std::int64_t at = 0;
  if constexpr (requires(typename S::Vec(&r)[4]) { S::load_columns(rows, at, r); }) {
    if (count == S::kLanes) {
      for (; at + S::kColumns <= depth; at += S::kColumns) {
        typename S::Vec r[S::kColumns];
        S::load_columns(rows, at, r);
#pragma GCC unroll 4
        for (int i = 0; i < S::kColumns; ++i) S::store(matrix + (at + i) * lane_stride, r[i]);
      }
    }
  } else if (count == S::kLanes) {
    for (; at + S::kLanes <= depth; at += S::kLanes) {
      load_block_transposed<S>(rows, at, S::kLanes, S::kLanes, matrix, lane_stride);
    }
  }
  for (; at < depth; at += S::kLanes) {
    const int n = depth - at < S::kLanes ? static_cast<int>(depth - at) : S::kLanes;
    load_block_transposed<S>(rows, at, count, n, matrix, lane_stride);
  }
}

// map(lanes i < count of matrix (depth, lane_stride)) -> rows[i] (depth).
template <class S, class Element, class Map>
void store_transposed(const typename S::Real* matrix, std::ptrdiff_t lane_stride, std::int64_t depth, const Map& map,
                      Element* const (&rows)[S::kLanes], int count) {
  std::int64_t at = 0;
  if (count == S::kLanes) {
    for (; at + S::kLanes <= depth; at += S::kLanes) {
      store_block_transposed<S>(matrix, lane_stride, at, S::kLanes, S::kLanes, map, rows);
    }
  }
  for (; at < depth; at += S::kLanes) {
    const int n = depth - at < S::kLanes ? static_cast<int>(depth - at) : S::kLanes;
    store_block_transposed<S>(matrix, lane_stride, at, count, n, map, rows);
  }
}

}  // namespace
}  // namespace headway
