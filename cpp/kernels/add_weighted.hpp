// What the keys of a block add to the context where some are hidden from some lanes: hidden keys have weight 0 and take
// part in the product, which is exact where their values are finite. Others are left out of it, and added by themselves
// to the lanes that see them.
#pragma once

#include "score.hpp"
#include "zones.hpp"

namespace headway {
namespace {

template <class Real>
inline bool is_finite(Real x) { return x - x == 0; }

// The block's values as the product takes them where some are hidden: where they lie if all are finite, else a copy that
// has 0 for those that are not.
template <class S>
void clean_values(const AttentionTask& task, KeyBlock<typename S::Real>& block) {
  using Real = typename S::Real;
  if (block.clean != nullptr) return;
  block.clean = block.values;
  block.clean_stride = block.value_stride;
  Real* out = workspace_of<S>(task).clean;
  bool found = false;
  for (std::int64_t i = 0; i < block.count; ++i) {
    for (std::int64_t d = 0; d < task.value_dim; ++d) {
      const Real x = block.values[i * block.value_stride + d];
      found = found || !is_finite(x);
      out[i * task.value_dim + d] = is_finite(x) ? x : 0;
    }
  }
  if (!found) return;
  block.clean = out;
  block.clean_stride = task.value_dim;
}

// Context rows [d, d + kRows) += clean values^T . weights, one row at a time, each sum in the order of the fast product.
template <class S, int kVecs, int kRows>
void add_clean(const TileArgs<typename S::Real>& args, const Edges<kVecs>& edges, const KeyBlock<typename S::Real>& block,
               std::int64_t d) {
  constexpr int kLanes = kVecs * S::kLanes;
  for (int i = 0; i < kRows; ++i) {
    typename S::Real* context = args.state->context + (d + i) * kLanes;
    for (int lane = 0; lane < kLanes; lane += S::kLanes) {
      auto sum = S::zero();
      const std::int64_t end = edges.ends[kVecs - 1] < block.count ? edges.ends[kVecs - 1] : block.count;
      for (std::int64_t key = edges.begins[0]; key < end; ++key) {
        const auto value = S::set1(block.clean[key * block.clean_stride + d + i]);
        sum = S::fma(value, S::load(args.weights + key * kLanes + lane), sum);
      }
      S::store(context + lane, args.state->started ? S::add(S::load(context + lane), sum) : sum);
    }
  }
}

// The sum of all vectors, a few chains of additions side by side.
template <class S, int kRows, int kVecs>
[[gnu::always_inline]] inline typename S::Vec add_up(const typename S::Vec (&acc)[kRows][kVecs]) {
  typename S::Vec sums[kVecs];
#pragma GCC unroll 32
  for (int j = 0; j < kVecs; ++j) sums[j] = acc[0][j];
#pragma GCC unroll 32
  for (int i = 1; i < kRows; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kVecs; ++j) sums[j] = S::add(sums[j], acc[i][j]);
  }
#pragma GCC unroll 32
  for (int j = 1; j < kVecs; ++j) sums[0] = S::add(sums[0], sums[j]);
  return sums[0];
}

// Context rows [d, d + kRows) (kRows, lanes) += values (keys, kRows)^T . weights (keys, lanes). Where some weights are 0 for
// hidden keys and a sum comes out infinite or NaN, it is made anew without the values that are not finite.
template <class S, int kVecs, int kRows, bool kFetch>
[[gnu::noinline]] void add_weighted(const TileArgs<typename S::Real>& args, const Edges<kVecs>& edges,
                                    KeyBlock<typename S::Real>& block, bool hides_some, std::int64_t d) {
  using Real = typename S::Real;
  constexpr int kLanes = kVecs * S::kLanes;
  Real* context = args.state->context + d * kLanes;
  typename S::Vec acc[kRows][kVecs];
  const auto sum_up = [&](const Real* values, std::ptrdiff_t stride) __attribute__((always_inline)) {
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
      for (int j = 0; j < kVecs; ++j) acc[i][j] = S::zero();
    }
    for_zones<kVecs>(edges, [&](auto first, auto end, std::int64_t from, std::int64_t to) __attribute__((always_inline)) {
      constexpr int kFirst = decltype(first)::value, kEnd = decltype(end)::value;
      to = to < block.count ? to : block.count;
      const auto multiply = [&](const auto& fetch) __attribute__((always_inline)) {
        multiply_tile<S, kRows, kVecs, kFirst, kEnd>(acc, values + from * stride + d, 1, stride, args.weights + from * kLanes,
                                                     kLanes, to - from, fetch);
      };
      if constexpr (kFetch && kEnd - kFirst == kVecs) {
        // Beside the product with these columns of the values: as large a part of the next block's keys.
        const Real* row = args.next_keys + d * (to - from) / args.task->value_dim * block.key_stride;
        multiply(RowFetch<Real, kStepsPerFetch * kRows>{row, block.key_stride, args.task->head_dim});
      } else {
        multiply(NoFetch{});
      }
    });
  };
  sum_up(block.values, block.value_stride);
  if (hides_some) {
    // A sum of finite numbers, unless they are near the end of the range, is finite, and times 0 it is 0; else NaN.
    const auto test = S::mul(add_up<S>(acc), S::zero());
    if (__builtin_expect(S::any(S::not_less(test, S::set1(1))), 0)) {  // true for NaN alone
      clean_values<S>(*args.task, block);
      if (block.clean != block.values) return add_clean<S, kVecs, kRows>(args, edges, block, d);
    }
  }
  store_sums<S, kRows, kVecs>(acc, context, args.state->started);
}

// Tiles of kRows context rows, then the remainder in ever fewer rows, beside which nothing is fetched.
template <class S, int kVecs, int kRows, bool kFetch>
void add_all_weighted(const TileArgs<typename S::Real>& args, const Edges<kVecs>& edges,
                      KeyBlock<typename S::Real>& block, bool hides_some, std::int64_t d) {
  for (; d + kRows <= args.task->value_dim; d += kRows) add_weighted<S, kVecs, kRows, kFetch>(args, edges, block, hides_some, d);
  constexpr int kFewer = kRows > 4 ? (kRows > 8 ? 8 : 4) : kRows / 2;
  if constexpr (kRows > 1) add_all_weighted<S, kVecs, kFewer, false>(args, edges, block, hides_some, d);
}

// Adds the values that were left out, after the others of the block, to the lanes that see them: these become NaN or
// infinite. weight(key, lane): the weights of a vector of lanes.
template <class S, class Value, class Weight>
void add_not_finite(const AttentionTask& task, const Panel<typename S::Real>& panel, Softmax<typename S::Real>& state,
                    const typename S::Real* bias, std::int64_t offset, std::int64_t first, std::int64_t end,
                    const Value& value, const Weight& weight) {
  const int lanes = panel.vecs * S::kLanes;
  for (std::int64_t key = first; key < end; ++key) {
    for (std::int64_t d = 0; d < task.value_dim; ++d) {
      const auto x = value(key, d);
      if (is_finite(x)) continue;
      for (int lane = 0; lane < lanes; lane += S::kLanes) {
        const auto hidden = hides<S>(panel, bias != nullptr ? bias + key * lanes + lane : nullptr, lane, offset + key);
        auto* context = state.context + d * lanes + lane;
        const auto before = S::load(context);
        S::store(context, S::select(hidden, before, S::fma(S::set1(x), weight(key, lane), before)));
      }
    }
  }
}

}  // namespace
}  // namespace headway
