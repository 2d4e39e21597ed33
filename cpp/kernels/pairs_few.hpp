// Few rows in pairs, by AMX: decoding, and short chunks. Values are not transposed as for many rows: pairs of keys are put
// side by side as they come, and the context has the rows of queries in rows, columns of values in lanes.
//
//   context (16 rows, columns) += weights (16 rows, keys) . values (keys, columns)
//
// Each sum is the same chain of products, so the bits are those of TilePairs::context. Rows from kRows on have
// weight 0 throughout: their sums are 0, unless a value is not finite; then the block is left to TilePairs::context.
#pragma once

#include "pair_block.hpp"
#include "tile_registers.hpp"

namespace headway {
namespace {

inline constexpr int kSide = 16;

// Columns are taken 32 at a time: the even tile of two has columns 0 - 3, 8 - 11, 16 - 19 and 24 - 27 of them, the odd
// one the others, which is how the CPU puts neighbouring 16-bit numbers of two registers side by side.
inline constexpr std::int64_t kFewColumns = 32;

struct FewPairs {
  static constexpr int kRows = 8;  // at most

  // Whether a task goes this way.
  static bool serves(const AttentionTask& task, const PairWorkspace& w) {
    return w.num_panels == 1 && w.panels[0].num_rows <= kRows && task.value_dim > 0 && task.value_dim % kFewColumns == 0;
  }

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

  // What a block's keys [begin, end) add to the context; begin is a multiple of 32.
  struct Values {
    const BFloat16* values;  // (count, value_dim)
    std::ptrdiff_t stride;
    std::int64_t count, begin, end;
  };

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

  // context (16, value_dim) of the keys, added to `before` unless that is null. False where a value is not finite.
  [[gnu::noinline]] static bool add(const float* weights, const Values& of, std::int64_t value_dim, const float* before,
                                    float* context, Fetch& fetch) {
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

  // context (16, value_dim) -> (value_dim, 16 lanes), the columns in their order.
  static void to_lanes(const float* context, std::int64_t value_dim, float* out) {
    for (std::int64_t d = 0; d < value_dim; d += 16) {
      __m512 r[kSide];
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) {
        r[i] = i < kRows ? _mm512_load_ps(context + i * value_dim + d) : _mm512_setzero_ps();
      }
      VecF32::transpose(r);
      const std::int64_t first = d / kFewColumns * kFewColumns + (d % kFewColumns != 0 ? 4 : 0);
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) _mm512_store_ps(out + (first + i / 4 * 8 + i % 4) * 16, r[i]);
    }
  }

  // Each row of context (16, value_dim) times its factor, as raise_reference does it in lanes.
  static void rescale(float* context, std::int64_t value_dim, const float* factors) {
    for (int i = 0; i < kRows; ++i) {
      const __m512 factor = _mm512_set1_ps(factors[i]);
      const __m512 least = _mm512_div_ps(_mm512_set1_ps(kLeastNormal<float>), factor);
      for (std::int64_t d = 0; d < value_dim; d += 16) {
        const __m512 x = _mm512_load_ps(context + i * value_dim + d);
        const __m512 size = VecF32::max(x, _mm512_sub_ps(_mm512_setzero_ps(), x));
        const __m512 kept = VecF32::select(VecF32::greater(least, size), VecF32::zero(), x);
        _mm512_store_ps(context + i * value_dim + d, _mm512_mul_ps(kept, factor));
      }
    }
  }
};

}  // namespace
}  // namespace headway
