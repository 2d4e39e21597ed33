// The products of the backward pass, over one block of keys and one block of rows. Of each row, with weights w, gradient g
// at its context, and delta = g . context - gradient at its lse:
//   dw = g . v        s = w * (dw - delta)        dv += w g        dk += s q        dq += s k
// Rows are lanes for w and s, and for dq; columns are lanes for dv and dk, whose sums run over the rows of the block in
// order. Each sum over a block starts at 0 and is added to what the blocks before it gave: the bits depend on neither
// the threads nor the size of a chunk.
#pragma once

#include "backward_rows.hpp"
#include "vec_math.hpp"

namespace headway {
namespace {

// A tile of kKeysPerTile keys from `key` of the chunk on: (keys, lanes) = rows (keys, depth) . matrix (depth, lanes), for
// the vectors from kFirst on.
template <class S, int kFirst>
[[gnu::always_inline]] inline void multiply_rows(typename S::Vec (&acc)[kKeysPerTile][S::kPanelVecs], const typename S::Real* rows,
                                                 std::int64_t width, const typename S::Real* matrix, std::int64_t depth) {
#pragma GCC unroll 32
  for (int i = 0; i < kKeysPerTile; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < S::kPanelVecs; ++j) acc[i][j] = S::zero();
  }
  multiply_tile<S, kKeysPerTile, S::kPanelVecs, kFirst>(acc, rows, width, 1, matrix, kPanelLanes<S>, depth);
}

// x (a product or a score) -> weight, see GradientPanel.
template <class S>
[[gnu::always_inline]] inline typename S::Vec weight_of(typename S::Vec x, typename S::Vec reference, typename S::Vec correction,
                                                        typename S::Vec scale2) {
  return exp2<S>(S::fma(S::sub(x, reference), scale2, correction));
}

// Weights of a tile of keys from `key` on (in the block, which begins at `offset` of the chunk) for the vectors from
// kFirst on; 0 for the others. kMasked: some row does not see some key.
template <class S, int kFirst, bool kMasked>
[[gnu::noinline]] void weigh_tile(const BackwardTask& task, const Panel<typename S::Real>& panel,
                                  const GradientPanel<typename S::Real>& gradients, std::int64_t offset, std::int64_t key) {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  const auto& w = backward_workspace_of<S>(task);
  Vec acc[kKeysPerTile][S::kPanelVecs];
  multiply_rows<S, kFirst>(acc, w.chunk_keys + (offset + key) * w.head_width, w.head_width, panel.queries, task.forward.head_dim);
  const Vec scale2 = S::set1(w.scale.scale2);
  Real* out = gradients.weights + key * kPanelLanes<S>;
#pragma GCC unroll 32
  for (int j = 0; j < S::kPanelVecs; ++j) {
    const int lane = j * S::kLanes;
    const Vec reference = S::load(gradients.reference + lane), correction = S::load(gradients.correction + lane);
#pragma GCC unroll 32
    for (int i = 0; i < kKeysPerTile; ++i) {
      Vec weight = weight_of<S>(acc[i][j], reference, correction, scale2);
      if constexpr (kMasked) weight = S::select(hides<S>(panel, nullptr, lane, offset + key + i), S::zero(), weight);
      S::store(out + i * kPanelLanes<S> + lane, j < kFirst ? S::zero() : weight);
    }
  }
}

// w * (dw - delta); 0 where the weight is, whatever dw is.
template <class S>
[[gnu::always_inline]] inline typename S::Vec score_gradient(typename S::Vec weight, typename S::Vec dw, typename S::Vec delta) {
  const auto none = S::greater(S::set1(kLeastNormal<typename S::Real>), weight);
  return S::select(none, S::zero(), S::mul(weight, S::sub(dw, delta)));
}

// Gradients at the scores of the same tile, from its weights.
template <class S, int kFirst>
[[gnu::noinline]] void gradient_tile(const BackwardTask& task, const GradientPanel<typename S::Real>& gradients, std::int64_t offset,
                                     std::int64_t key) {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  const auto& w = backward_workspace_of<S>(task);
  Vec acc[kKeysPerTile][S::kPanelVecs];
  multiply_rows<S, kFirst>(acc, w.chunk_values + (offset + key) * w.value_width, w.value_width, gradients.grads, task.forward.value_dim);
  const Real* weights = gradients.weights + key * kPanelLanes<S>;
  Real* out = gradients.products + key * kPanelLanes<S>;
#pragma GCC unroll 32
  for (int j = 0; j < S::kPanelVecs; ++j) {
    const Vec delta = S::load(gradients.delta + j * S::kLanes);
#pragma GCC unroll 32
    for (int i = 0; i < kKeysPerTile; ++i) {
      const std::int64_t at = i * kPanelLanes<S> + j * S::kLanes;
      S::store(out + at, j < kFirst ? S::zero() : score_gradient<S>(S::load(weights + at), acc[i][j], delta));
    }
  }
}

// The same product as it is, for all vectors, where options act on scores: of keys and queries, or of values and gradients.
template <class S>
[[gnu::noinline]] void product_tile(const typename S::Real* rows, std::int64_t width, const typename S::Real* matrix, std::int64_t depth,
                                    typename S::Real* out) {
  typename S::Vec acc[kKeysPerTile][S::kPanelVecs];
  multiply_rows<S, 0>(acc, rows, width, matrix, depth);
#pragma GCC unroll 32
  for (int i = 0; i < kKeysPerTile; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < S::kPanelVecs; ++j) S::store(out + i * kPanelLanes<S> + j * S::kLanes, acc[i][j]);
  }
}

