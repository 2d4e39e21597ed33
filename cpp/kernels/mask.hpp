// Masks: the part of one block of keys, read through the mask's strides into the lanes of one panel.
#pragma once

#include "elements.hpp"
#include "panel.hpp"

namespace headway {
namespace {

// What a mask does to a block of keys for a panel; kAll: it hides nothing and adds nothing.
enum class Shown { kNothing, kPart, kAll };

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

// Keys [begin, begin + count) of the mask -> rows of bias (keys, lanes), which only kPart fills.
template <class S, class Element>
Shown load_mask_of(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin, std::int64_t count,
                   typename S::Real* bias) {
  using Real = typename S::Real;
  const ScoreOptions& options = task.options;
  const std::ptrdiff_t key_stride = options.mask_key_stride;
  const auto* mask = static_cast<const Element*>(options.mask) + begin * key_stride;
  const int lanes = panel.vecs * S::kLanes;
  // A mask that is the same for all rows is read once.
  const bool same = options.mask_token_stride == 0 && (options.mask_head_stride == 0 || task.group == 1);
  const std::int64_t num_rows = same ? 1 : panel.num_rows;

  bool shows = false, plain = true;
  RowCursor row(panel.first_row, task.group);
  for (std::int64_t i = 0; i < num_rows && (plain || !shows); ++i, row.next()) {
    int shown = 0, changed = 0;
    read_mask_row<Real>(mask + row.offset(options.mask_token_stride, options.mask_head_stride), key_stride, count,
                        [&](std::int64_t, Real x) {
                          shown |= x != -static_cast<Real>(__builtin_inf());
                          changed |= x != 0;
                        });
    shows = shows || shown != 0;
    plain = plain && changed == 0;
  }
  if (!shows) return Shown::kNothing;
  if (plain) return Shown::kAll;

  Real* out = workspace_of<S>(task).mask_rows;
  row = RowCursor(panel.first_row, task.group);
  for (int lane = 0; lane < lanes; lane += S::kLanes) {
    const Real* rows[S::kLanes] = {};
    int used = 0;
    for (; used < S::kLanes && lane + used < num_rows; ++used, row.next()) {
      Real* to = out + used * kKeysPerBlock;
      read_mask_row<Real>(mask + row.offset(options.mask_token_stride, options.mask_head_stride), key_stride, count,
                          [&](std::int64_t key, Real x) { to[key] = x; });
      rows[used] = to;
    }
    if (!same) {
      load_transposed<S>(rows, used, count, bias + lane, lanes);
      continue;
    }
    for (std::int64_t key = 0; key < count; ++key) S::store(bias + key * lanes + lane, S::set1(out[key]));
  }
  return Shown::kPart;
}

template <class S>
Shown load_mask(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin, std::int64_t count,
                typename S::Real* bias) {
  switch (task.options.mask_kind) {
    case MaskKind::kFloat32: return load_mask_of<S, float>(task, panel, begin, count, bias);
    case MaskKind::kFloat64: return load_mask_of<S, double>(task, panel, begin, count, bias);
    case MaskKind::kFloat16: return load_mask_of<S, Half>(task, panel, begin, count, bias);
    case MaskKind::kBFloat16: return load_mask_of<S, BFloat16>(task, panel, begin, count, bias);
    case MaskKind::kBool: return load_mask_of<S, Bool>(task, panel, begin, count, bias);
  }
  return Shown::kNothing;
}

// The whole of the task's mask for keys [begin, begin + count): null where it changes nothing.
template <class S>
const typename S::Real* mask_of(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin,
                                std::int64_t count) {
  typename S::Real* bias = workspace_of<S>(task).bias;
  const Shown shown = load_mask<S>(task, panel, begin, count, bias);
  if (shown == Shown::kNothing) {
    for (std::int64_t i = 0; i < count * panel.vecs * S::kLanes; ++i) bias[i] = -static_cast<typename S::Real>(__builtin_inf());
  }
  return shown == Shown::kAll ? nullptr : bias;
}

}  // namespace
}  // namespace headway
