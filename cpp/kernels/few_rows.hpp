// Panels of few rows: decoding, and short chunks. Lanes of queries would mostly be empty, so here the lanes are keys for
// the products q.k, and columns of the values for the context. Every sum is the same chain as in attend_tile.hpp, in the
// same order, so the bits are the same; what stands between the two products is the same code.
//
//   products (keys, rows)  = transposed keys (head_dim, keys), a vector of keys at a time, . queries (head_dim, rows)
//   context (rows, columns) += weights (keys, rows) . values (keys, columns), some vectors of columns at a time
#pragma once

#include "add_weighted.hpp"

namespace headway {
namespace {

// With more of them, lanes of queries are used well.
template <class S>
inline constexpr int kFewRows = S::kLanes / 2;

// Where the keys and values of a block lie, and their scales where such elements have any.
template <class Element>
struct FewBlock {
  const Element* keys[kKeysPerBlock];
  const Element* values[kKeysPerBlock];
  alignas(64) float key_scales[kHasScales<Element> ? kKeysPerBlock : 1];
  float value_scales[kHasScales<Element> ? kKeysPerBlock : 1];
};

template <class Element>
void find_rows(const AttentionTask& task, std::int64_t begin, std::int64_t count, FewBlock<Element>& few) {
  const auto find = [&](auto values, const Element** out, float* scales) {
    for_pieces<decltype(values)::value != 0, Element>(
        task, begin, count, [&](const Rows<Element>& rows, std::int64_t n, std::int64_t at) {
          for (std::int64_t i = 0; i < n; ++i) out[at + i] = rows.data + i * rows.stride;
          for (std::int64_t i = 0; kHasScales<Element> && i < n; ++i) scales[at + i] = rows.scales[i * rows.scale_stride];
        });
  };
  find(Constant<0>{}, few.keys, few.key_scales);
  find(Constant<1>{}, few.values, few.value_scales);
  for (std::int64_t i = count; kHasScales<Element> && i < kKeysPerBlock; ++i) few.key_scales[i] = 0;
}

// Products (keys, lanes) of kRows rows and the vector of keys from `key` on: kLanes keys are turned into lanes, some
// columns at a time, and multiplied at once.
template <class S, class Element, int kRows>
[[gnu::noinline]] void multiply_few(const TileArgs<typename S::Real>& args, const FewBlock<Element>& few, std::int64_t key,
                                    std::int64_t count, typename S::Real* products, Fetch& shared) {
  using Vec = typename S::Vec;
  Fetch fetch = shared;  // in registers
  const std::int64_t head_dim = args.task->head_dim;
  const Element* rows[S::kLanes] = {};
  int n = 0;
  for (; n < S::kLanes && key + n < count; ++n) rows[n] = few.keys[key + n];
  [[maybe_unused]] Vec scales = S::zero();
  if constexpr (kHasScales<Element>) scales = S::load(few.key_scales + key);
  Vec acc[kRows];
#pragma GCC unroll 8
  for (int g = 0; g < kRows; ++g) acc[g] = S::zero();
  const typename S::Real* queries = args.panel->queries;
  const auto add = [&](Vec keys, std::int64_t d) __attribute__((always_inline)) {
    if constexpr (kHasScales<Element>) keys = S::mul(keys, scales);
#pragma GCC unroll 8
    for (int g = 0; g < kRows; ++g) acc[g] = S::fma(S::set1(queries[d * S::kLanes + g]), keys, acc[g]);
  };
  constexpr bool kHalfLine = S::kLanes * sizeof(Element) <= kLineBytes / 2;  // that a row gives at a time
  const auto multiply = [&](std::int64_t d, int used, int width) __attribute__((always_inline)) {
    Vec r[S::kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < S::kLanes; ++i) {
      r[i] = i < used ? S::load_elements(rows[i] + d, width) : S::zero();
    }
    transpose<S>(r);
#pragma GCC unroll 16
    for (int i = 0; i < S::kLanes; ++i) {
      if (i >= width) break;
      if (!kHalfLine || i % 2 == 0) fetch.line();
      add(r[i], d + i);
    }
  };
  std::int64_t d = 0;
  if constexpr (requires { S::part(S::zero(), Element{}, 0); }) {
    // Narrow elements are turned several at a time, as one number of 32 bits, and widened afterwards.
    constexpr int kParts = 4 / static_cast<int>(sizeof(Element));
    for (; n == S::kLanes && d + kParts * S::kLanes <= head_dim; d += kParts * S::kLanes) {
      Vec r[S::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < S::kLanes; ++i) {
        r[i] = S::load_elements(reinterpret_cast<const float*>(rows[i] + d), S::kLanes);
      }
      transpose<S>(r);
#pragma GCC unroll 16
      for (int i = 0; i < S::kLanes; ++i) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) add(S::part(r[i], Element{}, part), d + i * kParts + part);
        fetch.line();
      }
    }
  }
  for (; n == S::kLanes && d + S::kLanes <= head_dim; d += S::kLanes) {
    multiply(d, S::kLanes, S::kLanes);
  }
  for (; d < head_dim; d += S::kLanes) multiply(d, n, head_dim - d < S::kLanes ? static_cast<int>(head_dim - d) : S::kLanes);
  shared = fetch;
  alignas(64) typename S::Real sums[kRows][S::kLanes];
#pragma GCC unroll 8
  for (int g = 0; g < kRows; ++g) S::store(sums[g], acc[g]);
  for (int i = 0; i < S::kLanes; ++i) {
#pragma GCC unroll 8
    for (int g = 0; g < kRows; ++g) products[(key + i) * S::kLanes + g] = sums[g][i];
  }
}

