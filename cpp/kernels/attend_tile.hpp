// The two tiles of the loop in prefill.hpp: scores and weights of some keys, and what these keys add to the context.
#pragma once

#include "key_block.hpp"
#include "score.hpp"

namespace headway {
namespace {

// Which keys of a block the context of few rows takes: [begin, full) for every row, [full, end) for those whose limit they
// do not pass.
struct FewKeys {
  std::int64_t begin, full, end;
};

template <class Real>
struct TileArgs;

// A block for a panel of few rows, see few_rows.hpp: its products, made before, and what adds its values to the context.
template <class Real>
struct FewRows {
  const Real* products;  // (kKeysPerBlock, lanes)
  const void* block;     // a FewBlock
  std::int64_t first_key;
  void (*add)(const TileArgs<Real>& args, KeyBlock<Real>& block, const FewKeys& keys, bool hides_some);
};

// What a tile needs to know beside its registers.
template <class Real>
struct TileArgs {
  const AttentionTask* task;
  const KeyBlock<Real>* block;
  const Panel<Real>* panel;
  Softmax<Real>* state;
  Real* weights;  // (kKeysPerBlock, lanes)
  SoftmaxScale<Real> scale;
  const Real* next_keys;  // of the block that comes next: what a cold task fetches ahead
  const FewRows<Real>* few;  // or null
};

// Asks for rows of `width` elements in their order, kStep elements at each call, whole cache lines. They are to be read
// from the second cache level: a block of keys is too large for the first.
template <class Real, int kStep>
struct RowFetch {
  static constexpr int kPerLine = 64 / sizeof(Real);
  const Real* row;
  std::ptrdiff_t stride;
  std::int64_t width;
  std::int64_t at = 0;
  int due = 0;

