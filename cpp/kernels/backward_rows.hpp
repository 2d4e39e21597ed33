// The workspace of the backward pass: a chunk of keys with the sums of their gradients, and a block of rows that passes
// over them. Widths are padded to whole vectors with zeros, so that no product has a rest.
#pragma once

#include "mask.hpp"
#include "score.hpp"

namespace headway {
namespace {

// Panels of a block of rows, about 64 rows: so many steps has a product over rows.
inline constexpr int kMostBackwardPanels = 4;
template <class S>
inline constexpr int kBackwardPanels = S::kPanelVecs * S::kLanes >= 64   ? 1
                                       : S::kPanelVecs * S::kLanes >= 20 ? 2
                                                                         : kMostBackwardPanels;
template <class S>
inline constexpr int kPanelLanes = S::kPanelVecs * S::kLanes;
template <class S>
inline constexpr int kBackwardRows = kBackwardPanels<S> * kPanelLanes<S>;

inline constexpr std::int64_t kKeysPerTile = kKeysPerGroup;  // keys of a tile of every product

// What a panel has beside its queries.
template <class Real>
struct GradientPanel {
  Real* grads;       // (value_dim, lanes): gradients at the context
  Real* reference;   // (lanes): weight = 2^((x - reference) * scale2 + correction), x a product, or a score
  Real* correction;  // (lanes): what rounding the reference took away
  Real* delta;       // (lanes): grad . context - gradient at the lse
  Real* weights;     // (kKeysPerBlock, lanes): weights of one block, or its scores on the way
  Real* products;    // (kKeysPerBlock, lanes): gradients at its products
  Real* dropped;     // (kKeysPerBlock, lanes): weights after dropout, where there is some
};

template <class Real>
struct BackwardWorkspace : Workspace<Real> {
  GradientPanel<Real> gradients[kMostBackwardPanels];
  Real *query_rows, *grad_rows;                // (rows, head_width), (rows, value_width): the block's own
  Real *chunk_keys, *chunk_values;             // (chunk, head_width), (chunk, value_width)
  Real *key_sums, *value_sums;                 // likewise: gradients so far
  Real* flatness;                              // (kKeysPerBlock, lanes): 1 - tanh^2 of the soft cap
  std::int64_t key_begin, key_end;             // of the chunk
  std::int64_t head_width, value_width;        // head_dim and value_dim, padded
  bool keys_finite, rows_finite;               // else weights of 0 are left out of the products, for 0 * NaN is NaN
};

template <class S>
BackwardWorkspace<typename S::Real>& backward_workspace_of(const BackwardTask& task) {
  return static_cast<BackwardWorkspace<typename S::Real>&>(workspace_of<S>(task.forward));
}

template <class S>
constexpr std::int64_t padded_width(std::int64_t width) {
  return (width + S::kLanes - 1) / S::kLanes * S::kLanes;
}

// A panel's sums: (head_dim padded, lanes).
template <class S>
std::size_t sums_bytes(int panels, std::int64_t head_dim) {
  return static_cast<std::size_t>(panels * padded_width<S>(head_dim) * kPanelLanes<S>) * sizeof(typename S::Real);
}

// Keys of a chunk: what they need, keys, values and the sums of both gradients, is to stay in the second cache level.
template <class S>
std::int64_t keys_per_chunk(std::int64_t head_dim, std::int64_t value_dim) {
  constexpr std::int64_t kBytes = 1 << 20;
  const std::int64_t row = 2 * (padded_width<S>(head_dim) + padded_width<S>(value_dim)) * static_cast<std::int64_t>(sizeof(typename S::Real));
  std::int64_t keys = kKeysPerSpan;
  while (keys > kKeysPerBlock && keys * row > kBytes) keys /= 2;
  return keys;
}

// Lays the workspace, for chunks of so many keys, out in memory of the returned size; without memory (base = nullptr) only
// counts.
template <class S>
std::size_t lay_out_backward(BackwardWorkspace<typename S::Real>& w, char* base, std::int64_t head_dim, std::int64_t value_dim,
                             std::int64_t chunk) {
  using Real = typename S::Real;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  std::size_t used = (sizeof(w) + 63) / 64 * 64;
  const auto take = [&](std::int64_t count) {
    Real* p = base ? reinterpret_cast<Real*>(base + used) : nullptr;
    used += (static_cast<std::size_t>(count) * sizeof(Real) + 63) / 64 * 64;
    return p;
  };
  for (int p = 0; p < kBackwardPanels<S>; ++p) {
    auto& gradients = w.gradients[p];
    gradients.grads = take(value_dim * kLanes);
    gradients.reference = take(kLanes);
    gradients.correction = take(kLanes);
    gradients.delta = take(kLanes);
    gradients.weights = take(kKeysPerBlock * kLanes);
    gradients.products = take(kKeysPerBlock * kLanes);
    gradients.dropped = take(kKeysPerBlock * kLanes);
  }
  w.head_width = padded_width<S>(head_dim);
  w.value_width = padded_width<S>(value_dim);
  w.query_rows = take(kBackwardRows<S> * w.head_width);
  w.grad_rows = take(kBackwardRows<S> * w.value_width);
  w.chunk_keys = take(chunk * w.head_width);
  w.chunk_values = take(chunk * w.value_width);
  w.key_sums = take(chunk * w.head_width);
  w.value_sums = take(chunk * w.value_width);
  w.flatness = take(kKeysPerBlock * kLanes);
  lay_out_panels<S>(w, kBackwardPanels<S>, head_dim * kLanes, 0, take);
  return used;
}

// A row of elements -> a padded row in the accumulation type, and sums of 0 * x: NaN where an element is not finite.
template <class S, class Element>
[[gnu::always_inline]] inline typename S::Vec load_row(const Element* row, std::int64_t count, std::int64_t width,
                                                       typename S::Real* out, typename S::Vec check) {
  const auto take = [&](std::int64_t at, int n) {
    const auto x = S::load_elements(row + at, n);
    S::store(out + at, x);
    check = S::fma(x, S::zero(), check);
  };
  std::int64_t at = 0;
  for (; at + S::kLanes <= count; at += S::kLanes) take(at, S::kLanes);
  for (; at < width; at += S::kLanes) take(at, at < count ? static_cast<int>(count - at) : 0);
  return check;
}

template <class S>
bool is_finite(typename S::Vec check) {
  return !S::any(S::not_less(check, S::set1(1)));  // true for NaN alone
}

// The sums of keys [from, to) of the chunk become 0.
template <class S>
void clear_key_sums(BackwardWorkspace<typename S::Real>& w, std::int64_t from, std::int64_t to) {
  for (std::int64_t i = from * w.head_width; i < to * w.head_width; i += S::kLanes) S::store(w.key_sums + i, S::zero());
  for (std::int64_t i = from * w.value_width; i < to * w.value_width; i += S::kLanes) S::store(w.value_sums + i, S::zero());
}

// The chunk's keys and values -> workspace. Rows up to a whole tile are 0, too.
template <class S, class Element>
void load_keys(const BackwardTask& task) {
  using Real = typename S::Real;
  const AttentionTask& forward = task.forward;
  auto& w = backward_workspace_of<S>(task);
  const std::int64_t begin = w.key_begin, end = w.key_end;
  auto check = S::zero();
  const auto load = [&](const void* data, std::ptrdiff_t stride, std::int64_t dim, std::int64_t width, Real* out) {
    const auto* rows = static_cast<const Element*>(data) + begin * stride;
    for (std::int64_t i = 0; i < end - begin; ++i) check = load_row<S>(rows + i * stride, dim, width, out + i * width, check);
  };
  load(forward.k, forward.k_token_stride, forward.head_dim, w.head_width, w.chunk_keys);
  load(forward.v, forward.v_token_stride, forward.value_dim, w.value_width, w.chunk_values);
  w.keys_finite = is_finite<S>(check);
  const std::int64_t rows = (end - begin + kKeysPerTile - 1) / kKeysPerTile * kKeysPerTile;
  const auto clear = [&](Real* p, std::int64_t width) {
    for (std::int64_t i = (end - begin) * width; i < rows * width; i += S::kLanes) S::store(p + i, S::zero());
  };
  clear(w.chunk_keys, w.head_width);
  clear(w.chunk_values, w.value_width);
}

// Makes keys [begin, end) ready, and their sums 0.
template <class S, class Element>
void begin_keys(const BackwardTask& task, std::int64_t begin, std::int64_t end) {
  auto& w = backward_workspace_of<S>(task);
  const std::int64_t head_dim = task.forward.head_dim, value_dim = task.forward.value_dim;
  lay_out_backward<S>(w, static_cast<char*>(task.forward.workspace), head_dim, value_dim, keys_per_chunk<S>(head_dim, value_dim));
  w.key_begin = begin;
  w.key_end = end;
  load_keys<S, Element>(task);
  clear_key_sums<S>(w, 0, (end - begin + kKeysPerTile - 1) / kKeysPerTile * kKeysPerTile);
}

// What makes weights of products (or scores) x of a row, given its lse: see GradientPanel. A row that saw nothing has
// weights of 0.
template <class Real>
void set_reference(const Workspace<Real>& w, double lse, Real& reference, Real& correction) {
  const double infinity = __builtin_inf(), unit = w.unit();
  reference = static_cast<Real>(lse == -infinity ? infinity : lse / unit);
  const double rest = (static_cast<double>(reference) * unit - lse) * 1.4426950408889634074;
  correction = lse > -infinity && lse < infinity && rest > -1 && rest < 1 ? static_cast<Real>(rest) : Real{0};
}

// What the panels' lanes have beside queries and gradients.
template <class S>
void set_lanes(const BackwardTask& task, BackwardWorkspace<typename S::Real>& w) {
  using Real = typename S::Real;
  const AttentionTask& forward = task.forward;
  RowCursor row(forward.first_row, forward.group);
  for (int p = 0; p < w.num_panels; ++p) {
    set_limits<S>(forward, w.panels[p], w.key_begin);
    const auto& gradients = w.gradients[p];
    for (int lane = 0; lane < kPanelLanes<S>; ++lane) {
      double lse = -__builtin_inf();
      gradients.delta[lane] = 0;
      if (lane < w.panels[p].num_rows) {
        const double shift = forward.options.slopes != nullptr ? alibi_shift(forward, row.token, row.head) : 0;
        lse = static_cast<double>(static_cast<const Real*>(task.lse)[row.offset(task.lse_token_stride, task.lse_head_stride)]) - shift;
        gradients.delta[lane] = static_cast<const Real*>(task.delta)[row.offset(task.delta_token_stride, task.delta_head_stride)];
        row.next();
      }
      set_reference(w, lse, gradients.reference[lane], gradients.correction[lane]);
    }
  }
}

// Makes the task's block of rows ready: rows and lanes of queries and gradients.
template <class S, class Element, class Grad>
void begin_rows(const BackwardTask& task) {
  using Real = typename S::Real;
  constexpr int kLanes = kPanelLanes<S>;
  const AttentionTask& forward = task.forward;
  auto& w = backward_workspace_of<S>(task);
  auto check = S::zero();
  const auto pack = [&](auto& panel, int lane, const auto& rows, int count) {
    const std::int64_t at = (&panel - w.panels) * kLanes + lane;
    const Real* padded[S::kLanes] = {};
    for (int i = 0; i < count; ++i) {
      Real* row = w.query_rows + (at + i) * w.head_width;
      check = load_row<S>(rows[i], forward.head_dim, w.head_width, row, check);
      padded[i] = row;
    }
    load_transposed<S>(padded, count, forward.head_dim, panel.queries + lane, kLanes);
  };
  cut_panels<S, Element>(forward, w, pack, true);
  if (const double factor = w.split.queries; factor != 1) {
    for (int p = 0; p < w.num_panels; ++p) {
      for (std::int64_t i = 0; i < forward.head_dim * kLanes; ++i) w.panels[p].queries[i] *= static_cast<Real>(factor);
    }
  }

  RowCursor row(forward.first_row, forward.group);
  for (int p = 0; p < w.num_panels; ++p) {
    const auto& gradients = w.gradients[p];
    for (int lane = 0; lane < kLanes; lane += S::kLanes) {
      const Real* padded[S::kLanes] = {};
      int count = 0;
      for (; count < S::kLanes && lane + count < w.panels[p].num_rows; ++count, row.next()) {
        const auto* grad = static_cast<const Grad*>(task.grad_out) + row.offset(task.grad_token_stride, task.grad_head_stride);
        Real* to = w.grad_rows + (p * kLanes + lane + count) * w.value_width;
        check = load_row<S>(grad, forward.value_dim, w.value_width, to, check);
        padded[count] = to;
      }
      load_transposed<S>(padded, count, forward.value_dim, gradients.grads + lane, kLanes);
    }
  }
  w.rows_finite = is_finite<S>(check);
  set_lanes<S>(task, w);
}

}  // namespace
}  // namespace headway
