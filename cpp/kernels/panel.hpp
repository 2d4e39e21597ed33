// A panel: up to kPanelVecs vectors of query rows that pass over the keys together; and the workspace of one task,
// which holds several panels so that a block of keys read once serves them all.
#pragma once

#include "fetch.hpp"
#include "softmax.hpp"
#include "tile.hpp"

namespace headway {
namespace {

inline constexpr int kPanelsPerTask = 2;
inline constexpr int kMostPanels = 8;  // of tasks whose blocks of keys cost more to make ready
// Blocks begin at multiples of this, whatever is visible, for a row's bits may depend on where they do. It divides
// kKeysPerSpan, and is a multiple of every tile's rows but the remainder.
inline constexpr int kKeysPerBlock = 128;

// Divides kKeysPerBlock; a multiple of every group of keys in which a maximum is judged.
inline constexpr int kKeysPerStep = 32;

// The lowest finite number: what is below it is -inf.
template <class Real>
inline constexpr Real kLowest = sizeof(Real) == 4 ? static_cast<Real>(-__FLT_MAX__) : static_cast<Real>(-__DBL_MAX__);

template <class Real>
struct Panel {
  Real* queries;                  // (head_dim, lanes)
  Real* limits;                   // (lanes): last key that the row sees, relative to the span; lanes rise
  Real* starts;                   // (lanes): first key that it sees, likewise
  Real* slopes;                   // (lanes): of ALiBi, where there are any
  Real* positions;                // (lanes): the row's own position, likewise, see alibi_shift
  Real* steps;                    // (lanes, and again): see Rise, and 1 / step
  Real* alibi;                    // (kKeysPerSpan + lanes): see fill_alibi; null where it has no memory
  bool has_alibi;                 // it holds what this panel needs
  Softmax<Real> total, span;      // over the spans so far; over the present one
  std::int64_t first_row, num_rows;
  int vecs;                       // lanes = vecs * kLanes; lanes from num_rows on repeat the last row's limit
  std::int64_t first_limit, last_limit;  // last visible key of the first and the last row, absolute
  std::int64_t first_start, last_start;  // first visible key, likewise
};

template <class Real>
struct Workspace {
  Panel<Real> panels[kMostPanels];
  int num_panels;
  SplitScale<Real> split{1};      // the task's scale
  SoftmaxScale<Real> scale{1};    // from what the softmax works on to weights
  Fetch fetch;                    // of the next block of keys
  bool shaped;                    // that is scores, since something is done to them; else products
  Real* weights;  // (kKeysPerBlock, lanes): weights of one block, or its scores
  Real* keys;     // (kKeysPerBlock, head_dim): keys that are copied, see load_block
  Real* values;   // (kKeysPerBlock, value_dim): values, likewise
  Real* tail;     // (kKeysPerGroup, head_dim): the last keys, padded with zeros to a whole group
  Real* clean;    // (kKeysPerBlock, value_dim): values without those that are not finite
  Real* bias;     // (kKeysPerBlock, lanes): what a mask adds to the scores of one block, -inf where it hides
  Real* products;   // (kKeysPerBlock, kLanes): of few rows, see few_rows.hpp
  Real* mask_rows;  // (kLanes, kKeysPerBlock): rows of a mask on their way into the lanes

