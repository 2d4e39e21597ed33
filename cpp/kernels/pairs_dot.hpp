// Products of pairs by VDPBF16PS: a vector of lanes += a broadcast pair times a vector of pairs. The tiles are those of
// float32, with a pair in the place of a number.
#pragma once

#include "pairs.hpp"
#include "pairs_dot_few.hpp"

namespace headway {
namespace {

// A lane holds a pair, in 32 bits; only the sums are float32 numbers.
struct VecPairs : VecF32 {
  static Vec fma(Vec a, Vec b, Vec c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

struct DotPairs {
  static constexpr int kPanels = 2;  // of a task
  static constexpr int kDepthStep = 2, kValueStep = 1;
  static constexpr int kKeysPerTile = 16;  // at most
  static constexpr int kKeyStep = 2;
  struct Session {};
  using Few = FewDotPairs;

  static bool reads(const BFloat16* keys, std::ptrdiff_t stride, std::int64_t head_dim) {
    return Few::reads(keys, stride, head_dim);
  }

  // Weights of two keys, rounded to nearest even, side by side in each lane.
  static __m512 pair(__m512 even, __m512 odd) {
    const __m512i rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
    const __m512i order = _mm512_or_si512(_mm512_set1_epi32(16 << 16),
                                          _mm512_mullo_epi32(_mm512_set1_epi32(0x10001), lane_numbers()));
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, rounded));
  }

  struct Halves { __m512 even, odd; };
  static Halves split(__m512 pairs) {
    const __m512i bits = _mm512_castps_si512(pairs);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-0x10000)))};
  }

  // The first n of 16 numbers each of two rows, side by side in each lane; no odd row counts as zeros.
  static __m512 interleave(const BFloat16* even, const BFloat16* odd, std::int64_t n) {
    const __mmask16 used = n < 16 ? VecF32::first(static_cast<int>(n)) : __mmask16{0xffff};
    const auto wide = [&](const BFloat16* p) {
      return p != nullptr ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(used, p)) : _mm512_setzero_si512();
    };
    return _mm512_castsi512_ps(_mm512_or_si512(wide(even), _mm512_slli_epi32(wide(odd), 16)));
  }

  // values (count, value_dim) -> (count / 2, value_dim) pairs of neighbouring keys; a last odd key has 0 beside it.
  static void pack_values(const BFloat16* values, std::ptrdiff_t stride, std::int64_t count, std::int64_t value_dim,
                          BFloat16* packed, Fetch& fetch) {
    auto* out = reinterpret_cast<float*>(packed);
    for (std::int64_t key = 0; key < count; key += 2, out += value_dim) {
      fetch.lines(4);
      for (std::int64_t d = 0; d < value_dim; d += 16) {
        const int n = value_dim - d < 16 ? static_cast<int>(value_dim - d) : 16;
        const auto* even = values + key * stride + d;
        VecF32::store_elements(out + d, interleave(even, key + 1 < count ? even + stride : nullptr, n), n);
      }
    }
  }

  // Scores of kRows keys from `key` on for the vectors kFirst .. kVecs - 1 of the panel.
  template <int kVecs, int kFirst, int kRows>
  [[gnu::noinline]] static void score_tile(const PairArgs& args, std::int64_t begin, std::int64_t key) {
    constexpr int kWide = kVecs - kFirst, kLanes = kVecs * VecF32::kLanes, kLane = kFirst * VecF32::kLanes;
    __m512 acc[kRows][kWide];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < kWide; ++j) acc[i][j] = VecF32::zero();
    }
    const auto* keys = reinterpret_cast<const float*>(args.block->keys + key * args.block->key_stride);
    multiply_tile<VecPairs, kRows, kWide>(acc, keys, args.block->key_stride / 2, 1, args.panel->queries + kLane, kLanes,
                                          args.block->depth / 2);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < kWide; ++j) VecF32::store(args.scores + (key - begin + i) * kLanes + kLane + j * VecF32::kLanes, acc[i][j]);
    }
  }

  // Scores of the kKeysPerJudgement keys from `begin` on: as far as vector kFirst sees, with all vectors, then the later
  // vectors alone.
  template <int kVecs>
  static void scores(const PairArgs& args, std::int64_t begin) {
    if (kVecs == 1 && args.few != nullptr) return Few::scores(args, begin);
    scores_from<kVecs, 0>(args, begin, begin);
  }
  template <int kVecs, int kFirst>
  static void scores_from(const PairArgs& args, std::int64_t begin, std::int64_t key) {
    const std::int64_t most = begin + kKeysPerJudgement, end = args.ends[kFirst] < most ? args.ends[kFirst] : most;
    constexpr int kWide = kVecs - kFirst, kRows = kWide == 1 ? 16 : kWide == 2 ? 8 : 4;
    for (; key < end && key % kRows != 0; key += 4) score_tile<kVecs, kFirst, 4>(args, begin, key);
    for (; key < end; key += kRows) score_tile<kVecs, kFirst, kRows>(args, begin, key);
    if constexpr (kFirst + 1 < kVecs) scores_from<kVecs, kFirst + 1>(args, begin, key);
  }

  // acc (kRows, kVecs) += packed (pairs, kRows)^T . weights (pairs, lanes) over the pairs from `pair` on.
  template <int kVecs, int kFirst, int kRows>
  [[gnu::always_inline]] static inline void add_pairs(__m512 (&acc)[kRows][kVecs], const PairArgs& args,
                                                      const float* values, std::int64_t pair) {
    constexpr int kLanes = kVecs * VecF32::kLanes;
    const std::int64_t end = (args.ends[kFirst] + 1) / 2, value_dim = args.task->value_dim;
    if (pair < end) {
      multiply_tile<VecPairs, kRows, kVecs, kFirst>(acc, values + pair * value_dim, 1, value_dim, args.weights + pair * kLanes,
                                                    kLanes, end - pair);
      pair = end;
    }
    if constexpr (kFirst + 1 < kVecs) add_pairs<kVecs, kFirst + 1, kRows>(acc, args, values, pair);
  }

  // Context rows [d, d + kRows) (kRows, lanes) += values^T . weights.
  template <int kVecs, int kRows>
  [[gnu::noinline]] static void context_tile(const PairArgs& args, std::int64_t d) {
    constexpr int kLanes = kVecs * VecF32::kLanes;
    float* context = args.state->context + d * kLanes;
    __m512 acc[kRows][kVecs];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) {
        acc[i][j] = args.state->started ? VecF32::load(context + i * kLanes + j * VecF32::kLanes) : VecF32::zero();
      }
    }
    add_pairs<kVecs, 0, kRows>(acc, args, reinterpret_cast<const float*>(args.block->packed) + d, args.begin / 2);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) VecF32::store(context + i * kLanes + j * VecF32::kLanes, acc[i][j]);
    }
  }

  // Tiles of kRows context rows, then the remainder in ever fewer rows.
  template <int kVecs, int kRows = VecF32::kContextAccumulators / kVecs>
  static void context(const PairArgs& args, std::int64_t d = 0) {
    for (; d + kRows <= args.task->value_dim; d += kRows) context_tile<kVecs, kRows>(args, d);
    constexpr int kFewer = kRows > 4 ? (kRows > 8 ? 8 : 4) : kRows / 2;
    if constexpr (kRows > 1) context<kVecs, kFewer>(args, d);
  }

 private:
  static __m512i lane_numbers() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
};

}  // namespace
}  // namespace headway
