// Few rows in pairs, by AMX, see pairs_few.hpp: A is 16 rows of weights, of which rows from kRows on are 0 throughout: their
// sums are 0, unless a value is not finite. B is 16 pairs of keys' values.
#pragma once

#include "pairs_few.hpp"
#include "tile_registers.hpp"

namespace headway {
namespace {

struct FewTilePairs : FewPairs {
  // Whole steps of the depth are read where they lie, aligned or not: copying rows that are read once takes longer.
  static bool reads(const BFloat16*, std::ptrdiff_t, std::int64_t head_dim) { return head_dim % 32 == 0; }

  // 32 keys from `values` on, columns [0, 16 * kTiles), of which the first `count` keys are there -> kTiles tiles of pairs of
  // keys (16, 16), zeros beyond count.
  template <int kTiles>
  [[gnu::always_inline]] static inline void pack(const BFloat16* values, std::ptrdiff_t stride, std::int64_t count, float* tiles,
                                                 Fetch& fetch) {
    const auto put = [&](int pair, auto full) __attribute__((always_inline)) {
      const BFloat16 *even = values + 2 * pair * stride, *odd = even + stride;
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; t += 2) {
        const bool first = decltype(full)::value != 0 || 2 * pair < count, second = decltype(full)::value != 0 || 2 * pair + 1 < count;
        const __m512i a = first ? _mm512_loadu_si512(even + t * 16) : _mm512_setzero_si512();
        const __m512i b = second ? _mm512_loadu_si512(odd + t * 16) : _mm512_setzero_si512();
        _mm512_store_si512(tiles + t * 256 + pair * 16, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(tiles + (t + 1) * 256 + pair * 16, _mm512_unpackhi_epi16(a, b));
      }
      fetch.lines(kTiles);  // as many as are read here
    };
    if (count >= 32) {
#pragma GCC unroll 4
      for (int pair = 0; pair < 16; ++pair) put(pair, Constant<1>{});
    } else {
      for (int pair = 0; pair < 16; ++pair) put(pair, Constant<0>{});
    }
  }

  // Pairs of weights (pairs, 16 lanes) of 32 keys -> rows of weights (16, 32), zeros from kRows on.
  static void turn_weights(const float* weights, float* rows) {
    __m512 r[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) r[i] = _mm512_load_ps(weights + i * kSide);
    VecF32::transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) {
      _mm512_store_ps(rows + i * kSide, i < kRows ? r[i] : _mm512_setzero_ps());
    }
  }

  // Columns [d, d + 16 * kTiles).
  template <int kTiles>
  [[gnu::noinline]] static void add_columns(const Values& of, const float (*rows)[256], std::int64_t value_dim, std::int64_t d,
                                            const float* before, float* context, Fetch& fetch) {
    alignas(64) float tiles[2][kTiles * 256];
    const std::ptrdiff_t row_bytes = value_dim * kWord;
    for_tiles<0, kTiles>([&](auto j) {
      constexpr int kTile = decltype(j)::value;
      if (before != nullptr) {
        tile_load<kTile>(before + d + kTile * 16, row_bytes);
      } else {
        tile_zero<kTile>();
      }
    });
    pack<kTiles>(of.values + of.begin * of.stride + d, of.stride, of.count - of.begin, tiles[0], fetch);
    int turn = 0;
    for (std::int64_t key = of.begin; key < of.end; key += 32, turn ^= 1) {
      // The next pairs are put side by side while the tiles are at work.
      if (key + 32 < of.end) {
        pack<kTiles>(of.values + (key + 32) * of.stride + d, of.stride, of.count - key - 32, tiles[turn ^ 1], fetch);
      }
      tile_load<4>(rows[key / 32], 64);
      for_tiles<0, kTiles>([&](auto j) {
        constexpr int kTile = decltype(j)::value, kValues = 5 + kTile % 3;
        fetch.lines(8);  // of the keys, as many as are not asked for beside the scores
        tile_load<kValues>(tiles[turn] + kTile * 256, 64);
        tile_multiply<kTile, 4, kValues>();
      });
    }
    for_tiles<0, kTiles>([&](auto j) { tile_store<decltype(j)::value>(context + d + decltype(j)::value * 16, row_bytes); });
  }

  // context (16, value_dim) of the keys, added to `before` unless that is null; the rows after the panel's are of no account.
  // weights: pairs of them, (pairs, 16 lanes). False where a value is not finite.
  [[gnu::noinline]] static bool add(const float* weights, std::int64_t, const Values& of, std::int64_t value_dim,
                                    const float* before, float* context, Fetch& fetch) {
    alignas(64) float rows[kKeysPerBlock / 32][256];
    for (std::int64_t key = of.begin; key < of.end; key += 32) turn_weights(weights + key / 2 * kSide, rows[key / 32]);
    std::int64_t d = 0;
    for (; d + 64 <= value_dim; d += 64) add_columns<4>(of, rows, value_dim, d, before, context, fetch);
    if (d < value_dim) add_columns<2>(of, rows, value_dim, d, before, context, fetch);
    const float* spare = context + kRows * value_dim;
    __mmask16 found = 0;
    for (d = 0; d < value_dim; d += 16) {
      const __m512 x = _mm512_load_ps(spare + d);
      found = static_cast<__mmask16>(found | _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q));
    }
    return found == 0;
  }
};

}  // namespace
}  // namespace headway
