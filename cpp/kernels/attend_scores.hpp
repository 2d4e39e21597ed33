// One block of keys for one panel where more than the causal rule is at work: a window's far edge, a mask, or something
// that shapes the scores. Products go to memory, become scores there (score.hpp), then weights, in place.
//
// The arithmetic of a row is that of attend_tile.hpp, key by key, so that its bits do not depend on which of the two
// served its neighbours. Hidden keys have weight 0 here and take part in the product with the values, which is exact
// where these are finite; values that are not are left out of it, and added to the lanes that see them.
#pragma once

#include "attend_tile.hpp"
#include "mask.hpp"
#include "score.hpp"

namespace headway {
namespace {

// Which keys of the block each vector of lanes sees: those from begins[j] to ends[j] - 1, whole groups; both rise.
template <int kVecs>
struct Edges {
  std::int64_t begins[kVecs], ends[kVecs];
};

// Of the keys from `from` to `to` - 1.
template <class S, int kVecs>
Edges<kVecs> edges_of(const TileArgs<typename S::Real>& args, std::int64_t from, std::int64_t to) {
  Edges<kVecs> edges;
  const auto clamp = [&](std::int64_t n) { return n < from ? from : n > to ? to : n; };
  for (int j = 0; j < kVecs; ++j) {
    const auto start = static_cast<std::int64_t>(args.panel->starts[j * S::kLanes]);
    const auto limit = static_cast<std::int64_t>(args.panel->limits[(j + 1) * S::kLanes - 1]);
    edges.begins[j] = clamp(start - args.block->offset) / kKeysPerGroup * kKeysPerGroup;
    edges.ends[j] = (clamp(limit + 1 - args.block->offset) + kKeysPerGroup - 1) / kKeysPerGroup * kKeysPerGroup;
  }
  return edges;
}

// What a tile needs to know of the options; the weights of the block begin at key `first`.
template <class Real>
struct Options {
  Shape<Real> shape;
  const Real* bias;  // (kKeysPerBlock, lanes): what a mask adds, or null
  std::int64_t first;
  std::int64_t begin;  // the block's first key
  std::int64_t open, full;  // keys from `open` to `full` - 1 are hidden from no lane by its position
};

// Products acc (kRows, kWide) of keys from `key` on and lanes from `lane` on -> scores, in registers. Capping is so much
// work that it goes by way of memory.
template <class S, int kLanes, bool kShaped, int kRows, int kWide>
[[gnu::always_inline]] inline void to_scores(typename S::Vec (&acc)[kRows][kWide], const TileArgs<typename S::Real>& args,
                                             const Options<typename S::Real>& options, std::int64_t key, int lane) {
  using Real = typename S::Real;
  const auto& panel = *args.panel;
  const auto for_each = [&](const auto& change) __attribute__((always_inline)) {
#pragma GCC unroll 32
    for (int j = 0; j < kWide; ++j) {
#pragma GCC unroll 32
      for (int i = 0; i < kRows; ++i) change(acc[i][j], key + i, lane + j * S::kLanes);
    }
  };
  using Vec = typename S::Vec;
  if constexpr (kShaped) {
    if (options.shape.capped) {
      Real* out = args.weights + key * kLanes;
      for_each([&](Vec& x, std::int64_t at, int from) { S::store(args.weights + at * kLanes + from, x); });
      cap_products<S>(options.shape, out + lane, kRows, kWide, kLanes);
      for_each([&](Vec& x, std::int64_t at, int from) { x = S::load(args.weights + at * kLanes + from); });
    } else if (options.shape.alibi || options.bias == nullptr) {
      for_each([&](Vec& x, std::int64_t, int) { x = S::mul(x, S::set1(options.shape.scale)); });
    }
    const auto add = [&](auto before) __attribute__((always_inline)) {
      for_each([&](Vec& x, std::int64_t at, int from) {
        const Vec slope = S::load(panel.slopes + from), position = S::load(panel.positions + from);
        x = add_alibi<S, decltype(before)::value != 0>(x, slope, position, args.block->offset + at);
      });
    };
    if (options.shape.alibi) args.task->right == 0 ? add(Constant<1>{}) : add(Constant<0>{});
  }
  if (!kShaped && options.bias != nullptr) {  // it only hides
    for_each([&](Vec& x, std::int64_t at, int from) {
      const Vec bias = S::load(options.bias + at * kLanes + from);
      x = S::select(S::greater(S::set1(kLowest<Real>), bias), bias, x);
    });
  } else if (options.bias != nullptr) {
    // scale * product + bias in one step where nothing is in between; 1 * x + bias is x + bias.
    const bool scaled = options.shape.capped || options.shape.alibi;
    const Vec scale = S::set1(scaled ? 1 : options.shape.scale);
    for_each([&](Vec& x, std::int64_t at, int from) {
      x = add_bias<S>(x, scale, S::load(options.bias + at * kLanes + from));
    });
  }
  if (key >= options.open && key + kRows <= options.full) return;
  const Vec hidden = S::set1(-static_cast<Real>(__builtin_inf()));
  for_each([&](Vec& x, std::int64_t at, int from) {
    x = S::select(hides<S>(panel, nullptr, from, args.block->offset + at), hidden, x);
  });
}

// Weights of kRows keys from `key` on: for vectors kFirst .. kEnd - 1 from products made into scores, 0 for the others.
template <class S, int kVecs, int kFirst, int kEnd, int kRows, bool kShaped>
[[gnu::noinline]] void weigh_scores(const TileArgs<typename S::Real>& args, const Options<typename S::Real>& options,
                                    std::int64_t key) {
  constexpr int kLanes = kVecs * S::kLanes, kWide = kEnd - kFirst, kLane = kFirst * S::kLanes;
  typename S::Vec acc[kRows][kWide];
  multiply_keys<S, kVecs, kFirst>(acc, args, key);
  to_scores<S, kLanes, kShaped>(acc, args, options, key, kLane);
#pragma GCC unroll 32
  for (int group = 0; group < kRows; group += kKeysPerGroup) {
    weigh_group<S, kWide, kLanes, kShaped>(args, acc + group, kLane, key + group, options.first);
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) {
      if (j < kFirst || j >= kEnd) S::store(args.weights + (key + i) * kLanes + j * S::kLanes, S::zero());
    }
  }
}

// Vectors kFirst .. kEnd - 1 for keys from `key` to `end`, in as high tiles as fit.
template <class S, int kVecs, int kFirst, int kEnd, bool kShaped>
void weigh_zone(const TileArgs<typename S::Real>& args, const Options<typename S::Real>& options, std::int64_t key,
                std::int64_t end) {
  constexpr int kMost = S::kAccumulators / (kEnd - kFirst) / kKeysPerGroup * kKeysPerGroup;
  constexpr int kRows = kMost > 2 * kKeysPerGroup ? 2 * kKeysPerGroup : kMost;
  if constexpr (kRows > kKeysPerGroup) {
    for (; key + kRows <= end && key + kRows <= args.block->count; key += kRows) {
      weigh_scores<S, kVecs, kFirst, kEnd, kRows, kShaped>(args, options, key);
    }
  }
  constexpr int kRowsPerGroup = kVecs * S::kLanes * kKeysPerGroup / kKeysPerBlock;  // so that a block asks for all rows
  for (; key < end; key += kKeysPerGroup) {
    if (options.bias != nullptr) {
      prefetch_mask<S>(*args.task, *args.panel, options.begin, key / kKeysPerGroup * kRowsPerGroup, kRowsPerGroup);
    }
    weigh_scores<S, kVecs, kFirst, kEnd, kKeysPerGroup, kShaped>(args, options, key);
  }
}

// Calls zone(Constant<first>, Constant<end>, begin, end) for runs of keys, ascending, and the vectors that see some of
// them: first those that a window lets in one after the other, then all, then those that the causal rule leaves.
template <int kVecs, class Zone>
[[gnu::always_inline]] inline void for_zones(const Edges<kVecs>& edges, const Zone& zone) {
  std::int64_t key = edges.begins[0];
  const auto run = [&](auto first, auto end, std::int64_t until) __attribute__((always_inline)) {
    if (key >= until) return;
    zone(first, end, key, until);
    key = until;
  };
  const auto least = [&](std::int64_t n) { return n < edges.ends[kVecs - 1] ? n : edges.ends[kVecs - 1]; };
  if constexpr (kVecs > 1) run(Constant<0>{}, Constant<1>{}, least(edges.begins[1]));
  if constexpr (kVecs > 2) run(Constant<0>{}, Constant<2>{}, least(edges.begins[2]));
  if constexpr (kVecs > 3) run(Constant<0>{}, Constant<3>{}, least(edges.begins[3]));
  run(Constant<0>{}, Constant<kVecs>{}, edges.ends[0]);
  if constexpr (kVecs > 1) run(Constant<1>{}, Constant<kVecs>{}, edges.ends[1]);
  if constexpr (kVecs > 2) run(Constant<2>{}, Constant<kVecs>{}, edges.ends[2]);
  if constexpr (kVecs > 3) run(Constant<3>{}, Constant<kVecs>{}, edges.ends[3]);
}

// Context rows [d, d + kRows) (kRows, lanes) += values (keys, kRows)^T . weights (keys, lanes).
template <class S, int kVecs, int kRows>
[[gnu::noinline]] void add_weighted(const TileArgs<typename S::Real>& args, const Edges<kVecs>& edges,
                                    const typename S::Real* values, std::ptrdiff_t stride, std::int64_t d) {
  constexpr int kLanes = kVecs * S::kLanes;
  typename S::Real* context = args.state->context + d * kLanes;
  typename S::Vec acc[kRows][kVecs];
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kVecs; ++j) {
      acc[i][j] = args.state->started ? S::load(context + i * kLanes + j * S::kLanes) : S::zero();
    }
  }
  for_zones<kVecs>(edges, [&](auto first, auto end, std::int64_t from, std::int64_t to) __attribute__((always_inline)) {
    to = to < args.block->count ? to : args.block->count;
    multiply_tile<S, kRows, kVecs, decltype(first)::value, decltype(end)::value>(
        acc, values + from * stride + d, 1, stride, args.weights + from * kLanes, kLanes, to - from);
  });
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kVecs; ++j) S::store(context + i * kLanes + j * S::kLanes, acc[i][j]);
  }
}

