// The product of rows with weights packed once: out (rows, d_out) = x (rows, d_in) . weight (d_in, d_out) + bias.
//
// Lanes are columns of the weight. A panel holds up to kColumnVecs vectors of columns, one row of the weight after the
// other, (d_in, lanes), so that a tile reads it front to back; x is read where it lies and broadcast element by
// element. 16-bit weights stay 16 bits wide in their panel: few rows widen them in the loads of the tile, more rows
// share one widened block.
//
// Every number of the result is one chain of FMAs from 0 in ascending d_in, then the bias, then one rounding: its bits
// do not depend on the tile, on the blocks of d_in, nor on the rows that ride along.
#pragma once

#include "tile.hpp"

namespace headway {
namespace {

inline constexpr std::int64_t kRowsPerTask = 96;     // a multiple of every tile's rows
inline constexpr std::int64_t kDepthPerBlock = 768;  // rows of a panel that stay in cache while all rows pass over them
inline constexpr int kPanelsPerTile = 4;             // of a single row: independent chains hide the latency of the FMA

// Vectors of columns in a panel. With the accumulators of a context tile that makes 8 x 3 on avx512, which reads a
// quarter less of its panel for each multiply-add than 6 x 4 does; more rows would need more loads than there are.
template <class S>
inline constexpr int kColumnVecs = S::kPanelVecs < 3 ? S::kPanelVecs : 3;

template <class S>
inline constexpr int kTileRows = S::kContextAccumulators / kColumnVecs<S>;

template <class S>
inline constexpr int kColumnsPerPanel = kColumnVecs<S> * S::kLanes;

// About 2 kB of sums for each row: x is read, and widened, once for all of them.
template <class S>
inline constexpr int kColumnsPerTask = 2048 / sizeof(typename S::Real) / kColumnsPerPanel<S> * kColumnsPerPanel<S>;

// Working memory of a task. x and weights are for 16-bit elements only.
template <class Real>
struct ProjectionWorkspace {
  Real* sums;         // (rows, lanes of the task)
  Real* x;            // (rows, depth) widened, at most kRowsPerTask * kDepthPerBlock numbers
  Real* weights;      // (kDepthPerBlock, lanes) widened
  const Real** rows;  // (rows): where each row of x stands at the first depth of the block
};

// As for the attention: without memory (base = nullptr) it only counts.
template <class S>
std::size_t lay_out(ProjectionWorkspace<typename S::Real>& w, char* base, bool copies_x, bool widens_weights) {
  using Real = typename S::Real;
  std::size_t used = 0;
  const auto take = [&](std::int64_t count, std::size_t size) {
    char* p = base ? base + used : nullptr;
    used += (static_cast<std::size_t>(count) * size + 63) / 64 * 64;
    return p;
  };
  w.sums = reinterpret_cast<Real*>(take(kRowsPerTask * kColumnsPerTask<S>, sizeof(Real)));
  w.x = reinterpret_cast<Real*>(take(copies_x ? kRowsPerTask * kDepthPerBlock : 0, sizeof(Real)));
  w.weights = reinterpret_cast<Real*>(take(widens_weights ? kDepthPerBlock * kColumnsPerPanel<S> : 0, sizeof(Real)));
  w.rows = reinterpret_cast<const Real**>(take(kRowsPerTask, sizeof(Real*)));
  return used;
}

// Columns of weight (d_in, columns) -> panel (d_in, lanes), the lanes beyond the columns 0.
template <class S, class Element>
void pack_panel(const void* weight, std::ptrdiff_t row_stride, std::int64_t d_in, std::int64_t columns, void* panel) {
  const auto* from = static_cast<const Element*>(weight);
  auto* to = static_cast<Element*>(panel);
  const std::int64_t lanes = (columns + S::kLanes - 1) / S::kLanes * S::kLanes;
  for (std::int64_t n = 0; n < d_in; ++n, from += row_stride, to += lanes) {
    if (columns == kColumnsPerPanel<S>) {
      __builtin_memcpy(to, from, sizeof(Element) * kColumnsPerPanel<S>);
    } else {
      for (std::int64_t c = 0; c < columns; ++c) to[c] = from[c];
      for (std::int64_t c = columns; c < lanes; ++c) to[c] = Element{};
    }
  }
}

// What the tiles of one panel have in common: some depths of its rows.
template <class Real>
struct ProductArgs {
  const Real* const* rows;      // (rows) of x, (depth) each
  std::ptrdiff_t panel_step;    // elements from panel to panel
  std::int64_t depth;
  std::uintptr_t next;          // the weights that come after these; the tiles ask for them, so many bytes for
  std::int64_t next_step;       // each row and depth, so that they are in cache when their turn comes
  Real* sums;                   // (rows, sums_step)
  std::ptrdiff_t sums_step;
  bool started;                 // sums hold the earlier depths; otherwise they begin at 0
};

// sums (kRows, kPanels * kVecs vectors) += rows (kRows, depth) . weights (kPanels, depth, kVecs vectors): each sum goes
// on in its register, one FMA after the other.
template <class S, class Weight, int kRows, int kPanels, int kVecs>
[[gnu::noinline]] void multiply_rows(const ProductArgs<typename S::Real>& args, const Weight* weights,
                                     std::int64_t row) {
  using Real = typename S::Real;
  constexpr int kLanes = kVecs * S::kLanes;
  const Real* x[kRows];
  typename S::Vec acc[kRows][kPanels * kVecs];
  Real* sums = args.sums + row * args.sums_step;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = args.rows[row + i];
#pragma GCC unroll 16
    for (int j = 0; j < kPanels * kVecs; ++j) {
      acc[i][j] = args.started ? S::load(sums + i * args.sums_step + j * S::kLanes) : S::zero();
    }
  }
  std::uintptr_t next = args.next + static_cast<std::uintptr_t>(row * args.depth * args.next_step);
#pragma GCC unroll 2
  for (std::int64_t n = 0; n < args.depth; ++n, weights += kLanes) {
    if constexpr (kPanels == 1) {
      __builtin_prefetch(reinterpret_cast<const void*>(next), 0, 2);
      next += static_cast<std::uintptr_t>(kRows * args.next_step);
    }
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      typename S::Vec lanes[kVecs];
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) lanes[j] = S::load(weights + p * args.panel_step + j * S::kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const auto factor = S::set1(x[i][n]);
#pragma GCC unroll 16
        for (int j = 0; j < kVecs; ++j) acc[i][p * kVecs + j] = S::fma(factor, lanes[j], acc[i][p * kVecs + j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kPanels * kVecs; ++j) S::store(sums + i * args.sums_step + j * S::kLanes, acc[i][j]);
  }
}

// Rows [row, num_rows): tiles of kRows rows, then one tile of what is left; done(row, count) follows each tile.
template <class S, class Weight, int kRows, int kVecs, class Done>
[[gnu::always_inline]] inline void multiply_all_rows(const ProductArgs<typename S::Real>& args, const Weight* weights,
                                                     std::int64_t row, std::int64_t num_rows, const Done& done) {
  for (; row + kRows <= num_rows; row += kRows) {
    multiply_rows<S, Weight, kRows, 1, kVecs>(args, weights, row);
    done(row, kRows);
  }
  if constexpr (kRows > 1) {
    if (row < num_rows) multiply_all_rows<S, Weight, kRows - 1, kVecs>(args, weights, row, num_rows, done);
  }
}

// All rows over one panel of `vecs` vectors.
template <class S, class Weight, int kVecs, class Done>
[[gnu::always_inline]] inline void multiply_panel(const ProductArgs<typename S::Real>& args, const Weight* weights,
                                                  std::int64_t vecs, std::int64_t num_rows, const Done& done) {
  if (vecs == kVecs) return multiply_all_rows<S, Weight, kTileRows<S>, kVecs>(args, weights, 0, num_rows, done);
  if constexpr (kVecs > 1) multiply_panel<S, Weight, kVecs - 1>(args, weights, vecs, num_rows, done);
}

// A single row over 2 to kPanels whole panels at once.
template <class S, class Weight, int kPanels>
[[gnu::always_inline]] inline void multiply_one_row(const ProductArgs<typename S::Real>& args, const Weight* weights,
                                                    std::int64_t panels) {
  if (panels == kPanels) return multiply_rows<S, Weight, 1, kPanels, kColumnVecs<S>>(args, weights, 0);
  if constexpr (kPanels > 2) multiply_one_row<S, Weight, kPanels - 1>(args, weights, panels);
}

// Rows [row, row + num_rows), columns [column, end) of the task: out = sums + added + bias, rounded once.
template <class S, class Element, class Out>
void store_sums(const ProjectionTask& task, const typename S::Real* sums, std::ptrdiff_t sums_step, std::int64_t row,
                std::int64_t num_rows, std::int64_t column, std::int64_t end) {
  const auto* bias = static_cast<const Element*>(task.bias);
  for (std::int64_t i = row; i < row + num_rows; ++i) {
    auto* out = static_cast<Out*>(task.out_rows[i]);
    const auto* added = task.added_rows ? static_cast<const typename S::Real*>(task.added_rows[i]) : nullptr;
    const auto store = [&](std::int64_t at, int n) {
      auto y = S::load(sums + i * sums_step + at);
      if (added != nullptr) y = S::add(y, S::load_elements(added + at, n));
      if (bias != nullptr) y = S::add(y, S::load_elements(bias + at, n));
      S::store_elements(out + at, y, n);
    };
    std::int64_t at = column;
    for (; at + S::kLanes <= end; at += S::kLanes) store(at, S::kLanes);
    if (at < end) store(at, static_cast<int>(end - at));
  }
}

// The place of the panel that begins at `column` in the packed weights of a task.
struct PanelPlace {
  std::int64_t columns, lanes;
  const void* weights;  // (depth, lanes) from depth `from` on
};

template <class S, class Word>
PanelPlace panel_at(const ProjectionTask& task, std::int64_t column, std::int64_t from) {
  const std::int64_t left = task.num_columns - column;
  const std::int64_t columns = left < kColumnsPerPanel<S> ? left : kColumnsPerPanel<S>;
  const std::int64_t lanes = (columns + S::kLanes - 1) / S::kLanes * S::kLanes;
  return {columns, lanes, static_cast<const Word*>(task.panels) + column * task.d_in + from * lanes};
}

// One task: for each block of depths its panels, for each panel its rows. A Word is what a tile multiplies: a number, or
// a pair of them; d_in counts words. x_row(i, from, depth) gives words [from, from + depth) of row i of x.
template <class S, class Word, class Element, class Row>
[[gnu::always_inline]] inline void project_words(const ProjectionTask& task,
                                                 const ProjectionWorkspace<typename S::Real>& w, const Row& x_row) {
  using Real = typename S::Real;
  constexpr bool kWidens = sizeof(Word) == 2;
  constexpr std::int64_t kColumns = kColumnsPerPanel<S>;
  const std::int64_t sums_step = (task.num_columns + S::kLanes - 1) / S::kLanes * S::kLanes;
  const bool few = task.num_rows <= kTileRows<S>;  // they pass over a panel once: nothing is gained by small blocks
  const std::int64_t most = few ? kRowsPerTask * kDepthPerBlock / task.num_rows : kDepthPerBlock;
  const std::int64_t blocks = (task.d_in + most - 1) / most;
  const std::int64_t block = (task.d_in + blocks - 1) / blocks;

  for (std::int64_t from = 0; from < task.d_in; from += block) {
    const bool last = from + block >= task.d_in;
    const std::int64_t depth = last ? task.d_in - from : block;
    for (std::int64_t i = 0; i < task.num_rows; ++i) w.rows[i] = x_row(i, from, depth);
    for (std::int64_t column = 0, end = 0; column < task.num_columns; column = end) {
      const PanelPlace panel = panel_at<S, Word>(task, column, from);
      const auto* weights = static_cast<const Word*>(panel.weights);
      end = column + panel.columns;
      const void* next = end < task.num_columns ? panel_at<S, Word>(task, end, from).weights
                         : last                 ? task.next_panels
                                                : panel_at<S, Word>(task, 0, from + block).weights;
      const std::int64_t bytes = panel.lanes * static_cast<std::int64_t>(sizeof(Word));
      const ProductArgs<Real> args{.rows = w.rows,
                                   .panel_step = kColumns * task.d_in,
                                   .depth = depth,
                                   .next = reinterpret_cast<std::uintptr_t>(next),
                                   .next_step = bytes / task.num_rows,
                                   .sums = w.sums + column,
                                   .sums_step = sums_step,
                                   .started = from > 0};
      // Tile by tile: the rows go to memory while the next tile is computed.
      const auto store = [&](std::int64_t row, std::int64_t count) {
        if (!last) return;
        if (task.wide_out) {
          store_sums<S, Element, Real>(task, w.sums, sums_step, row, count, column, end);
        } else {
          store_sums<S, Element, Element>(task, w.sums, sums_step, row, count, column, end);
        }
      };
      const std::int64_t whole = (task.num_columns - column) / kColumns;
      if (task.num_rows == 1 && whole >= 2) {
        const std::int64_t panels = whole < kPanelsPerTile ? whole : kPanelsPerTile;
        multiply_one_row<S, Word, kPanelsPerTile>(args, weights, panels);
        end = column + panels * kColumns;
        store(0, 1);
      } else if (kWidens && !few) {
        widen_rows<S>(weights, panel.lanes, depth, panel.lanes, w.weights);
        multiply_panel<S, Real, kColumnVecs<S>>(args, w.weights, panel.lanes / S::kLanes, task.num_rows, store);
      } else {
        multiply_panel<S, Word, kColumnVecs<S>>(args, weights, panel.lanes / S::kLanes, task.num_rows, store);
      }
    }
  }
}

template <class S, class Element>
void project(const ProjectionTask& task) {
  using Real = typename S::Real;
  ProjectionWorkspace<Real> w;
  lay_out<S>(w, static_cast<char*>(task.workspace), sizeof(Element) == 2, sizeof(Element) == 2);
  project_words<S, Element, Element>(task, w, [&](std::int64_t i, std::int64_t from, std::int64_t depth) -> const Real* {
    const auto* row = static_cast<const Element*>(task.x_rows[i]) + from;
    if constexpr (sizeof(Element) == 2) {
      widen_rows<S>(row, 0, 1, depth, w.x + i * depth);
      return w.x + i * depth;
    } else {
      return row;
    }
  });
}

}  // namespace
}  // namespace headway