// What the products over rows take: a matrix of the block for each panel, (keys, lanes), rows (rows, width), and the rows
// that see some key of a tile.
template <class Real>
struct RowProduct {
  const Real* matrix[kMostBackwardPanels];   // factors
  const Real* weights[kMostBackwardPanels];  // where one is 0, the row is left out, unless `finite`
  const Real* rows;
  std::int64_t width;
  bool finite;
};
struct RowRange {
  std::int64_t begin, end;
};

// sums (kKeysPerTile, kCols vectors) += matrix^T (keys, rows) . rows (rows, columns) for the keys from `key` on.
template <class S, int kCols>
[[gnu::noinline]] void add_to_keys(const RowProduct<typename S::Real>& product, std::int64_t key, RowRange range, std::int64_t column,
                                   typename S::Real* sums) {
  using Real = typename S::Real;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  typename S::Vec acc[kKeysPerTile][kCols];
#pragma GCC unroll 32
  for (int i = 0; i < kKeysPerTile; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kCols; ++j) acc[i][j] = S::zero();
  }
  for (std::int64_t row = range.begin; row < range.end;) {
    const std::int64_t p = row / kLanes, lane = row % kLanes;
    const std::int64_t count = (range.end < (p + 1) * kLanes ? range.end : (p + 1) * kLanes) - row;
    const std::int64_t at = key * kLanes + lane;
    const Real* rows = product.rows + row * product.width + column;
    if (product.finite) {
      multiply_tile<S, kKeysPerTile, kCols>(acc, product.matrix[p] + at, kLanes, 1, rows, product.width, count);
    } else {
      for (std::int64_t n = 0; n < count; ++n) {
        for (int i = 0; i < kKeysPerTile; ++i) {
          if (product.weights[p][at + i * kLanes + n] == 0) continue;
          const auto x = S::set1(product.matrix[p][at + i * kLanes + n]);
          for (int j = 0; j < kCols; ++j) acc[i][j] = S::fma(x, S::load(rows + n * product.width + j * S::kLanes), acc[i][j]);
        }
      }
    }
    row += count;
  }
  Real* out = sums + key * product.width + column;
#pragma GCC unroll 32
  for (int i = 0; i < kKeysPerTile; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kCols; ++j) {
      Real* p = out + i * product.width + j * S::kLanes;
      S::store(p, S::add(S::load(p), acc[i][j]));
    }
  }
}

