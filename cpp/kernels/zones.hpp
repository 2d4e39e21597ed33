// Zones of a block: runs of keys that the same vectors of a panel's lanes see, so that tiles leave the others out.
#pragma once

#include "attend_tile.hpp"
#include "dropout.hpp"

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

// Dropout of the block's weights (keys, lanes), the keys that each vector sees; see dropout.hpp. first_key: the block's.
template <class S, int kVecs>
[[gnu::noinline]] void drop_block(const TileArgs<typename S::Real>& args, const Edges<kVecs>& edges, std::int64_t first_key) {
  for (int j = 0; j < kVecs; ++j) {
    drop_weights<S>(*args.task, *args.panel, j * S::kLanes, args.weights, first_key, edges.begins[j], edges.ends[j]);
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

}  // namespace
}  // namespace headway
