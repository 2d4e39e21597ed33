// The product of bfloat16 rows with packed weights by AMX, see tile_registers.hpp.
//
// A panel of the packed weight holds up to 32 columns, a step of 32 depths after the other, of each step one or two tiles
// (16 pairs, 16 columns). Rows of x are copied into tiles (16 rows, 32 depths) of the same steps, so that everything is
// loaded front to back. A tile product of 32 rows and 32 columns loads four tiles for four multiplications.
//
// Every number of the result is one chain of tile products from 0 in ascending d_in, then the bias, then one rounding:
// its bits do not depend on the blocks of d_in, nor on the rows that ride along.
#pragma once

#include "pairs_dot.hpp"
#include "projection.hpp"
#include "tile_registers.hpp"

namespace headway {
namespace {

inline constexpr std::int64_t kTileStep = 32;            // depths of one tile product
inline constexpr std::int64_t kTileBytes = 1024;
inline constexpr std::int64_t kTileColumns = 32;         // of a panel
inline constexpr std::int64_t kTileColumnsPerTask = 4096;
inline constexpr std::int64_t kTileColumnsPerBlock = 256;
inline constexpr std::int64_t kTileRowsPerTask = 512;    // so many rows share what is read of the weights
inline constexpr std::int64_t kTileDepthPerBlock = 512;  // then the tiles of 32 rows or columns fit the first-level cache
inline constexpr std::int64_t kTileXBytes = std::int64_t{1} << 20;

// Working memory of a task; without memory (base = nullptr) it only counts.
struct TileWorkspace {
  char* x;     // (row tiles, steps) tiles of each block of depths in turn, or of one block where they are too many
  char* sums;  // (panels, row tiles, 2) tiles: sums of a block of columns, which go on in the next block of depths
};

inline std::size_t lay_out_tiles(TileWorkspace& w, char* base) {
  w.x = base;
  w.sums = base ? base + kTileXBytes : nullptr;
  return static_cast<std::size_t>(kTileXBytes + kTileRowsPerTask * kTileColumnsPerBlock * kWord);
}

// Columns of weight (d_in, columns) -> one panel, zeros beside them.
inline void pack_tiles(const void* weight, std::ptrdiff_t row_stride, std::int64_t d_in, std::int64_t columns, void* panel) {
  const auto* from = static_cast<const BFloat16*>(weight);
  auto* to = static_cast<float*>(panel);
  for (std::int64_t step = 0; step < d_in; step += kTileStep) {
    for (std::int64_t c = 0; c < columns; c += 16) {
      for (std::int64_t d = step; d < step + kTileStep; d += 2, to += 16) {
        const BFloat16* even = from + d * row_stride + c;
        VecF32::store(to, DotPairs::interleave(d < d_in ? even : nullptr, d + 1 < d_in ? even + row_stride : nullptr, columns - c));
      }
    }
  }
}

// Depths [from, from + 32 * steps) of the rows -> tiles (row tiles, steps), zeros beside them.
inline void copy_rows(const ProjectionTask& task, std::int64_t from, std::int64_t steps, char* tiles) {
  for (std::int64_t i = 0; i < pad_to(task.num_rows, 16); ++i) {
    const auto* row = static_cast<const BFloat16*>(task.x_rows[i < task.num_rows ? i : 0]) + from;
    char* to = tiles + i / 16 * steps * kTileBytes + i % 16 * 64;
    const std::int64_t used = i < task.num_rows ? task.d_in - from : 0;
    for (std::int64_t s = 0; s < steps; ++s) {
      const __mmask32 lanes = first_of_32(used - s * kTileStep);
      _mm512_store_si512(to + s * kTileBytes, _mm512_maskz_loadu_epi16(lanes, row + s * kTileStep));
    }
  }
}

// sums (kRows, kColumns tiles, one after the other) += x (kRows, steps tiles) . weights (steps, kColumns tiles).
template <int kRows, int kColumns>
[[gnu::noinline]] void multiply_tiles(const char* x, const char* weights, std::int64_t steps, char* sums, bool started,
                                      const char* next, std::int64_t next_step) {
  constexpr int kA = 4, kB = 6;
  for_tiles<0, kRows * kColumns>([&](auto c) {
    constexpr int kTile = decltype(c)::value;
    if (started) {
      tile_load<kTile>(sums + kTile * kTileBytes, 64);
    } else {
      tile_zero<kTile>();
    }
  });
  for (std::int64_t s = 0; s < steps; ++s, weights += kColumns * kTileBytes, next += next_step) {
    for (std::int64_t at = 0; at < next_step; at += 64) __builtin_prefetch(next + at, 0, 2);
    for_tiles<0, kColumns>([&](auto c) { tile_load<kB + decltype(c)::value>(weights + decltype(c)::value * kTileBytes, 64); });
    for_tiles<0, kRows>([&](auto r) {
      constexpr int kRow = decltype(r)::value;
      tile_load<kA + kRow>(x + (kRow * steps + s) * kTileBytes, 64);
      for_tiles<0, kColumns>([&](auto c) {
        constexpr int kColumn = decltype(c)::value;
        tile_multiply<kRow * kColumns + kColumn, kA + kRow, kB + kColumn>();
      });
    });
  }
  for_tiles<0, kRows * kColumns>([&](auto c) { tile_store<decltype(c)::value>(sums + decltype(c)::value * kTileBytes, 64); });
}

// Sums (row tiles, column tiles) of the rows from `row` and the columns from `column` on + added + bias -> out, rounded
// once.
inline void store_tiles(const ProjectionTask& task, const char* sums, std::int64_t row, std::int64_t rows,
                        std::int64_t column, std::int64_t columns) {
  const std::int64_t column_tiles = (columns + 15) / 16;
  const auto* bias = static_cast<const BFloat16*>(task.bias);
  const int low = columns < 16 ? static_cast<int>(columns) : 16, high = static_cast<int>(columns) - low;
  __m512 add[2];
  for (int c = 0; bias != nullptr && c < 2; ++c) add[c] = VecF32::load_elements(bias + column + c * low, c == 0 ? low : high);
  for (std::int64_t i = 0; i < rows; ++i) {
    __m512 y[2];
    const auto* added = task.added_rows ? static_cast<const float*>(task.added_rows[row + i]) + column : nullptr;
    for (int c = 0; c < column_tiles; ++c) {
      const char* from = sums + (i / 16 * column_tiles + c) * kTileBytes + i % 16 * 64;
      y[c] = VecF32::load(reinterpret_cast<const float*>(from));
      if (added != nullptr) y[c] = VecF32::add(y[c], VecF32::load_elements(added + c * low, c == 0 ? low : high));
      if (bias != nullptr) y[c] = VecF32::add(y[c], add[c]);
    }
    if (high == 0) y[1] = y[0];
    if (task.wide_out) {
      auto* out = static_cast<float*>(task.out_rows[row + i]) + column;
      VecF32::store_elements(out, y[0], low);
      VecF32::store_elements(out + low, y[1], high);
    } else {
      auto* out = static_cast<BFloat16*>(task.out_rows[row + i]) + column;
      _mm512_mask_storeu_epi16(out, first_of_32(columns), reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y[1], y[0])));
    }
  }
}