// All columns for the keys [from, to) of the block; ranges: by tile of the block.
template <class S, int kCols = S::kAccumulators / static_cast<int>(kKeysPerTile)>
void add_all_to_keys(const RowProduct<typename S::Real>& product, std::int64_t from, std::int64_t to, const RowRange* ranges,
                     std::int64_t column, typename S::Real* sums) {
  for (; column + kCols * S::kLanes <= product.width; column += kCols * S::kLanes) {
    for (std::int64_t key = from; key < to; key += kKeysPerTile) {
      const RowRange range = ranges[key / kKeysPerTile];
      if (range.begin < range.end) add_to_keys<S, kCols>(product, key, range, column, sums);
    }
  }
  if constexpr (kCols > 1) add_all_to_keys<S, kCols / 2>(product, from, to, ranges, column, sums);
}

// acc (kRows, lanes) += keys^T (kRows columns, keys) . products (keys, lanes), keys [key, to): each vector of lanes as far
// as its last row sees, from vector kFirst on.
template <class S, int kRows, int kFirst = 0>
[[gnu::always_inline]] inline void add_visible_keys(typename S::Vec (&acc)[kRows][S::kPanelVecs], const typename S::Real* keys,
                                                    std::int64_t width, const typename S::Real* products, const std::int64_t* ends,
                                                    std::int64_t key, std::int64_t to) {
  const std::int64_t end = ends[kFirst] < to ? ends[kFirst] : to;
  if (key < end) {
    multiply_tile<S, kRows, S::kPanelVecs, kFirst>(acc, keys + key * width, 1, width, products + key * kPanelLanes<S>, kPanelLanes<S>,
                                                   end - key);
    key = end;
  }
  if constexpr (kFirst + 1 < S::kPanelVecs) add_visible_keys<S, kRows, kFirst + 1>(acc, keys, width, products, ends, key, to);
}

// What the product over keys takes.
template <class Real>
struct KeyProduct {
  const Real* keys;      // (kKeysPerBlock, width)
  std::int64_t width;
  const Real* products;  // (kKeysPerBlock, lanes)
  const Real* weights;   // as in RowProduct
  std::int64_t from, to;
  const std::int64_t* ends;  // (vectors): behind the last key that a row of the vector sees
  bool finite;
};

// sums (head_dim, lanes), rows [d, d + kRows), += keys^T . products.
template <class S, int kRows>
[[gnu::noinline]] void add_to_queries(const KeyProduct<typename S::Real>& product, std::int64_t d, typename S::Real* sums) {
  using Real = typename S::Real;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  typename S::Vec acc[kRows][S::kPanelVecs];
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < S::kPanelVecs; ++j) acc[i][j] = S::zero();
  }
  if (product.finite) {
    add_visible_keys<S, kRows>(acc, product.keys + d, product.width, product.products, product.ends, product.from, product.to);
  } else {
    for (std::int64_t key = product.from; key < product.to; ++key) {
      for (int j = 0; j < S::kPanelVecs; ++j) {
        const std::int64_t at = key * kLanes + j * S::kLanes;
        const auto seen = S::not_less(S::load(product.weights + at), S::set1(kLeastNormal<Real>));
        const auto x = S::load(product.products + at);
        for (int i = 0; i < kRows; ++i) acc[i][j] = S::fma_where(seen, S::set1(product.keys[key * product.width + d + i]), x, acc[i][j]);
      }
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < S::kPanelVecs; ++j) {
      Real* p = sums + (d + i) * kLanes + j * S::kLanes;
      S::store(p, S::add(S::load(p), acc[i][j]));
    }
  }
}

// All rows of the sums, in as high tiles as fit.
template <class S, int kRows = S::kContextAccumulators / S::kPanelVecs>
void add_all_to_queries(const KeyProduct<typename S::Real>& product, std::int64_t d, std::int64_t head_dim, typename S::Real* sums) {
  for (; d + kRows <= head_dim; d += kRows) add_to_queries<S, kRows>(product, d, sums);
  constexpr int kFewer = kRows > 4 ? 4 : kRows / 2;
  if constexpr (kRows > 1) add_all_to_queries<S, kFewer>(product, d, head_dim, sums);
}

}  // namespace
}  // namespace headway
