// One block of keys for one panel where more than the causal rule is at work: a window's far edge, a mask, or something
// that shapes the scores. The arithmetic of a row is that of attend_tile.hpp, key by key, so that its bits do not depend
// on which of the two served its neighbours.
#pragma once

#include "add_weighted.hpp"
#include "kept_mask.hpp"

namespace headway {
namespace {

// What a tile needs to know of the options; the weights of the block begin at key `first`.
template <class Real>
struct Options {
  Shape<Real> shape;
  const MaskBlock<Real>* mask;  // or null: it does nothing
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
  constexpr std::int64_t kBytes = sizeof(Real);
  if constexpr (kShaped) {
    if (options.shape.capped) {
      Real* out = args.weights + key * kLanes;
      for_each([&](Vec& x, std::int64_t at, int from) { S::store(args.weights + at * kLanes + from, x); });
      cap_products<S>(options.shape, out + lane, kRows, kWide, kLanes);
      for_each([&](Vec& x, std::int64_t at, int from) { x = S::load(args.weights + at * kLanes + from); });
    } else if (!options.shape.alibi && options.mask == nullptr) {
      for_each([&](Vec& x, std::int64_t, int) { x = S::mul(x, S::set1(options.shape.scale)); });
    }
    const Vec scale = S::set1(options.shape.capped ? 1 : options.shape.scale);
    const auto add = [&](auto before) __attribute__((always_inline)) {
      for_each([&](Vec& x, std::int64_t at, int from) {
        const Vec slope = S::load(panel.slopes + from), position = S::load(panel.positions + from);
        x = S::fma(x, scale, alibi_of<S, decltype(before)::value != 0>(slope, position, args.block->offset + at));
      });
    };
    if (options.shape.alibi && panel.has_alibi) {
      const Real* alibi = panel.alibi + kKeysPerSpan + lane - args.block->offset - key;
#pragma GCC unroll 32
      for (int j = 0; j < kWide; ++j) {
#pragma GCC unroll 32
        for (int i = 0; i < kRows; ++i) acc[i][j] = S::fma(acc[i][j], scale, S::load_unaligned(alibi + (j * S::kLanes - i)));
      }
    } else if (options.shape.alibi) {
      args.task->right == 0 ? add(Constant<1>{}) : add(Constant<0>{});
    }
  }
  const Vec hidden = S::set1(-static_cast<Real>(__builtin_inf()));
  if (options.mask != nullptr) {
    // scale * product + bias in one step where nothing is in between; 1 * x + bias is x + bias.
    const bool scaled = !kShaped || options.shape.capped || options.shape.alibi;
    const Vec scale = S::set1(scaled ? 1 : options.shape.scale);
    const auto add_mask = [&](const auto& change) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int group = 0; group < kRows; group += kKeysPerGroup) {
        if (!options.mask->changes[(key + group) / kKeysPerGroup]) {
          if (scaled) continue;
#pragma GCC unroll 4
          for (int i = group; i < group + kKeysPerGroup; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < kWide; ++j) acc[i][j] = S::mul(acc[i][j], scale);
          }
          continue;
        }
#pragma GCC unroll 4
        for (int i = group; i < group + kKeysPerGroup; ++i) {
#pragma GCC unroll 8
          for (int j = 0; j < kWide; ++j) acc[i][j] = change(acc[i][j], key + i, lane + j * S::kLanes);
        }
      }
    };
    if (options.mask->in_bytes) {
      add_mask([&](Vec x, std::int64_t at, int from) __attribute__((always_inline)) {
        // Where a group of keys fills a number, the place in it is a constant.
        const std::int64_t number = kBytes == kKeysPerGroup ? key / kBytes + (at - key) / kBytes : at / kBytes;
        const std::int64_t byte = kBytes == kKeysPerGroup ? (at - key) % kBytes : at % kBytes;
        const Vec bytes = S::load(options.mask->addends + number * kLanes + from);
        const auto hides_key = S::byte_is_zero(bytes, static_cast<int>(byte));
        return S::select(hides_key, hidden, scaled ? x : S::mul(x, scale));
      });
    } else if (options.mask->hides) {
      add_mask([&](Vec x, std::int64_t at, int from) __attribute__((always_inline)) {
        return add_bias<S>(x, scale, S::load(options.mask->addends + at * kLanes + from));
      });
    } else {
      add_mask([&](Vec x, std::int64_t at, int from) __attribute__((always_inline)) {
        return S::fma(x, scale, S::load(options.mask->addends + at * kLanes + from));
      });
    }
  }
  if (key >= options.open && key + kRows <= options.full) return;
  for_each([&](Vec& x, std::int64_t at, int from) {
    x = S::select(hides<S>(panel, nullptr, from, args.block->offset + at), hidden, x);
  });
}