  void operator()() {
    due += kStep % kPerLine;
    const int lines = kStep / kPerLine + (due >= kPerLine);
    due %= kPerLine;
#pragma GCC unroll 8
    for (int i = 0; i < lines; ++i) {
      __builtin_prefetch(row + at, 0, 2);
      at += kPerLine;
      if (at >= width) {
        at = 0;
        row += stride;
      }
    }
  }
};

// Weights of one group of keys from `key` on, for kWide vectors of lanes from `lane` on; x (kKeysPerGroup, kWide) are the
// products, or scores where kShaped. The keys of the block before `first` count for nothing.
template <class S, int kWide, int kLanes, bool kShaped = false>
[[gnu::always_inline]] inline void weigh_group(const TileArgs<typename S::Real>& args, const typename S::Vec (*x)[kWide],
                                               int lane, std::int64_t key, std::int64_t first = 0) {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  constexpr Real kLeast = kLeastExponent<Real, kShaped>;
  const Vec scale2 = S::set1(args.scale.scale2);
  const bool alibi = kShaped && args.task->options.slopes != nullptr;
  const std::int64_t at = args.block->offset + key;
  alignas(64) [[maybe_unused]] Real expected[kShaped ? 2 * kWide * S::kLanes : 1];
  Vec largest[kWide];
  auto raised = S::greater(S::zero(), S::zero());
#pragma GCC unroll 32
  for (int j = 0; j < kWide; ++j) {
    largest[j] = S::max(S::max(x[0][j], x[1][j]), S::max(x[2][j], x[3][j]));
    Vec compared = largest[j];
    if (alibi && at % kKeysPerStep == 0) compared = S::add(compared, rise_at<S>(*args.panel, lane + j * S::kLanes, at).eager);
    raised = S::either(raised, S::greater(compared, S::load(args.state->bound + lane + j * S::kLanes)));
  }
  if (__builtin_expect(S::any(raised), 0)) {
    alignas(64) Real products[kWide * S::kLanes];
#pragma GCC unroll 32
    for (int j = 0; j < kWide; ++j) S::store(products + j * S::kLanes, largest[j]);
    const Real* rises = nullptr;
    if (alibi) {
#pragma GCC unroll 32
      for (int j = 0; j < kWide; ++j) {
        const Rise<S> rise = rise_at<S>(*args.panel, lane + j * S::kLanes, at);
        S::store(expected + 2 * j * S::kLanes, rise.ahead);
        S::store(expected + (2 * j + 1) * S::kLanes, rise.eager);
      }
      rises = expected;
    }
    raise_reference<S, kWide>(*args.state, args.scale, products, lane, args.weights + first * kLanes, key - first,
                              args.task->value_dim, kLanes, kLeastWeight<Real, kShaped>, rises);
  }

  Real* weights = args.weights + key * kLanes + lane;
#pragma GCC unroll 32
  for (int j = 0; j < kWide; ++j) {
    const Vec reference = S::load(args.state->reference + lane + j * S::kLanes);
    Real* sums = args.state->sum + lane + j * S::kLanes;
    Vec weight[kKeysPerGroup];
#pragma GCC unroll 32
    for (int i = 0; i < kKeysPerGroup; ++i) {
      weight[i] = exp2<S>(S::mul(S::sub(x[i][j], reference), scale2), kLeast);
      S::store(weights + i * kLanes + j * S::kLanes, weight[i]);
    }
    S::store(sums, S::add(S::load(sums), S::add(S::add(weight[0], weight[1]), S::add(weight[2], weight[3]))));
  }
}

// acc (kRows, kWide) <- q.k of kRows keys from `key` on (in the block), for kWide vectors of lanes from vector kFirst on.
template <class S, int kVecs, int kFirst, int kRows, int kWide, bool kFetch = false>
[[gnu::always_inline]] inline void multiply_keys(typename S::Vec (&acc)[kRows][kWide],
                                                 const TileArgs<typename S::Real>& args, std::int64_t key) {
  using Real = typename S::Real;
  const std::int64_t head_dim = args.task->head_dim;
  if constexpr (kVecs == 1) {
    if (args.few != nullptr) {
#pragma GCC unroll 32
      for (int i = 0; i < kRows; ++i) acc[i][0] = S::load(args.few->products + (key + i) * S::kLanes);
      return;
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kWide; ++j) acc[i][j] = S::zero();
  }
  const auto multiply = [&](const auto& fetch) {
    multiply_tile<S, kRows, kWide>(acc, args.block->group(key), args.block->group_stride(key, head_dim), 1,
                                   args.panel->queries + kFirst * S::kLanes, kVecs * S::kLanes, head_dim, fetch);
  };
  if constexpr (kFetch) {
    // Beside the product with these keys: their values.
    const std::ptrdiff_t stride = args.block->value_stride;
    multiply(RowFetch<Real, kStepsPerFetch * kRows>{args.block->values + key * stride, stride, args.task->value_dim});
  } else {
    multiply(NoFetch{});
  }
}

// Scores of kRows keys from `key` on (in the block) for the vectors kFirst .. kVecs - 1 of the panel, and from them
// the weights: the exponential follows the product while the scores are still in registers.
template <class S, int kVecs, int kFirst, int kRows, bool kMasked, bool kFetch = false>
[[gnu::noinline]] void weigh_keys(const TileArgs<typename S::Real>& args, std::int64_t key) {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  constexpr int kWide = kVecs - kFirst;
  constexpr int kLanes = kVecs * S::kLanes;
  constexpr int kLane = kFirst * S::kLanes;
  const Panel<Real>& panel = *args.panel;
  Vec acc[kRows][kWide];
  multiply_keys<S, kVecs, kFirst, kRows, kWide, kFetch>(acc, args, key);

#pragma GCC unroll 32
  for (int group = 0; group < kRows; group += kKeysPerGroup) {
    if constexpr (kMasked) {
#pragma GCC unroll 32
      for (int j = 0; j < kWide; ++j) {
        const Vec limit = S::load(panel.limits + kLane + j * S::kLanes);
#pragma GCC unroll 32
        for (int i = group; i < group + kKeysPerGroup; ++i) {
          const auto seen = S::not_less(limit, S::set1(static_cast<Real>(args.block->offset + key + i)));
          acc[i][j] = S::select(seen, acc[i][j], S::set1(-static_cast<Real>(__builtin_inf())));
        }
      }
    }

    weigh_group<S, kWide, kLanes>(args, acc + group, kLane, key + group);
  }
}

// acc (kRows, kVecs) += v (keys, kRows)^T . weights (keys, lanes) over keys [from, edge), of which the lanes of vector
// kFirst see a part (they are added under their mask), earlier vectors nothing, later vectors all.
template <class S, int kVecs, int kFirst, int kRows>
[[gnu::always_inline]] inline void add_edge_keys(typename S::Vec (&acc)[kRows][kVecs],
                                                 const TileArgs<typename S::Real>& args,
                                                 const typename S::Real* values, std::int64_t from,
                                                 std::int64_t count) {
  using Real = typename S::Real;
  constexpr int kLanes = kVecs * S::kLanes;
  const Real* limits = args.panel->limits + kFirst * S::kLanes;
  std::int64_t edge = static_cast<std::int64_t>(limits[S::kLanes - 1]) + 1 - args.block->offset;
  edge = edge < count ? edge : count;
  const auto limit = S::load(limits);
  std::int64_t key = from;
  for (; key < edge; ++key) {
    const auto seen = S::not_less(limit, S::set1(static_cast<Real>(args.block->offset + key)));
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
      const auto x = S::set1(values[key * args.block->value_stride + i]);
#pragma GCC unroll 32
      for (int j = kFirst; j < kVecs; ++j) {
        const auto weight = S::load(args.weights + key * kLanes + j * S::kLanes);
        acc[i][j] = j == kFirst ? S::fma_where(seen, x, weight, acc[i][j]) : S::fma(x, weight, acc[i][j]);
      }
    }
  }
  if constexpr (kFirst + 1 < kVecs) add_edge_keys<S, kVecs, kFirst + 1, kRows>(acc, args, values, key, count);
}

// Context rows [d, d + kRows) (kRows, lanes) += values (count, kRows)^T . weights (count, lanes). The first `full`
// keys are seen by every lane.
template <class S, int kVecs, int kRows, bool kFetch>
[[gnu::noinline]] void add_context(const TileArgs<typename S::Real>& args, std::int64_t d, std::int64_t full,
                                   std::int64_t count) {
  constexpr int kLanes = kVecs * S::kLanes;
  typename S::Real* context = args.state->context + d * kLanes;
  const typename S::Real* values = args.block->values + d;
  typename S::Vec acc[kRows][kVecs];
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kVecs; ++j) acc[i][j] = S::zero();
  }
  const auto multiply = [&](const auto& fetch) {
    multiply_tile<S, kRows, kVecs>(acc, values, 1, args.block->value_stride, args.weights, kLanes, full, fetch);
  };
  if constexpr (kFetch) {
    // Beside the product with these columns of the values: as large a part of the next block's keys.
    const std::ptrdiff_t stride = args.block->key_stride;
    const typename S::Real* row = args.next_keys + d * full / args.task->value_dim * stride;
    multiply(RowFetch<typename S::Real, kStepsPerFetch * kRows>{row, stride, args.task->head_dim});
  } else {
    multiply(NoFetch{});
  }
  if (full < count) add_edge_keys<S, kVecs, 0, kRows>(acc, args, values, full, count);
  store_sums<S, kRows, kVecs>(acc, context, args.state->started);
}

}  // namespace
}  // namespace headway