// Columns [d, d + n) of the context, n = kVecs vectors of them, or less than one. False, and nothing changed, where a sum
// is not finite though some keys are hidden.
template <class S, class Element, int kRows, int kVecs>
[[gnu::noinline]] bool add_few(const TileArgs<typename S::Real>& args, const FewBlock<Element>& few, const FewKeys& keys,
                               bool hides_some, std::int64_t d, int n, Fetch& shared) {
  using Vec = typename S::Vec;
  Fetch fetch = shared;  // in registers
  typename S::Real* context = args.state->context + d * S::kLanes;
  Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int g = 0; g < kRows; ++g) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) acc[g][c] = S::zero();
  }
  constexpr int kBytes = S::kLanes * int{sizeof(Element)};  // of a vector of columns
  const auto add = [&](std::int64_t key, auto edge) __attribute__((always_inline)) {
    Vec values[kVecs];
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) {
      values[c] = S::load_elements(few.values[key] + d + c * S::kLanes, kVecs > 1 ? S::kLanes : n);
      if constexpr (kHasScales<Element>) values[c] = S::mul(values[c], S::set1(few.value_scales[key]));
      if ((c + 1) * kBytes % kLineBytes == 0) fetch.line();
    }
#pragma GCC unroll 8
    for (int g = 0; g < kRows; ++g) {
      if (decltype(edge)::value != 0 && args.panel->limits[g] < static_cast<typename S::Real>(args.block->offset + key)) continue;
      const Vec weight = S::set1(args.weights[key * S::kLanes + g]);
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) acc[g][c] = S::fma(values[c], weight, acc[g][c]);
    }
  };
  std::int64_t key = keys.begin;
  for (; key + 2 <= keys.full; key += 2) {
    add(key, Constant<0>{});
    add(key + 1, Constant<0>{});
    // The columns of two keys are less than two lines.
    if (kVecs * kBytes < kLineBytes && (2 * kVecs * kBytes >= kLineBytes || key % 4 == 0)) fetch.line();
  }
  for (; key < keys.full; ++key) add(key, Constant<0>{});
  for (; key < keys.end; ++key) add(key, Constant<1>{});
  shared = fetch;
  if (hides_some) {
    auto test = S::zero();  // x * 0 is 0 for finite numbers, else NaN
#pragma GCC unroll 8
    for (int g = 0; g < kRows; ++g) {
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) test = S::fma(acc[g][c], S::zero(), test);
    }
    if (__builtin_expect(S::any(S::not_less(test, S::set1(1))), 0)) return false;
  }
#pragma GCC unroll 8
  for (int c = 0; c < kVecs; ++c) {
    Vec r[S::kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < S::kLanes; ++i) r[i] = i < kRows ? acc[i < kRows ? i : 0][c] : S::zero();
    transpose<S>(r);
#pragma GCC unroll 16
    for (int i = 0; i < S::kLanes; ++i) {
      if (c * S::kLanes + i >= n) break;
      auto* p = context + (c * S::kLanes + i) * S::kLanes;
      S::store(p, args.state->started ? S::add(S::load(p), r[i]) : r[i]);
    }
  }
  return true;
}

