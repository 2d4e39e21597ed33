// The product of bfloat16 rows with packed weights by AMX, see tile_registers.hpp.
//
// A panel of the packed weight holds up to 32 columns, a step of 32 depths after the other, of each step one or two tiles
// (16 pairs, 16 columns). Rows of x are copied into tiles (16 rows, 32 depths) of the same steps, so that everything is
// loaded front to back. A tile product of 32 rows and 32 columns loads four tiles for four multiplications.
//
// Depths of a panel that fit the first-level cache stay there while all rows pass over them, from the second-level cache,
// where the sums wait for the next depths.
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
inline constexpr std::int64_t kTileRowsPerTask = 256;    // so many rows share what is read of the weights
inline constexpr std::int64_t kTileDepthPerBlock = 256;  // of a panel 16 KiB; as much of x comes by for each 32 rows
// Sums of so many columns are stored together, four lines of a row side by side: that is quicker than one of each row.
inline constexpr std::int64_t kTileColumnsPerBlock = 128;
inline constexpr std::int64_t kTileColumnsPerCopy = 512;  // where x is copied in parts, again for each block of columns
inline constexpr std::int64_t kTileRowsAhead = 4;         // rows of x that are asked for while one is copied
inline constexpr std::int64_t kTileAhead = 8192;          // bytes of weights, of few rows
inline constexpr std::int64_t kTileXBytes = std::int64_t{1} << 20;

// Working memory of a task; without memory (base = nullptr) it only counts.
struct TileWorkspace {
  char* x;     // (row tiles, steps) tiles of all depths, or of some where they are too many
  char* sums;  // for each panel of a block of columns (row tiles, column tiles) tiles
};

inline std::size_t lay_out_tiles(TileWorkspace& w, char* base) {
  w.x = base;
  w.sums = base ? base + kTileXBytes : nullptr;
  return static_cast<std::size_t>(kTileXBytes + kTileRowsPerTask * kTileColumnsPerCopy * kWord);
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
    const std::int64_t ahead = i + kTileRowsAhead < task.num_rows ? i + kTileRowsAhead : 0;
    const auto* next = static_cast<const BFloat16*>(task.x_rows[ahead]) + from;
    char* to = tiles + i / 16 * steps * kTileBytes + i % 16 * 64;
    const std::int64_t used = i < task.num_rows ? task.d_in - from : 0;
    for (std::int64_t s = 0; s < steps; ++s) {
      __builtin_prefetch(next + s * kTileStep);
      const __mmask32 lanes = first_of_32(used - s * kTileStep);
      _mm512_store_si512(to + s * kTileBytes, _mm512_maskz_loadu_epi16(lanes, row + s * kTileStep));
    }
  }
}

// sums (kRows, kColumns tiles, one after the other) += x (kRows, row_step bytes apart, of steps tiles) . weights (steps,
// kColumns tiles). In each step next_step bytes from `next` on are asked for, lines that are kApart bytes apart.
template <int kRows, int kColumns, int kApart>
[[gnu::noinline]] void multiply_tiles(const char* x, std::ptrdiff_t row_step, const char* weights, std::int64_t steps,
                                      char* sums, bool started, const char* next, std::int64_t next_step) {
  constexpr int kA = 4, kB = 6, kTiles = kRows * kColumns;
  for_tiles<0, kTiles>([&](auto c) {
    constexpr int kTile = decltype(c)::value;
    if (started) {
      tile_load<kTile>(sums + kTile * kTileBytes, 64);
    } else {
      tile_zero<kTile>();
    }
  });
  for (std::int64_t s = 0; s < steps; ++s, x += kTileBytes, weights += kColumns * kTileBytes, next += next_step) {
    for_tiles<0, kRows>([&](auto r) {
      constexpr int kRow = decltype(r)::value;
      tile_load<kA + kRow>(x + kRow * row_step, 64);
      for_tiles<0, kColumns>([&](auto c) {
        constexpr int kColumn = decltype(c)::value;
        if constexpr (kRow == 0) tile_load<kB + kColumn>(weights + kColumn * kTileBytes, 64);
        tile_multiply<kRow * kColumns + kColumn, kA + kRow, kB + kColumn>();
      });
    });
    for (std::int64_t at = 0; at < next_step; at += kApart) __builtin_prefetch(next + at, 0, 2);
  }
  for_tiles<0, kTiles>([&](auto c) { tile_store<decltype(c)::value>(sums + decltype(c)::value * kTileBytes, 64); });
}

template <int kApart>
constexpr auto tile_product(bool two_rows, bool two_columns) {
  if (two_columns) return two_rows ? multiply_tiles<2, 2, kApart> : multiply_tiles<1, 2, kApart>;
  return two_rows ? multiply_tiles<2, 1, kApart> : multiply_tiles<1, 1, kApart>;
}

// A block of columns of a task over the depths that x is there for.
struct TileBlock {
  TileWorkspace memory;        // its x: (row tiles, steps) tiles
  std::int64_t from, steps;    // depths: the first one, and how many steps of them
  std::int64_t column, end;    // columns

  // Sums of the panel that begins so many columns after the first one: (row tiles, column tiles) tiles.
  char* sums(std::int64_t columns_before, std::int64_t row_tiles) const {
    return memory.sums + columns_before / 16 * row_tiles * kTileBytes;
  }
};