// Tiles of kRows context rows, then the remainder in ever fewer rows.
template <class S, int kVecs, int kRows>
void add_all_weighted(const TileArgs<typename S::Real>& args, const Edges<kVecs>& edges,
                      const typename S::Real* values, std::ptrdiff_t stride, std::int64_t d) {
  for (; d + kRows <= args.task->value_dim; d += kRows) add_weighted<S, kVecs, kRows>(args, edges, values, stride, d);
  constexpr int kFewer = kRows > 4 ? (kRows > 8 ? 8 : 4) : kRows / 2;
  if constexpr (kRows > 1) add_all_weighted<S, kVecs, kFewer>(args, edges, values, stride, d);
}

template <class Real>
inline bool is_finite(Real x) { return x - x == 0; }

// Whether values (count, value_dim) are all finite: x * 0 is 0 for these, else NaN.
template <class S>
bool all_finite(const typename S::Real* values, std::ptrdiff_t stride, std::int64_t count, std::int64_t value_dim) {
  constexpr int kChains = 4;
  typename S::Vec sums[kChains] = {S::zero(), S::zero(), S::zero(), S::zero()};
  const auto add = [&](auto& sum, const typename S::Real* p, int n) __attribute__((always_inline)) {
    sum = S::fma(S::load_elements(p, n), S::zero(), sum);
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const auto* row = values + i * stride;
    std::int64_t d = 0;
    for (; d + kChains * S::kLanes <= value_dim; d += kChains * S::kLanes) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) add(sums[c], row + d + c * S::kLanes, S::kLanes);
    }
    for (; d < value_dim; d += S::kLanes) {
      add(sums[i % kChains], row + d, value_dim - d < S::kLanes ? static_cast<int>(value_dim - d) : S::kLanes);
    }
  }
  const auto sum = S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]));
  return !S::any(S::not_less(sum, S::set1(1)));  // true for NaN alone
}

