// Products of pairs by AMX, see tile_registers.hpp, for the attention.
//
// Scores: A is 16 rows of keys as they lie, B 16 pairs of the packed queries. Context: A is 16 rows of the transposed
// values, B 16 pairs of keys of the weights. Tiles 0 - 3 hold sums, one per vector of lanes, 4 is A, 5 - 7 are B.
#pragma once

#include "pairs_dot.hpp"
#include "pairs_tile_few.hpp"

namespace headway {
namespace {

struct TilePairs {
  static constexpr int kPanels = 8;  // of a task: keys are copied and values transposed once for all of them
  static constexpr int kDepthStep = 32, kValueStep = 16;
  static constexpr int kKeysPerTile = 16;
  static constexpr int kKeyStep = 32;
  static constexpr int kA = 4, kB = 5;

  using Session = TileSession;
  using Few = FewTilePairs;

  static bool reads(const BFloat16* keys, std::ptrdiff_t stride, std::int64_t head_dim) {
    return head_dim % kDepthStep == 0 && stride % 32 == 0 && reinterpret_cast<std::uintptr_t>(keys) % 64 == 0;
  }
  static DotPairs::Halves split(__m512 pairs) { return DotPairs::split(pairs); }
  static __m512 pair(__m512 even, __m512 odd) { return DotPairs::pair(even, odd); }

  // Scores of the kKeysPerJudgement keys from `begin` on: as far as vector kFirst sees, with all vectors, then the later
  // vectors alone.
  template <int kVecs>
  static void scores(const PairArgs& args, std::int64_t begin) {
    scores_from<kVecs, 0>(args, begin, begin);
  }
  template <int kVecs, int kFirst>
  [[gnu::noinline]] static void scores_from(const PairArgs& args, std::int64_t begin, std::int64_t key) {
    const std::int64_t most = begin + kKeysPerJudgement, end = args.ends[kFirst] < most ? args.ends[kFirst] : most;
    constexpr std::ptrdiff_t kRow = kVecs * VecF32::kLanes * kWord;
    const PairBlock& block = *args.block;
    // One vector of lanes: two groups of keys beside each other, so that as many sums are under way.
    for (; kVecs == 1 && key + 16 < end; key += 32) {
      tile_zero<0>();
      tile_zero<1>();
      const BFloat16* keys = block.keys + key * block.key_stride;
      for (std::int64_t d = 0; d < block.depth; d += kDepthStep) {
        workspace_of<VecF32>(*args.task).fetch.lines(8);
        tile_load<kA>(keys + d, block.key_stride * 2);
        tile_load<kB>(reinterpret_cast<const char*>(args.panel->queries) + d / 2 * kRow, kRow);
        tile_multiply<0, kA, kB>();
        workspace_of<VecF32>(*args.task).fetch.lines(8);
        tile_load<kB + 1>(keys + 16 * block.key_stride + d, block.key_stride * 2);
        tile_multiply<1, kB + 1, kB>();
      }
      auto* scores = reinterpret_cast<char*>(args.scores) + (key - begin) * kRow;
      tile_store<0>(scores, kRow);
      tile_store<1>(scores + 16 * kRow, kRow);
    }
    for (; key < end; key += 16) {
      for_tiles<kFirst, kVecs>([](auto j) { tile_zero<decltype(j)::value>(); });
      for (std::int64_t d = 0; d < block.depth; d += kDepthStep) {
        workspace_of<VecF32>(*args.task).fetch.lines(8);
        tile_load<kA>(block.keys + key * block.key_stride + d, block.key_stride * 2);
        const auto* queries = reinterpret_cast<const char*>(args.panel->queries) + d / 2 * kRow;
        for_tiles<kFirst, kVecs>([&](auto j) {
          constexpr int kVec = decltype(j)::value, kTile = kB + kVec % 3;
          tile_load<kTile>(queries + kVec * VecF32::kLanes * kWord, kRow);
          tile_multiply<kVec, kA, kTile>();
        });
      }
      auto* scores = reinterpret_cast<char*>(args.scores) + (key - begin) * kRow;
      for_tiles<kFirst, kVecs>([&](auto j) {
        tile_store<decltype(j)::value>(scores + decltype(j)::value * VecF32::kLanes * kWord, kRow);
      });
    }
    if constexpr (kFirst + 1 < kVecs) scores_from<kVecs, kFirst + 1>(args, begin, key);
  }