inline void multiply_block(const ProjectionTask& task, const TileBlock& block) {
  const std::int64_t depth = pad_to(task.d_in, kTileStep), row_tiles = (task.num_rows + 15) / 16;
  const bool few = row_tiles <= 2;  // they pass over a panel once: nothing is gained by small blocks
  const std::int64_t most = few ? block.steps : kTileDepthPerBlock / kTileStep;
  const std::int64_t pieces = (block.steps + most - 1) / most, size = (block.steps + pieces - 1) / pieces;
  for (std::int64_t column = block.column; column < block.end; column += kTileColumns) {
    const std::int64_t lanes = block.end - column > 16 ? kTileColumns : 16;
    const char* panel = static_cast<const char*>(task.panels) + column * depth * 2;
    for (std::int64_t s = 0; s < block.steps; s += size) {
      const std::int64_t steps = block.steps - s < size ? block.steps - s : size, from = block.from + s * kTileStep;
      const char* weights = panel + from * lanes * 2;
      // Asked for meanwhile: the panel's next depths, or the first ones of the panel that follows. Few rows read ahead of
      // themselves: with a line of each tile, beyond the page that they are in, the CPU goes on by itself in time.
      const bool goes_on = s + size < block.steps;
      const char* next = few       ? weights + kTileAhead
                         : goes_on ? weights + steps * lanes * kTileStep * 2
                                   : panel + (depth + block.from) * lanes * 2;
      const std::int64_t next_step = few ? lanes * kTileStep * 2 : (lanes * 128 / row_tiles + 63) / 64 * 64;
      for (std::int64_t tile = 0; tile < row_tiles; tile += 2) {
        const bool two = tile + 1 < row_tiles;
        const auto multiply = few ? tile_product<kTileBytes>(two, lanes == kTileColumns)
                                  : tile_product<64>(two, lanes == kTileColumns);
        multiply(block.memory.x + (tile * block.steps + s) * kTileBytes, block.steps * kTileBytes, weights, steps,
                 block.sums(column - block.column, row_tiles) + tile * lanes / 16 * kTileBytes, from > 0,
                 next + tile / 2 * steps * next_step, next_step);
      }
    }
  }
}

// Sums (rows, columns of the block) + added + bias -> out, rounded once, row after row.
template <bool kWideOut>
void store_block(const ProjectionTask& task, const TileBlock& block) {
  alignas(64) float bias[kTileColumnsPerCopy];
  for (std::int64_t c = block.column; c < block.end; c += 16) {
    const int n = block.end - c < 16 ? static_cast<int>(block.end - c) : 16;
    const auto* from = static_cast<const BFloat16*>(task.bias);
    // To add -0 changes nothing.
    VecF32::store(bias + c - block.column, from != nullptr ? VecF32::load_elements(from + c, n) : VecF32::set1(-0.0f));
  }
  const std::int64_t row_tiles = (task.num_rows + 15) / 16;
  for (std::int64_t i = 0; i < task.num_rows; ++i) {
    const auto* added = task.added_rows != nullptr ? static_cast<const float*>(task.added_rows[i]) : nullptr;
    for (std::int64_t c = block.column; c < block.end; c += kTileColumns) {
      const std::int64_t columns = block.end - c < kTileColumns ? block.end - c : kTileColumns;
      const int low = columns < 16 ? static_cast<int>(columns) : 16, high = static_cast<int>(columns) - low;
      const char* sums = block.sums(c - block.column, row_tiles) + i / 16 * (high > 0 ? 2 : 1) * kTileBytes + i % 16 * 64;
      const auto sum = [&](std::int64_t at, int n) {
        auto y = VecF32::load(reinterpret_cast<const float*>(sums + at / 16 * kTileBytes));
        if (added != nullptr) y = VecF32::add(y, VecF32::load_elements(added + c + at, n));
        return VecF32::add(y, VecF32::load(bias + c - block.column + at));
      };
      const auto y0 = sum(0, low), y1 = high > 0 ? sum(16, high) : y0;
      if constexpr (kWideOut) {
        auto* out = static_cast<float*>(task.out_rows[i]) + c;
        VecF32::store_elements(out, y0, low);
        VecF32::store_elements(out + low, y1, high);
      } else {
        auto* out = static_cast<BFloat16*>(task.out_rows[i]) + c;
        _mm512_mask_storeu_epi16(out, first_of_32(columns), reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y1, y0)));
      }
    }
  }
}

// x is copied once for all columns where it fits, else in parts for each block of columns.
inline void project_tiles(const ProjectionTask& task) {
  const TileSession session;
  TileBlock block{};
  lay_out_tiles(block.memory, static_cast<char*>(task.workspace));
  const std::int64_t depth = pad_to(task.d_in, kTileStep), rows = pad_to(task.num_rows, 16);
  const std::int64_t most = kTileXBytes / 2 / rows / kTileStep * kTileStep;
  const std::int64_t parts = (depth + most - 1) / most, size = pad_to((depth + parts - 1) / parts, kTileStep);
  const std::int64_t columns = parts == 1 ? kTileColumnsPerBlock : kTileColumnsPerCopy;
  for (block.column = 0; block.column < task.num_columns; block.column = block.end) {
    block.end = task.num_columns - block.column < columns ? task.num_columns : block.column + columns;
    for (block.from = 0; block.from < depth; block.from += size) {
      block.steps = (block.from + size >= depth ? depth - block.from : size) / kTileStep;
      if (block.column == 0 || parts > 1) copy_rows(task, block.from, block.steps, block.memory.x);
      multiply_block(task, block);
    }
    (task.wide_out ? store_block<true> : store_block<false>)(task, block);
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
