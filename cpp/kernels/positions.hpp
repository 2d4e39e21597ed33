// Where the rows of a panel stand among the keys of a span, what they see by that, and what ALiBi makes of it.
#pragma once

#include "panel.hpp"

namespace headway {
namespace {

// lanes <- base + token of each row, but at least `first`, what the first row gets, and at most `last`, the last row's.
template <class Real>
void fill_rising(const AttentionTask& task, const Panel<Real>& panel, int lanes, std::int64_t base, std::int64_t first,
                 std::int64_t last, Real* out) {
  if (first == last) {
    for (int lane = 0; lane < lanes; ++lane) out[lane] = static_cast<Real>(first);
    return;
  }
  RowCursor row(panel.first_row, task.group);
  const std::int64_t token = row.token;
  for (int lane = 0; lane < lanes; ++lane) {
    const std::int64_t value = base + (task.group == 1 ? token + lane : row.token);
    out[lane] = static_cast<Real>(value < first ? first : value > last ? last : value);
    if (task.group != 1) row.next();
  }
}

// ALiBi counts the distance from where the row stands among its keys; a row that stands outside of them is moved to
// the nearest one, which changes all its scores by the same amount: the returned part of its position.
inline std::int64_t position_outside(const AttentionTask& task, std::int64_t token) {
  const std::int64_t position = task.first_position + token, last = task.num_keys > 0 ? task.num_keys - 1 : 0;
  return position < 0 ? position : position > last ? position - last : 0;
}

// What that change is: to be added to the row's scores, and to its lse.
inline double alibi_shift(const AttentionTask& task, std::int64_t token, std::int64_t head) {
  const std::int64_t outside = position_outside(task, token);
  return -task.options.slopes[head] * static_cast<double>(outside < 0 ? -outside : outside);
}

// What ALiBi adds to a score depends on the distance alone, where the rows of one head follow each other: for lane i and the
// span's key n it is at [kKeysPerSpan + i - n]. Returns whether that holds for the panel. base: of its span's first key.
template <class S>
bool fill_alibi(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t base, std::int64_t key_begin) {
  using Real = typename S::Real;
  constexpr std::int64_t kExact = 1 << 22;  // so far, on either side, positions and distances are exact in float32
  const std::int64_t first = panel.first_row, last = first + panel.num_rows - 1, lanes = panel.vecs * S::kLanes;
  if (panel.alibi == nullptr || task.group != 1 || panel.num_rows <= S::kLanes) return false;
  if (base + first <= -kExact || base + last >= kExact) return false;
  if (position_outside(task, first) != 0 || position_outside(task, last) != 0) return false;
  const std::int64_t seen = panel.last_limit - key_begin, keys = seen < kKeysPerSpan ? seen + kKeysPerGroup : kKeysPerSpan;
  const auto slope = 0 - static_cast<Real>(task.options.slopes[0]);
  const auto nearest = static_cast<std::int32_t>(base + first - kKeysPerSpan);
  for (std::int64_t i = keys < kKeysPerSpan ? kKeysPerSpan - keys : 0; i < kKeysPerSpan + lanes; ++i) {
    const std::int32_t away = nearest + static_cast<std::int32_t>(i);
    panel.alibi[i] = slope * static_cast<Real>(away < 0 ? -away : away);
  }
  return true;
}

// Writes what the panel's lanes see, and where they stand, relative to the span. The limits fit float32 exactly: a span
// is short.
template <class S>
void set_limits(const AttentionTask& task, Panel<typename S::Real>& panel, std::int64_t key_begin) {
  using Real = typename S::Real;
  const auto relative = [&](std::int64_t key) {
    key -= key_begin;
    return key < -1 ? -1 : key > kKeysPerSpan ? kKeysPerSpan : key;
  };
  const int lanes = panel.vecs * S::kLanes;
  const std::int64_t base = task.first_position - key_begin;
  fill_rising(task, panel, lanes, base + task.right, relative(panel.first_limit), relative(panel.last_limit), panel.limits);
  fill_rising(task, panel, lanes, base - task.left, relative(panel.first_start), relative(panel.last_start), panel.starts);
  panel.has_alibi = false;
  if (task.options.slopes == nullptr) return;
  panel.has_alibi = fill_alibi<S>(task, panel, base, key_begin);
  RowCursor row(panel.first_row, task.group);
  for (int lane = 0; lane < lanes; ++lane) {
    const bool used = lane < panel.num_rows;
    const double slope = used ? task.options.slopes[row.head] : 0;
    std::int64_t step = kKeysPerStep;  // the longest one that takes a reference no more than kMostAhead further
    while (step < kKeysPerSpan && slope * static_cast<double>(2 * step) * 1.4426950408889634 <= kMostAhead) step *= 2;
    panel.steps[lane] = static_cast<Real>(step);
    panel.steps[lanes + lane] = 1 / static_cast<Real>(step);
    panel.slopes[lane] = static_cast<Real>(slope);
    panel.positions[lane] = used ? static_cast<Real>(base + row.token - position_outside(task, row.token)) : 0;
    row.next();
  }
}

}  // namespace
}  // namespace headway
