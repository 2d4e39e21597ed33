// Masks: the part of one block of keys, read through the mask's strides into the lanes of one panel.
#pragma once

#include "elements.hpp"
#include "panel.hpp"

namespace headway {
namespace {

// What a mask does to a block of keys for a panel; kAll: it hides nothing and adds nothing.
enum class Shown { kNothing, kPart, kAll };

// It hides the keys of the block before `begin` and from `end` on. What kPart does to the others is in `addends`, rows of
// (keys, lanes); or, for a mask of bytes, a number of a matrix (keys / sizeof(Real), lanes) holds one byte each for
// neighbouring keys, the first one lowest.
template <class Real>
struct MaskBlock {
  Shown shown;
  std::int64_t begin, end;
  const Real* addends = nullptr;
  bool in_bytes = false;
  bool hides = true;  // some key from some row
  bool changes[kKeysPerBlock / kKeysPerGroup];  // whether a group of keys has anything but zeros, by kPart
};

struct Bool {
  std::uint8_t byte;
};

// What an element of a mask adds to a score, in the accumulation type.
template <class Real, class Element>
[[gnu::always_inline]] inline Real addend(Element x) {
  if constexpr (__is_same(Element, Bool)) {
    return x.byte != 0 ? Real{0} : -static_cast<Real>(__builtin_inf());
  } else if constexpr (sizeof(Element) > sizeof(Real)) {
    // A finite number stays one.
    const double lowest = -__FLT_MAX__, highest = __FLT_MAX__, infinite = __builtin_inf();
    return static_cast<Real>(x < lowest && x > -infinite ? lowest : x > highest && x < infinite ? highest : x);
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
    const auto bytes = [&](std::int64_t n) __attribute__((always_inline)) {  // for speed
      std::uint8_t any = 0, hidden = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        any |= row[i].byte;
        hidden |= static_cast<std::uint8_t>(row[i].byte == 0);
      }
      return RowEffect{any != 0, hidden != 0};
    };
    if (stride == 1 && count == kKeysPerBlock) return bytes(kKeysPerBlock);
    if (stride == 1) return bytes(count);
  }
  int shows = 0, changes = 0;
  read_mask_row<Real>(row, stride, count, [&](std::int64_t, Real x) {
    shows |= x != -static_cast<Real>(__builtin_inf());
    changes |= x != 0;
  });
  return {shows != 0, changes != 0};
}

// A mask that is the same for all rows is read once.
inline bool is_same_for_rows(const AttentionTask& task) {
  return task.options.mask_token_stride == 0 && (task.options.mask_head_stride == 0 || task.group == 1);
}

// Calls each(row from the key `begin` on) for the panel's rows until it returns false; once where all are the same.
template <class Real, class Element, class Each>
void for_mask_rows(const AttentionTask& task, const Panel<Real>& panel, std::int64_t begin, const Element* mask, const Each& each) {
  const std::int64_t num_rows = is_same_for_rows(task) ? 1 : panel.num_rows;
  RowCursor row(panel.first_row, task.group);
  for (std::int64_t i = 0; i < num_rows; ++i, row.next()) {
    const std::ptrdiff_t at = row.offset(task.options.mask_token_stride, task.options.mask_head_stride);
    if (!each(mask + at + begin * task.options.mask_key_stride)) return;
  }
}

// Calls body with the task's mask, as a pointer to its elements.
template <class Body>
auto with_mask(const AttentionTask& task, const Body& body) {
  const void* mask = task.options.mask;
  switch (task.options.mask_kind) {
    case MaskKind::kFloat32: return body(static_cast<const float*>(mask));
    case MaskKind::kFloat64: return body(static_cast<const double*>(mask));
    case MaskKind::kFloat16: return body(static_cast<const Half*>(mask));
    case MaskKind::kBFloat16: return body(static_cast<const BFloat16*>(mask));
    case MaskKind::kBool: break;
  }
  return body(static_cast<const Bool*>(mask));
}

// Keys [begin, begin + count) of a mask of contiguous bytes -> out, see MaskBlock. Bytes are moved four or eight at a time,
// as numbers.
template <class S>
void load_mask_bytes(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin, std::int64_t count,
                     const Bool* mask, typename S::Real* out) {
  using Real = typename S::Real;
  constexpr std::int64_t kNumbers = kKeysPerBlock / sizeof(Real);
  const int lanes = panel.vecs * S::kLanes;
  alignas(64) Real staged[S::kLanes][kNumbers];
  const Real* rows[S::kLanes];
  for (int i = 0; i < S::kLanes; ++i) rows[i] = staged[i];
  int lane = 0, used = 0;
  const auto flush = [&] {
    load_transposed<S>(rows, used, kNumbers, out + lane, lanes);
    lane += S::kLanes;
    used = 0;
  };
  for_mask_rows(task, panel, begin, mask, [&](const Bool* row) {
    auto* to = reinterpret_cast<unsigned char*>(staged[used]);
    if (count == kKeysPerBlock) {
      __builtin_memcpy(to, row, kKeysPerBlock);
    } else {
      for (std::int64_t i = 0; i < kKeysPerBlock; ++i) to[i] = i < count ? row[i].byte : 0;
    }
    if (++used == S::kLanes) flush();
    return true;
  });
  while (lane < lanes) flush();
}

// Keys [begin, begin + count) of the mask, for kPart: -> rows of bias (keys, lanes), all of them if fill_all, else where
// `changes` says so, or as bytes.
template <class S, class Element>
MaskBlock<typename S::Real> load_mask_of(const AttentionTask& task, const Panel<typename S::Real>& panel, const Element* mask,
                       std::int64_t begin, std::int64_t count, typename S::Real* bias, bool fill_all) {
  using Real = typename S::Real;
  const std::ptrdiff_t key_stride = task.options.mask_key_stride;
  const int lanes = panel.vecs * S::kLanes;
  bool shows = false, changes = false;
  for_mask_rows(task, panel, begin, mask, [&](const Element* row) {
    const RowEffect effect = effect_of<Real>(row, key_stride, count);
    shows = shows || effect.shows;
    changes = changes || effect.changes;
    return !(shows && changes);
  });
  if (!shows) return {Shown::kNothing, 0, 0, nullptr, false, true, {}};
  if (!changes) return {Shown::kAll, 0, count, nullptr, false, false, {}};
  MaskBlock<Real> block{Shown::kPart, 0, count, bias, false, true, {}};

  Real* staged = workspace_of<S>(task).mask_rows;
  const auto stage = [&](const Element* row, Real* to) {
    read_mask_row<Real>(row, key_stride, count, [&](std::int64_t key, Real x) { to[key] = x; });
  };
  if (is_same_for_rows(task)) {
    for_mask_rows(task, panel, begin, mask, [&](const Element* row) {
      stage(row, staged);
      return false;
    });
    while (staged[block.begin] < kLowest<Real>) ++block.begin;
    while (staged[block.end - 1] < kLowest<Real>) --block.end;
    // To the groups in which a maximum is judged.
    block.begin = block.begin / kKeysPerStep * kKeysPerStep;
    block.end = (block.end + kKeysPerStep - 1) / kKeysPerStep * kKeysPerStep;
    if (block.end > count) block.end = count;
    for (std::int64_t key = block.end; key % kKeysPerGroup != 0; ++key) staged[key] = 0;  // padding, hidden by its position
    for (std::int64_t key = block.begin; key < block.end; key += kKeysPerGroup) {
      bool& changed = block.changes[key / kKeysPerGroup];
      for (int i = 0; i < kKeysPerGroup; ++i) changed = changed || staged[key + i] != 0;
      if (!changed && !fill_all) continue;
      for (int i = 0; i < kKeysPerGroup; ++i) {
        for (int lane = 0; lane < lanes; lane += S::kLanes) S::store(bias + (key + i) * lanes + lane, S::set1(staged[key + i]));
      }
    }
    return block;
  }
  for (bool& changed : block.changes) changed = true;
  if constexpr (__is_same(Element, Bool)) {
    if (key_stride == 1 && !fill_all) {
      load_mask_bytes<S>(task, panel, begin, count, mask, bias);
      block.in_bytes = true;
      return block;
    }
  }
  // Rows that lie contiguous in a type that the lanes can read are read where they lie.
  constexpr bool kReadable =
      !__is_same(Element, Bool) && sizeof(Element) <= sizeof(Real) && requires(const Element* p) { S::load_elements(p, 1); };
  const bool direct = kReadable && key_stride == 1;
  int lane = 0, used = 0;
  const auto flush = [&](const auto& rows) {
    // Whole lines at a time: the rows of a mask are often a power of two apart and crowd the first-level cache.
    std::int64_t at = 0;
    for (; used == S::kLanes && at + S::kLanes <= count; at += S::kLanes) {
      load_block_transposed<S>(rows, at, S::kLanes, S::kLanes, bias + lane, lanes);
    }
    for (; at < count; at += S::kLanes) {
      const int n = count - at < S::kLanes ? static_cast<int>(count - at) : S::kLanes;
      load_block_transposed<S>(rows, at, used, n, bias + lane, lanes);
    }
    lane += S::kLanes;
    used = 0;
  };
  const auto read = [&](auto& rows, const auto& take) {
    for_mask_rows(task, panel, begin, mask, [&](const Element* row) {
      rows[used] = take(row);
      if (++used == S::kLanes) flush(rows);
      return true;
    });
    while (lane < lanes) flush(rows);  // what is left, and lanes without a row
  };
  if constexpr (kReadable) {
    const Element* rows[S::kLanes] = {};
    if (direct) read(rows, [](const Element* row) { return row; });
  }
  if (!direct) {
    const Real* rows[S::kLanes] = {};
    read(rows, [&](const Element* row) {
      stage(row, staged + used * kKeysPerBlock);
      return staged + used * kKeysPerBlock;
    });
  }
  if (__is_same(Element, Bool)) return block;
  auto hidden = S::greater(S::zero(), S::zero());
  for (std::int64_t i = 0; i < count * lanes; i += S::kLanes) {
    hidden = S::either(hidden, S::greater(S::set1(kLowest<Real>), S::load(bias + i)));
  }
  block.hides = S::any(hidden);
  return block;
}

template <class S>
MaskBlock<typename S::Real> load_mask(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin, std::int64_t count,
                    typename S::Real* bias, bool fill_all) {
  return with_mask(task, [&](const auto* mask) { return load_mask_of<S>(task, panel, mask, begin, count, bias, fill_all); });
}

// Whether the task's mask shows some row of the panel a key of [begin, begin + count).
template <class S>
bool mask_shows(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin, std::int64_t count) {
  return with_mask(task, [&](const auto* mask) {
    bool shows = false;
    for_mask_rows(task, panel, begin, mask, [&](const auto* row) {
      shows = effect_of<typename S::Real>(row, task.options.mask_key_stride, count).shows;
      return !shows;
    });
    return shows;
  });
}

// Asks for rows [row, row + count) of the panel's mask, for the block of keys that follows the one at `begin`: a mask is
// larger than the caches, and its rows are short.
template <class S>
void prefetch_mask(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin, std::int64_t row,
                   std::int64_t count) {
  const ScoreOptions& options = task.options;
  if (options.mask_key_stride != 1 || options.mask_token_stride == 0 || task.mask_is_kept) return;
  constexpr int kSizes[] = {4, 8, 2, 2, 1};  // by MaskKind
  const int size = kSizes[static_cast<int>(options.mask_kind)];
  RowCursor cursor(panel.first_row + row, task.group);
  for (; count > 0 && row < panel.num_rows; --count, ++row, cursor.next()) {
    const std::ptrdiff_t at = cursor.offset(options.mask_token_stride, options.mask_head_stride) + begin + kKeysPerBlock;
    const char* p = static_cast<const char*>(options.mask) + at * size;
    for (int line = 0; line < kKeysPerBlock * size; line += 64) __builtin_prefetch(p + line, 0, 2);
  }
}

// The whole of the task's mask for keys [begin, begin + count): null where it changes nothing.
template <class S>
const typename S::Real* mask_of(const AttentionTask& task, const Panel<typename S::Real>& panel, std::int64_t begin,
                                std::int64_t count) {
  using Real = typename S::Real;
  const int lanes = panel.vecs * S::kLanes;
  Real* bias = workspace_of<S>(task).bias;
  const MaskBlock<Real> block = load_mask<S>(task, panel, begin, count, bias, true);
  for (std::int64_t key = 0; key < count; ++key) {
    if (key >= block.begin && key < block.end) continue;
    for (int lane = 0; lane < lanes; ++lane) bias[key * lanes + lane] = -static_cast<Real>(__builtin_inf());
  }
  return block.shown == Shown::kAll ? nullptr : bias;
}

}  // namespace
}  // namespace headway
