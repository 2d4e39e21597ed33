// As peak.hpp, for products of pairs of bfloat16 numbers.
#pragma once

#include "pairs_dot.hpp"
#include "tile_registers.hpp"

namespace headway {
namespace {

// VDPBF16PS: two multiply-adds in each lane.
[[maybe_unused]] double dot_burst(std::int64_t rounds) {
  constexpr int kChains = VecPairs::kAccumulators;
  VecPairs::Vec acc[kChains];
  const auto pair = VecPairs::set1(1.0f);  // 1 beside 0
  for (int i = 0; i < kChains; ++i) acc[i] = VecPairs::zero();
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) acc[i] = VecPairs::fma(pair, pair, acc[i]);
  }
  auto total = VecPairs::zero();
  for (int i = 0; i < kChains; ++i) total = VecPairs::add(total, acc[i]);
  const bool counted = !VecPairs::any(VecPairs::greater(VecPairs::set1(0.5f), total));
  return counted ? 4.0 * static_cast<double>(rounds) * kChains * VecPairs::kLanes : 0.0;
}

// TDPBF16PS: (16, 16) sums of 32 products.
[[maybe_unused]] double tile_burst(std::int64_t rounds) {
  const TileSession session;
  alignas(64) std::uint16_t numbers[512];  // from 0.5 to 2, of both signs
  for (int i = 0; i < 512; ++i) numbers[i] = static_cast<std::uint16_t>(0x3f00 + i * 37 % 256 + i % 2 * 0x8000);
  for_tiles<4, 8>([&](auto tile) { tile_load<decltype(tile)::value>(numbers, 64); });
  for (std::int64_t round = 0; round < rounds; ++round) {
    for_tiles<0, 4>([](auto c) { tile_multiply<decltype(c)::value, 4 + decltype(c)::value % 2, 6 + decltype(c)::value / 2>(); });
  }
  return 4.0 * static_cast<double>(rounds) * 2 * 16 * 16 * 32;
}

}  // namespace
}  // namespace headway
