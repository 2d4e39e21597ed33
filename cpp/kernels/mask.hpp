// Masks: the part of one block of keys, read through the mask's strides into the lanes of one panel.
#pragma once

#include "elements.hpp"
#include "panel.hpp"

namespace headway {
namespace {

// What a mask does to a block of keys for a panel; kAll: it hides nothing and adds nothing. It hides the keys of the
// block before `begin` and from `end` on.
enum class Shown { kNothing, kPart, kAll };
struct MaskBlock {
  Shown shown;
  std::int64_t begin, end;
};

struct Bool {
  std::uint8_t byte;
};

// What an element of a mask adds to a score, in the accumulation type.
template <class Real, class Element>
[[gnu::always_inline]] inline Real addend(Element x) {
  if constexpr (__is_same(Element, Bool)) {
    return x.byte != 0 ? Real{0} : -static_cast<Real>(__builtin_inf());
  } else {
    return static_cast<Real>(widen(x));
  }
}

// Calls each(i, addend) for every element of a row of a mask, elements `stride` apart.
template <class Real, class Element, class Each>
[[gnu::always_inline]] inline void read_mask_row(const Element* row, std::ptrdiff_t stride, std::int64_t count, const Each& each) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) each(i, addend<Real>(row[i]));
  } else {
    for (std::int64_t i = 0; i < count; ++i) each(i, addend<Real>(row[i * stride]));
  }
}

// Whether a row of a mask shows some key, and whether it changes something.
struct RowEffect {
  bool shows, changes;
};

template <class Real, class Element>
RowEffect effect_of(const Element* row, std::ptrdiff_t stride, std::int64_t count) {
  if constexpr (__is_same(Element, Bool)) {
    if (stride == 1) {  // in bytes, for speed
      std::uint8_t any = 0, hidden = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        any |= row[i].byte;
        hidden |= static_cast<std::uint8_t>(row[i].byte == 0);
      }
      return {any != 0, hidden != 0};
    }
  }
  int shows = 0, changes = 0;
  read_mask_row<Real>(row, stride, count, [&](std::int64_t, Real x) {
    shows |= x != -static_cast<Real>(__builtin_inf());
    changes |= x != 0;
  });
  return {shows != 0, changes != 0};
}

// Keys [begin, begin + count) of the mask -> rows of bias (keys, lanes), which only kPart fills.
template <class S, class Element>
MaskBlock load_mask_of(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin,
                       std::int64_t count, typename S::Real* bias) {
  using Real = typename S::Real;
  const ScoreOptions& options = task.options;
  const std::ptrdiff_t key_stride = options.mask_key_stride;
  const auto* mask = static_cast<const Element*>(options.mask) + begin * key_stride;
  const auto row_at = [&](const RowCursor& row) { return mask + row.offset(options.mask_token_stride, options.mask_head_stride); };
  const int lanes = panel.vecs * S::kLanes;
  // A mask that is the same for all rows is read once.
  const bool same = options.mask_token_stride == 0 && (options.mask_head_stride == 0 || task.group == 1);
  const std::int64_t num_rows = same ? 1 : panel.num_rows;

  bool shows = false, changes = false;
  RowCursor row(panel.first_row, task.group);
  for (std::int64_t i = 0; i < num_rows && !(changes && shows); ++i, row.next()) {
    const RowEffect effect = effect_of<Real>(row_at(row), key_stride, count);
    shows = shows || effect.shows;
    changes = changes || effect.changes;
  }
  if (!shows) return {Shown::kNothing, 0, 0};
  if (!changes) return {Shown::kAll, 0, count};

  Real* staged = workspace_of<S>(task).mask_rows;
  const auto stage = [&](const RowCursor& at, Real* to) {
    read_mask_row<Real>(row_at(at), key_stride, count, [&](std::int64_t key, Real x) { to[key] = x; });
  };
  row = RowCursor(panel.first_row, task.group);
  if (same) {
    stage(row, staged);
    MaskBlock block{Shown::kPart, 0, count};
    while (staged[block.begin] < kLowest<Real>) ++block.begin;
    while (staged[block.end - 1] < kLowest<Real>) --block.end;
    // To the groups in which a maximum is judged.
    block.begin = block.begin / kKeysPerStep * kKeysPerStep;
    block.end = (block.end + kKeysPerStep - 1) / kKeysPerStep * kKeysPerStep;
    if (block.end > count) block.end = count;
    for (std::int64_t key = block.begin; key < block.end; ++key) {
      for (int lane = 0; lane < lanes; lane += S::kLanes) S::store(bias + key * lanes + lane, S::set1(staged[key]));
    }
    return block;
  }
  for (int lane = 0; lane < lanes; lane += S::kLanes) {
    const Real* rows[S::kLanes] = {};
    int used = 0;
    for (; used < S::kLanes && lane + used < num_rows; ++used, row.next()) {
      if constexpr (__is_same(Element, Real)) {
        if (key_stride == 1) {
          rows[used] = row_at(row);
          continue;
        }
      }
      stage(row, staged + used * kKeysPerBlock);
      rows[used] = staged + used * kKeysPerBlock;
    }
    load_transposed<S>(rows, used, count, bias + lane, lanes);
  }
  return {Shown::kPart, 0, count};
}

template <class S>
MaskBlock load_mask(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin, std::int64_t count,
                    typename S::Real* bias) {
  switch (task.options.mask_kind) {
    case MaskKind::kFloat32: return load_mask_of<S, float>(task, panel, begin, count, bias);
    case MaskKind::kFloat64: return load_mask_of<S, double>(task, panel, begin, count, bias);
    case MaskKind::kFloat16: return load_mask_of<S, Half>(task, panel, begin, count, bias);
    case MaskKind::kBFloat16: return load_mask_of<S, BFloat16>(task, panel, begin, count, bias);
    case MaskKind::kBool: return load_mask_of<S, Bool>(task, panel, begin, count, bias);
  }
  return {Shown::kNothing, 0, 0};
}

// The whole of the task's mask for keys [begin, begin + count): null where it changes nothing.
template <class S>
const typename S::Real* mask_of(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin,
                                std::int64_t count) {
  using Real = typename S::Real;
  const int lanes = panel.vecs * S::kLanes;
  Real* bias = workspace_of<S>(task).bias;
  const MaskBlock block = load_mask<S>(task, panel, begin, count, bias);
  for (std::int64_t key = 0; key < count; ++key) {
    if (key >= block.begin && key < block.end) continue;
    for (int lane = 0; lane < lanes; ++lane) bias[key * lanes + lane] = -static_cast<Real>(__builtin_inf());
  }
  return block.shown == Shown::kAll ? nullptr : bias;
}

}  // namespace
}  // namespace headway