// One block of columns of a task over one block of depths.
struct TileBlock {
  const char* x;  // (row tiles, steps) tiles
  std::int64_t from, steps;     // depths
  std::int64_t column, end;     // columns
  bool last;                    // no depths follow: the sums are complete
};

inline void multiply_block(const ProjectionTask& task, const TileWorkspace& w, const TileBlock& block) {
  const std::int64_t depth = pad_to(task.d_in, kTileStep), row_tiles = (task.num_rows + 15) / 16;
  for (std::int64_t column = block.column; column < block.end; column += kTileColumns) {
    const std::int64_t columns = block.end - column < kTileColumns ? block.end - column : kTileColumns;
    const std::int64_t lanes = pad_to(columns, 16);
    const char* weights = static_cast<const char*>(task.panels) + (column * depth + block.from * lanes) * 2;
    const char* next = weights + lanes * depth * 2;  // these depths of the panel that follows
    const std::int64_t next_step = row_tiles > 2 ? (lanes * 128 / row_tiles + 63) / 64 * 64 : 0;
    for (std::int64_t tile = 0; tile < row_tiles; tile += 2) {
      char* sums = w.sums + ((column - block.column) / 16 * row_tiles + tile * lanes / 16) * kTileBytes;
      const bool two = tile + 1 < row_tiles;
      const auto multiply = lanes == 16 ? (two ? multiply_tiles<2, 1> : multiply_tiles<1, 1>)
                                        : (two ? multiply_tiles<2, 2> : multiply_tiles<1, 2>);
      multiply(block.x + tile * block.steps * kTileBytes, weights, block.steps, sums, block.from > 0,
               next + tile / 2 * block.steps * next_step, next_step);
      if (!block.last) continue;
      const std::int64_t left = task.num_rows - tile * 16;
      store_tiles(task, sums, tile * 16, left < 32 ? left : 32, column, columns);
    }
  }
}

// For each block of columns the blocks of depths. x is copied once for all columns where it fits, else for each block.
inline void project_tiles(const ProjectionTask& task) {
  const TileSession session;
  TileWorkspace w;
  lay_out_tiles(w, static_cast<char*>(task.workspace));
  const std::int64_t depth = pad_to(task.d_in, kTileStep), rows = pad_to(task.num_rows, 16);
  const bool keeps_x = rows * depth * 2 <= kTileXBytes;
  // Few rows pass over a panel once: nothing is gained by small blocks.
  const std::int64_t most = rows <= 32 ? kTileXBytes / 2 / rows : kTileDepthPerBlock;
  const std::int64_t blocks = (depth + most - 1) / most;
  const std::int64_t size = pad_to((depth + blocks - 1) / blocks, kTileStep);
  for (std::int64_t column = 0; column < task.num_columns; column += kTileColumnsPerBlock) {
    const std::int64_t left = task.num_columns - column;
    for (std::int64_t from = 0; from < depth; from += size) {
      TileBlock block{};
      block.from = from;
      block.last = from + size >= depth;
      block.steps = (block.last ? depth - from : size) / kTileStep;
      block.column = column;
      block.end = column + (left < kTileColumnsPerBlock ? left : kTileColumnsPerBlock);
      char* x = w.x + (keeps_x ? from * rows * 2 : 0);
      if (!keeps_x || column == 0) copy_rows(task, from, block.steps, x);
      block.x = x;
      multiply_block(task, w, block);
    }
  }
}

constexpr ProjectionKernels tile_projection() {
  return ProjectionKernels{
      .lanes = 16,
      .depth_step = kTileStep,
      .columns_per_panel = kTileColumns,
      .columns_per_task = kTileColumnsPerTask,
      .rows_per_tile = 32,
      .rows_per_task = kTileRowsPerTask,
      .workspace_bytes =
          [] {
            TileWorkspace w;
            return lay_out_tiles(w, nullptr);
          },
      .pack = pack_tiles,
      .project = project_tiles,
  };
}

}  // namespace
}  // namespace headway