// Columns [d, d + n) of the context += the block's values; see add_few.
template <class S, class Element, int kRows, int kVecs>
void add_columns(const TileArgs<typename S::Real>& args, KeyBlock<typename S::Real>& block, const FewKeys& keys,
                 bool hides_some, std::int64_t d, int n) {
  const AttentionTask& task = *args.task;
  auto& w = workspace_of<S>(task);
  const auto& few = *static_cast<const FewBlock<Element>*>(args.few->block);
  if (add_few<S, Element, kRows, kVecs>(args, few, keys, hides_some, d, n, w.fetch)) return;
  if (block.values == nullptr) {
    widen_keys<S, true, Element>(task, args.few->first_key, block.count, w.values);
    block.values = w.values;
    block.value_stride = task.value_dim;
    clean_values<S>(task, block);
  }
  if (block.clean == block.values) {  // a sum that passes the range by itself
    add_few<S, Element, kRows, kVecs>(args, few, keys, false, d, n, w.fetch);
  } else {
    for (std::int64_t i = d; i < d + n; ++i) add_clean<S, 1, 1>(args, Edges<1>{{keys.begin}, {keys.end}}, block, i);
  }
}

// The context from column d on += the block's values, kVecs vectors of columns at a time, then ever fewer. From d = 0 on:
// FewRows::add.
template <class S, class Element, int kRows, int kVecs>
void add_from(const TileArgs<typename S::Real>& args, KeyBlock<typename S::Real>& block, const FewKeys& keys,
              bool hides_some, std::int64_t d) {
  constexpr int kColumns = kVecs * S::kLanes;
  const std::int64_t end = args.task->value_dim;
  for (; d + kColumns <= end; d += kColumns) {
    add_columns<S, Element, kRows, kVecs>(args, block, keys, hides_some, d, kColumns);
  }
  if constexpr (kVecs > 1) {
    add_from<S, Element, kRows, kVecs / 2>(args, block, keys, hides_some, d);
  } else if (d < end) {
    add_columns<S, Element, kRows, 1>(args, block, keys, hides_some, d, static_cast<int>(end - d));
  }
}

template <class S, class Element, int kRows>
void add_few_context(const TileArgs<typename S::Real>& args, KeyBlock<typename S::Real>& block, const FewKeys& keys,
                     bool hides_some) {
  constexpr int kVecs = S::kAccumulators / kRows < 8 ? S::kAccumulators / kRows : 8;
  add_from<S, Element, kRows, kVecs>(args, block, keys, hides_some, 0);
}

// Calls body(Constant<n>) with the number of rows, or a little more, as a constant.
template <class S, class Body>
[[gnu::always_inline]] inline void with_few_rows(std::int64_t rows, const Body& body) {
  if (rows == 1) {
    body(Constant<1>{});
  } else if constexpr (kFewRows<S> >= 2) {
    if (rows == 2) {
      body(Constant<2>{});
    } else if constexpr (kFewRows<S> >= 4) {
      if (rows <= 4) {
        body(Constant<4>{});
      } else if constexpr (kFewRows<S> >= 8) {
        body(Constant<8>{});
      }
    }
  }
}

// One block of keys, the first of which is first_key, for a panel of few rows.
template <class S, class Element, class Attend>
[[gnu::always_inline]] inline void with_few(TileArgs<typename S::Real>& args, KeyBlock<typename S::Real>& block,
                                            const FewBlock<Element>& few, std::int64_t first_key, const Attend& attend) {
  auto& w = workspace_of<S>(*args.task);
  with_few_rows<S>(args.panel->num_rows, [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    for (std::int64_t key = 0; key < block.count; key += S::kLanes) {
      multiply_few<S, Element, kRows>(args, few, key, block.count, w.products, w.fetch);
    }
    const FewRows<typename S::Real> made{w.products, &few, first_key, add_few_context<S, Element, kRows>};
    args.few = &made;
    attend();
  });
}

}  // namespace
}  // namespace headway