  // The sums of one context tile += the keys from `key` on.
  template <int kVecs, int kFirst>
  [[gnu::always_inline]] static inline void add_keys(const PairArgs& args, const BFloat16* values, std::int64_t key) {
    constexpr std::ptrdiff_t kRow = kVecs * VecF32::kLanes * kWord;
    for (; key < args.ends[kFirst]; key += kKeyStep) {
      workspace_of<VecF32>(*args.task).fetch.lines(8);
      tile_load<kA>(values + key, kKeysPerBlock * 2);
      const auto* weights = reinterpret_cast<const char*>(args.weights) + key / 2 * kRow;
      for_tiles<kFirst, kVecs>([&](auto j) {
        constexpr int kVec = decltype(j)::value, kTile = kB + kVec % 3;
        tile_load<kTile>(weights + kVec * VecF32::kLanes * kWord, kRow);
        tile_multiply<kVec, kA, kTile>();
      });
    }
    if constexpr (kFirst + 1 < kVecs) add_keys<kVecs, kFirst + 1>(args, values, key);
  }

  // Context rows (16, lanes) += values^T (16, keys) . weights (keys, lanes), tile by tile.
  template <int kVecs>
  [[gnu::noinline]] static void context(const PairArgs& args) {
    constexpr std::ptrdiff_t kRow = kVecs * VecF32::kLanes * kWord;
    for (std::int64_t d = 0; d < args.task->value_dim; d += 16) {
      auto* context = reinterpret_cast<char*>(args.state->context) + d * kRow;
      for_tiles<0, kVecs>([&](auto j) {
        constexpr int kVec = decltype(j)::value;
        if (args.state->started) {
          tile_load<kVec>(context + kVec * VecF32::kLanes * kWord, kRow);
        } else {
          tile_zero<kVec>();
        }
      });
      add_keys<kVecs, 0>(args, args.block->packed + d * kKeysPerBlock, args.begin);
      for_tiles<0, kVecs>([&](auto j) {
        tile_store<decltype(j)::value>(context + decltype(j)::value * VecF32::kLanes * kWord, kRow);
      });
    }
  }

  // values (count, value_dim) -> their transpose (value_dim padded to 16, kKeysPerBlock), zeros beside them as far as
  // the product reads. Eight columns of 32 keys at a time.
  [[gnu::noinline]] static void pack_values(const BFloat16* values, std::ptrdiff_t stride, std::int64_t count, std::int64_t value_dim,
                          BFloat16* packed, Fetch& fetch) {
    for (std::int64_t key = 0; key < count; key += 32) {
      const BFloat16* rows = values + key * stride;
      std::int64_t d = 0;
      if (key + 32 <= count) {
        for (; d + 8 <= value_dim; d += 8) {
          fetch.lines(8);  // as many as are read here
          pack_columns(packed + d * kKeysPerBlock + key,
                       [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i * stride + d)); });
        }
      }
      for (; d < pad_to(value_dim, kValueStep); d += 8) {
        const __mmask8 used = d < value_dim ? static_cast<__mmask8>(first_of_32(value_dim - d)) : __mmask8{0};
        pack_columns(packed + d * kKeysPerBlock + key, [&](int i) {
          return key + i < count ? _mm_maskz_loadu_epi16(used, rows + i * stride + d) : _mm_setzero_si128();
        });
      }
    }
  }

 private:
  // Eight columns of 32 rows, load(i) giving those of row i -> 8 rows of 32 at `out`.
  template <class Load>
  [[gnu::always_inline]] static inline void pack_columns(BFloat16* out, const Load& load) {
    __m512i r[8];  // r[i]: rows i, 8 + i, 16 + i, 24 + i
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm512_castsi128_si512(load(i));
      r[i] = _mm512_inserti32x4(r[i], load(8 + i), 1);
      r[i] = _mm512_inserti32x4(r[i], load(16 + i), 2);
      r[i] = _mm512_inserti32x4(r[i], load(24 + i), 3);
    }
    transpose_quarters(r);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) _mm512_store_si512(out + i * kKeysPerBlock, r[i]);
  }

  // Transposes each of the four (8, 8) matrices of 16-bit numbers that lie side by side in r.
  [[gnu::always_inline]] static inline void transpose_quarters(__m512i (&r)[8]) {
    __m512i t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      u[i] = _mm512_unpacklo_epi32(t[i], t[i + 2]);
      u[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 2]);
      u[i + 2] = _mm512_unpacklo_epi32(t[i + 1], t[i + 3]);
      u[i + 3] = _mm512_unpackhi_epi32(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[2 * i] = _mm512_unpacklo_epi64(u[i], u[i + 4]);
      r[2 * i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 4]);
    }
  }
};

}  // namespace
}  // namespace headway
