// What the CPU can do at most: independent multiply-adds in registers. The denominator of every fraction of a peak.
#pragma once

#include <cstdint>

namespace headway {
namespace {

// Returns 2 * multiply-adds done. The accumulators converge to 1, and are looked at, so that no round can be left out.
template <class S>
double fma_burst(std::int64_t rounds) {
  constexpr int kChains = S::kAccumulators;
  typename S::Vec acc[kChains];
  const auto half = S::set1(static_cast<typename S::Real>(0.5));
  for (int i = 0; i < kChains; ++i) acc[i] = S::set1(static_cast<typename S::Real>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) acc[i] = S::fma(acc[i], half, half);
  }
  auto total = S::zero();
  for (int i = 0; i < kChains; ++i) total = S::add(total, acc[i]);
  const bool finite = !S::any(S::greater(total, S::set1(static_cast<typename S::Real>(1e6))));
  return finite ? 2.0 * static_cast<double>(rounds) * kChains * S::kLanes : 0.0;
}

}  // namespace
}  // namespace headway
