// The products of the backward pass by AMX, see tile_registers.hpp. Tiles 0 - 3 hold sums, 4 and 5 left factors, 6 and 7
// right ones.
#pragma once

#include "backward_pair_rows.hpp"

namespace headway {
namespace {

inline constexpr int kTileLeft = 4, kTileRight = 6;
inline constexpr std::ptrdiff_t kTileLanes = 16;

// out (32 keys, lanes) <- rows (32, depth) . pairs (depth / 2, lanes) for the vectors from `first` on, two at a time.
[[gnu::noinline]] inline void multiply_key_step(const BFloat16* rows, std::int64_t depth, const float* pairs, int first, float* out) {
  constexpr std::ptrdiff_t kRow = kPanelLanes<VecF32> * kWord;
  for (int j = first / 2 * 2; j < VecF32::kPanelVecs; j += 2) {
    for_tiles<0, 4>([](auto tile) { tile_zero<decltype(tile)::value>(); });
    for (std::int64_t d = 0; d < depth; d += 32) {
      const auto* right = reinterpret_cast<const char*>(pairs + j * kTileLanes) + d / 2 * kRow;
      tile_load<kTileLeft>(rows + d, depth * 2);
      tile_load<kTileRight>(right, kRow);
      tile_multiply<0, kTileLeft, kTileRight>();
      tile_load<kTileRight + 1>(right + kTileLanes * kWord, kRow);
      tile_multiply<1, kTileLeft, kTileRight + 1>();
      tile_load<kTileLeft + 1>(rows + 16 * depth + d, depth * 2);
      tile_multiply<2, kTileLeft + 1, kTileRight>();
      tile_multiply<3, kTileLeft + 1, kTileRight + 1>();
    }
    float* to = out + j * kTileLanes;
    tile_store<0>(to, kRow);
    tile_store<1>(to + kTileLanes, kRow);
    tile_store<2>(to + 16 * kPanelLanes<VecF32>, kRow);
    tile_store<3>(to + 16 * kPanelLanes<VecF32> + kTileLanes, kRow);
  }
}

// sums (32 keys, kCols * 16 columns) += factors (32, rows)^T . pairs (rows / 2, columns) over the rows [begin, end), both
// multiples of 32.
template <int kCols>
[[gnu::always_inline]] inline void add_key_columns(const BFloat16* factors, const float* pairs, std::int64_t width, std::int64_t begin,
                                                   std::int64_t end, float* sums) {
  const std::ptrdiff_t row = width * kWord;
  const auto at = [&](int i, int j) { return sums + i * 16 * width + j * kTileLanes; };
  tile_load<0>(at(0, 0), row);
  tile_load<2>(at(1, 0), row);
  if constexpr (kCols == 2) {
    tile_load<1>(at(0, 1), row);
    tile_load<3>(at(1, 1), row);
  }
  for (std::int64_t i = begin; i < end; i += 32) {
    const auto* right = pairs + i / 2 * width;
    tile_load<kTileLeft>(factors + i, kPairRows * 2);
    tile_load<kTileRight>(right, row);
    tile_multiply<0, kTileLeft, kTileRight>();
    tile_load<kTileLeft + 1>(factors + 16 * kPairRows + i, kPairRows * 2);
    tile_multiply<2, kTileLeft + 1, kTileRight>();
    if constexpr (kCols == 2) {
      tile_load<kTileRight + 1>(right + kTileLanes, row);
      tile_multiply<1, kTileLeft, kTileRight + 1>();
      tile_multiply<3, kTileLeft + 1, kTileRight + 1>();
    }
  }
  tile_store<0>(at(0, 0), row);
  tile_store<2>(at(1, 0), row);
  if constexpr (kCols == 2) {
    tile_store<1>(at(0, 1), row);
    tile_store<3>(at(1, 1), row);
  }
}

// All columns of the same.
[[gnu::noinline]] inline void add_key_step(const BFloat16* factors, const float* pairs, std::int64_t width, std::int64_t begin,
                                           std::int64_t end, float* sums) {
  std::int64_t column = 0;
  for (; column + 32 <= width; column += 32) add_key_columns<2>(factors, pairs + column, width, begin, end, sums + column);
  if (column < width) add_key_columns<1>(factors, pairs + column, width, begin, end, sums + column);
}

// sums (width, lanes) += turned keys (width, kKeysPerBlock) . pairs (kKeysPerBlock / 2, lanes) over the keys [from, to), both
// multiples of 32.
[[gnu::noinline]] inline void add_query_steps(const BFloat16* turned, std::int64_t width, const float* pairs, std::int64_t from,
                                              std::int64_t to, float* sums) {
  constexpr std::ptrdiff_t kLanes = kPanelLanes<VecF32>, kRow = kLanes * kWord;
  for (std::int64_t d = 0; d < width; d += 16) {
    float* out = sums + d * kLanes;
    for_tiles<0, 4>([&](auto tile) { tile_load<decltype(tile)::value>(out + decltype(tile)::value * kTileLanes, kRow); });
    for (std::int64_t key = from; key < to; key += 32) {
      const auto* right = pairs + key / 2 * kLanes;
      tile_load<kTileLeft>(turned + d * kKeysPerBlock + key, kKeysPerBlock * 2);
      for_tiles<0, 4>([&](auto tile) {
        constexpr int kVec = decltype(tile)::value;
        tile_load<kTileRight + kVec % 2>(right + kVec * kTileLanes, kRow);
        tile_multiply<kVec, kTileLeft, kTileRight + kVec % 2>();
      });
    }
    for_tiles<0, 4>([&](auto tile) { tile_store<decltype(tile)::value>(out + decltype(tile)::value * kTileLanes, kRow); });
  }
}

}  // namespace
}  // namespace headway