// Weights of kRows keys from `key` on: for vectors kFirst .. kEnd - 1 from products made into scores, 0 for the others.
template <class S, int kVecs, int kFirst, int kEnd, int kRows, bool kShaped, bool kFetch>
[[gnu::noinline]] void weigh_scores(const TileArgs<typename S::Real>& args, const Options<typename S::Real>& options,
                                    std::int64_t key) {
  constexpr int kLanes = kVecs * S::kLanes, kWide = kEnd - kFirst, kLane = kFirst * S::kLanes;
  typename S::Vec acc[kRows][kWide];
  multiply_keys<S, kVecs, kFirst, kRows, kWide, kFetch>(acc, args, key);
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
template <class S, int kVecs, int kFirst, int kEnd, bool kShaped, bool kFetch>
void weigh_zone(const TileArgs<typename S::Real>& args, const Options<typename S::Real>& options, std::int64_t key,
                std::int64_t end) {
  constexpr int kMost = S::kAccumulators / (kEnd - kFirst) / kKeysPerGroup * kKeysPerGroup;
  constexpr int kRows = kMost > 2 * kKeysPerGroup ? 2 * kKeysPerGroup : kMost;
  if constexpr (kRows > kKeysPerGroup) {
    for (; key + kRows <= end && key + kRows <= args.block->count; key += kRows) {
      weigh_scores<S, kVecs, kFirst, kEnd, kRows, kShaped, kFetch>(args, options, key);
    }
  }
  constexpr int kRowsPerGroup = kVecs * S::kLanes * kKeysPerGroup / kKeysPerBlock;  // so that a block asks for all rows
  const bool asks = options.mask != nullptr && !args.task->mask_is_kept;
  for (; key < end; key += kKeysPerGroup) {
    if (asks) {
      prefetch_mask<S>(*args.task, *args.panel, options.begin, key / kKeysPerGroup * kRowsPerGroup, kRowsPerGroup);
    }
    weigh_scores<S, kVecs, kFirst, kEnd, kKeysPerGroup, kShaped, kFetch>(args, options, key);
  }
}

// One block of keys for one panel, as far as its mask shows them. kFetch: see attend_block.
template <class S, int kVecs, bool kFetch>
void attend_scores(const TileArgs<typename S::Real>& args, KeyBlock<typename S::Real>& block, const MaskBlock<typename S::Real>& mask,
                   std::int64_t begin) {
  constexpr int kLanes = kVecs * S::kLanes;
  using Real = typename S::Real;
  const AttentionTask& task = *args.task;
  auto& w = workspace_of<S>(task);
  const MaskBlock<Real>* used = mask.shown == Shown::kPart ? &mask : nullptr;
  const Edges<kVecs> edges = edges_of<S, kVecs>(args, mask.begin, mask.end);
  const Options<Real> options{Shape<Real>(task, w, ScoreStage::kWeights),
                              used,
                              edges.begins[0],
                              begin,
                              args.panel->last_start - begin,
                              args.panel->first_limit + 1 - begin};
  for_zones<kVecs>(edges, [&](auto first, auto end, std::int64_t from, std::int64_t to) {
    constexpr int kFirst = decltype(first)::value, kEnd = decltype(end)::value;
    constexpr bool kFetches = kFetch && kEnd - kFirst == kVecs;
    if (options.shape.scaled) {
      weigh_zone<S, kVecs, kFirst, kEnd, true, kFetches>(args, options, from, to);
    } else {
      weigh_zone<S, kVecs, kFirst, kEnd, false, kFetches>(args, options, from, to);
    }
  });
  if (drops_weights(task)) drop_block<S, kVecs>(args, edges, begin);
  const bool hides_some = (used != nullptr && used->hides) || !sees_all<S>(*args.panel, 0, block.offset + edges.begins[0], block.count) ||
                          !sees_all<S>(*args.panel, kLanes - S::kLanes, block.offset, block.count);
  const std::int64_t last = edges.ends[kVecs - 1] < block.count ? edges.ends[kVecs - 1] : block.count;
  if (args.few != nullptr) {
    args.few->add(args, block, FewKeys{edges.begins[0], last, last}, hides_some);
  } else {
    add_all_weighted<S, kVecs, S::kContextAccumulators / kVecs, kFetch>(args, edges, block, hides_some, 0);
  }
  args.state->started = true;
  if (!hides_some || block.clean == nullptr || block.clean == block.values) return;
  const std::int64_t visible = args.panel->last_limit + 1 - begin;
  if (used != nullptr) load_mask<S>(task, *args.panel, begin, visible < block.count ? visible : block.count, w.bias, true);
  const Real* bias = used != nullptr ? w.bias : nullptr;
  add_not_finite<S>(
      task, *args.panel, *args.state, bias, block.offset, edges.begins[0], last,
      [&](std::int64_t key, std::int64_t d) { return block.values[key * block.value_stride + d]; },
      [&](std::int64_t key, int lane) { return S::load(args.weights + key * kLanes + lane); });
}

}  // namespace
}  // namespace headway