// The block's values as the product takes them: where they lie, or copied without those that are not finite.
template <class S>
void clean_values(const AttentionTask& task, KeyBlock<typename S::Real>& block) {
  using Real = typename S::Real;
  if (block.clean != nullptr) return;
  block.clean = block.values;
  block.clean_stride = block.value_stride;
  if (all_finite<S>(block.values, block.value_stride, block.count, task.value_dim)) return;
  Real* out = workspace_of<S>(task).clean;
  for (std::int64_t i = 0; i < block.count; ++i) {
    for (std::int64_t d = 0; d < task.value_dim; ++d) {
      const Real x = block.values[i * block.value_stride + d];
      out[i * task.value_dim + d] = is_finite(x) ? x : 0;
    }
  }
  block.clean = out;
  block.clean_stride = task.value_dim;
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

// One block of keys for one panel, as far as its mask shows them.
template <class S, int kVecs>
void attend_scores(const TileArgs<typename S::Real>& args, KeyBlock<typename S::Real>& block, const MaskBlock& mask,
                   std::int64_t begin) {
  constexpr int kLanes = kVecs * S::kLanes;
  using Real = typename S::Real;
  const AttentionTask& task = *args.task;
  const auto* bias = mask.shown == Shown::kPart ? workspace_of<S>(task).bias : nullptr;
  const Edges<kVecs> edges = edges_of<S, kVecs>(args, mask.begin, mask.end);
  const Options<Real> options{Shape<Real>(task, workspace_of<S>(task), ScoreStage::kWeights),
                              bias,
                              edges.begins[0],
                              begin,
                              args.panel->last_start - begin,
                              args.panel->first_limit + 1 - begin};
  for_zones<kVecs>(edges, [&](auto first, auto end, std::int64_t from, std::int64_t to) {
    constexpr int kFirst = decltype(first)::value, kEnd = decltype(end)::value;
    if (options.shape.scaled) {
      weigh_zone<S, kVecs, kFirst, kEnd, true>(args, options, from, to);
    } else {
      weigh_zone<S, kVecs, kFirst, kEnd, false>(args, options, from, to);
    }
  });
  const bool hides_some = bias != nullptr || !sees_all<S>(*args.panel, 0, block.offset + edges.begins[0], block.count) ||
                          !sees_all<S>(*args.panel, kLanes - S::kLanes, block.offset, block.count);
  if (hides_some) clean_values<S>(task, block);
  const auto* values = hides_some ? block.clean : block.values;
  const std::ptrdiff_t stride = hides_some ? block.clean_stride : block.value_stride;
  add_all_weighted<S, kVecs, S::kContextAccumulators / kVecs>(args, edges, values, stride, 0);
  args.state->started = true;
  if (values == block.values) return;
  const std::int64_t end = edges.ends[kVecs - 1] < block.count ? edges.ends[kVecs - 1] : block.count;
  add_not_finite<S>(
      task, *args.panel, *args.state, bias, block.offset, edges.begins[0], end,
      [&](std::int64_t key, std::int64_t d) { return block.values[key * block.value_stride + d]; },
      [&](std::int64_t key, int lane) { return S::load(args.weights + key * kLanes + lane); });
}

}  // namespace
}  // namespace headway