  // The unit of the softmax's references: what makes scores of them.
  double unit() const { return shaped ? 1 : split.rest; }
};

// Layout of the parts that all kernels have; take(count) hands out memory for `count` numbers.
template <class S, class Take>
void lay_out_panels(Workspace<typename S::Real>& w, int panels, std::int64_t queries, std::int64_t context, const Take& take) {
  constexpr std::int64_t kLanes = S::kPanelVecs * S::kLanes;
  const auto take_state = [&](auto& state) {
    state.context = take(context);
    state.reference = take(kLanes);
    state.sum = state.divisor = take(kLanes);
    state.bound = take(kLanes);
  };
  for (int p = 0; p < panels; ++p) {
    auto& panel = w.panels[p];
    panel.queries = take(queries);
    panel.limits = take(kLanes);
    panel.starts = take(kLanes);
    panel.slopes = take(kLanes);
    panel.positions = take(kLanes);
    panel.steps = take(2 * kLanes);
    panel.alibi = nullptr;
    take_state(panel.total);
    take_state(panel.span);
  }
  w.bias = take(kKeysPerBlock * kLanes);
  w.mask_rows = take(S::kLanes * kKeysPerBlock);
}

// Lays the workspace out in memory of the returned size; without memory (base = nullptr) only counts.
template <class S>
std::size_t lay_out(Workspace<typename S::Real>& w, char* base, std::int64_t head_dim, std::int64_t value_dim) {
  using Real = typename S::Real;
  constexpr std::int64_t kLanes = S::kPanelVecs * S::kLanes;
  std::size_t used = (sizeof(w) + 63) / 64 * 64;
  const auto take = [&](std::int64_t count) {
    Real* p = base ? reinterpret_cast<Real*>(base + used) : nullptr;
    used += (static_cast<std::size_t>(count) * sizeof(Real) + 63) / 64 * 64;
    return p;
  };
  w.weights = take(kKeysPerBlock * kLanes);
  lay_out_panels<S>(w, kPanelsPerTask, head_dim * kLanes, value_dim * kLanes, take);
  for (int p = 0; p < kPanelsPerTask; ++p) w.panels[p].alibi = take(kKeysPerSpan + kLanes);
  w.products = take(kKeysPerBlock * S::kLanes);
  w.tail = take(kKeysPerGroup * head_dim);
  w.keys = take(kKeysPerBlock * head_dim);
  w.values = take(kKeysPerBlock * value_dim);
  w.clean = take(kKeysPerBlock * value_dim);
  return used;
}

template <class S>
Workspace<typename S::Real>& workspace_of(const AttentionTask& task) {
  return *static_cast<Workspace<typename S::Real>*>(task.workspace);
}

// Calls body(Constant<n>) with the number of vectors of a panel as a constant.
template <class S, class Body>
[[gnu::always_inline]] inline void with_vecs(int vecs, const Body& body) {
  if (vecs == 1) {
    body(Constant<1>{});
  } else if (vecs == 2) {
    body(Constant<2>{});
  } else if constexpr (S::kPanelVecs > 2) {
    body(Constant<S::kPanelVecs>{});
  }
}

// Asks for `bytes` bytes from p on, to be read or written soon.
template <bool kWrite>
[[gnu::always_inline]] inline void prefetch(const void* p, std::ptrdiff_t bytes) {
  for (std::ptrdiff_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(p) + at, kWrite, 3);
}

// Last key that token sees by its position, -1 if none.
inline std::int64_t last_visible_key(const AttentionTask& task, std::int64_t token) {
  const std::int64_t last = task.num_keys - 1;
  if (task.right >= kNoLimit) return last;
  const std::int64_t limit = task.first_position + token + task.right;
  return limit < -1 ? -1 : limit > last ? last : limit;
}

// First key that token sees by its position, num_keys if none.
inline std::int64_t first_visible_key(const AttentionTask& task, std::int64_t token) {
  if (task.left >= kNoLimit) return 0;
  const std::int64_t start = task.first_position + token - task.left;
  return start < 0 ? 0 : start > task.num_keys ? task.num_keys : start;
}

// Whether something changes scores, beside hiding some of them.
inline bool shapes_scores(const ScoreOptions& options) {
  return options.softcap > 0 || options.slopes != nullptr ||
         (options.mask != nullptr && options.mask_kind != MaskKind::kBool);
}

// Cuts the task's rows into panels, of all their vectors where `whole`. pack(panel, lane, rows, count) puts `count` rows of queries (head_dim) into lanes
// from `lane` on: a vector of lanes, those from count on 0.
template <class S, class Element, class Pack>
[[gnu::always_inline]] inline void cut_panels(const AttentionTask& task, Workspace<typename S::Real>& w,
                                              const Pack& pack, bool whole = false) {
  w.num_panels = 0;
  w.split = SplitScale<typename S::Real>(task.scale);
  w.shaped = shapes_scores(task.options);
  w.scale = w.shaped ? SoftmaxScale<typename S::Real>(1) : SoftmaxScale<typename S::Real>(w.split);
  std::int64_t rows_left = task.num_rows;
  RowCursor row(task.first_row, task.group);
  for (auto& panel : w.panels) {
    if (rows_left <= 0) break;
    ++w.num_panels;
    panel.first_row = task.first_row + task.num_rows - rows_left;
    const std::int64_t most = S::kPanelVecs * S::kLanes;
    panel.num_rows = rows_left < most ? rows_left : most;
    panel.vecs = whole ? S::kPanelVecs : panel.num_rows <= S::kLanes ? 1 : panel.num_rows <= 2 * S::kLanes ? 2 : S::kPanelVecs;
    const int lanes = panel.vecs * S::kLanes;
    panel.first_limit = last_visible_key(task, row.token);
    panel.first_start = first_visible_key(task, row.token);
    for (int lane = 0; lane < lanes; lane += S::kLanes) {
      const Element* rows[S::kLanes] = {};
      int count = 0;
      for (; count < S::kLanes && lane + count < panel.num_rows; ++count) {
        panel.last_limit = last_visible_key(task, row.token);
        panel.last_start = first_visible_key(task, row.token);
        rows[count] = static_cast<const Element*>(task.q) + row.offset(task.q_token_stride, task.q_head_stride);
        row.next();
      }
      pack(panel, lane, rows, count);
    }
    panel.total.reset(lanes);
    rows_left -= panel.num_rows;
  }
}

// Packs the task's queries: rows (head_dim) -> lanes of queries (head_dim, lanes), times the scale's part for them.
template <class S, class Element>
void begin_task(const AttentionTask& task) {
  auto& w = workspace_of<S>(task);
  lay_out<S>(w, static_cast<char*>(task.workspace), task.head_dim, task.value_dim);
  cut_panels<S, Element>(task, w, [&](auto& panel, int lane, const auto& rows, int count) {
    load_transposed<S>(rows, count, task.head_dim, panel.queries + lane, panel.vecs * S::kLanes);
  });
  const double factor = w.split.queries;
  if (factor == 1) return;
  for (int p = 0; p < w.num_panels; ++p) {
    for (std::int64_t i = 0; i < task.head_dim * w.panels[p].vecs * S::kLanes; ++i) {
      w.panels[p].queries[i] *= static_cast<typename S::Real>(factor);
    }
  }
}

// Asks for the panel's output rows, which are written when its last keys are done.
template <class Out>
void prefetch_rows(const AttentionTask& task, std::int64_t first_row, std::int64_t num_rows) {
  RowCursor row(first_row, task.group);
  for (std::int64_t i = 0; i < num_rows; ++i, row.next()) {
    prefetch<true>(static_cast<Out*>(task.out) + row.offset(task.out_token_stride, task.out_head_stride),
                   task.value_dim * static_cast<std::ptrdiff_t>(sizeof(Out)));
  }
}

// Calls store(lane, rows, count) for each vector of lanes: `count` output rows of the task, from `column` on.
template <class S, class Out, class Store>
[[gnu::always_inline]] inline void for_rows(const AttentionTask& task, const Panel<typename S::Real>& panel,
                                            std::int64_t column, const Store& store) {
  RowCursor row(panel.first_row, task.group);
  for (int lane = 0; lane < panel.vecs * S::kLanes; lane += S::kLanes) {
    Out* rows[S::kLanes] = {};
    int count = 0;
    for (; count < S::kLanes && lane + count < panel.num_rows; ++count) {
      rows[count] = static_cast<Out*>(task.out) + row.offset(task.out_token_stride, task.out_head_stride) + column;
      row.next();
    }
    if (count > 0) store(lane, rows, count);
  }
}

// Lanes of matrix (depth, lanes), times factor (lanes), -> columns [column, column + depth) of the task's output rows.
// Zeros come out as +0: the sign of a zero sum may be that of a value that was added times 0.
template <class S, class Out>
void store_rows(const AttentionTask& task, const Panel<typename S::Real>& panel, const typename S::Real* matrix,
                std::int64_t depth, const typename S::Real* factor, std::int64_t column) {
  for_rows<S, Out>(task, panel, column, [&](int lane, Out* const(&rows)[S::kLanes], int count) {
    const auto times = S::load(factor + lane);
    const auto scaled = [&](typename S::Vec x) { return S::add(S::mul(x, times), S::zero()); };
    store_transposed<S>(matrix + lane, panel.vecs * S::kLanes, depth, scaled, rows, count);
  });
}

}  // namespace
}  // namespace headway
