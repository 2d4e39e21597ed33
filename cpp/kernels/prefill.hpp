// The loop over tiles: for each block of keys and each panel of queries, scores -> weights -> context.
//
// Lanes are queries. Scores S^T (keys, lanes) = K (keys, head_dim) . Q^T (head_dim, lanes), then
// C^T (value_dim, lanes) += V^T (value_dim, keys) . W^T (keys, lanes): K and V are read where they lie, nothing is
// reduced across lanes, and at the causal edge whole vectors of lanes are left out.
//
// Every sum of a row runs over its own keys in ascending order, one after the other, so that its bits do not depend
// on the tile shapes below. A key that a row may not see adds nothing to it, not even 0 * v: v may be NaN.
#pragma once

#include "attend_scores.hpp"
#include "few_rows.hpp"

namespace headway {
namespace {

// Masked groups of keys from `key` to `count`, with the first vector that has a lane seeing the group's first key as a
// constant. Where only the last vector is left, two groups make a tile, so that enough sums are under way.
template <class S, int kVecs, int kFirst>
[[gnu::always_inline]] inline void weigh_edge_keys(const TileArgs<typename S::Real>& args, std::int64_t key,
                                                   std::int64_t count) {
  if constexpr (kFirst + 1 < kVecs) {
    const auto edge = static_cast<std::int64_t>(args.panel->limits[(kFirst + 1) * S::kLanes - 1]) + 1 - args.block->offset;
    for (; key < count && key < edge; key += kKeysPerGroup) weigh_keys<S, kVecs, kFirst, kKeysPerGroup, true>(args, key);
    weigh_edge_keys<S, kVecs, kFirst + 1>(args, key, count);
  } else {
    constexpr int kTwo = 2 * kKeysPerGroup;
    for (; key + kKeysPerGroup < count && key + kTwo <= args.block->count; key += kTwo) {
      weigh_keys<S, kVecs, kFirst, kTwo, true>(args, key);
    }
    for (; key < count; key += kKeysPerGroup) weigh_keys<S, kVecs, kFirst, kKeysPerGroup, true>(args, key);
  }
}

// Tiles of kRows context rows, then the remainder in ever fewer rows.
template <class S, int kVecs, int kRows, bool kFetch>
[[gnu::always_inline]] inline void add_all_context(const TileArgs<typename S::Real>& args, std::int64_t d,
                                                   std::int64_t full, std::int64_t count) {
  for (; d + kRows <= args.task->value_dim; d += kRows) add_context<S, kVecs, kRows, kFetch>(args, d, full, count);
  constexpr int kFewer = kRows > 4 ? (kRows > 8 ? 8 : 4) : kRows / 2;
  if constexpr (kRows > 1) add_all_context<S, kVecs, kFewer, kFetch>(args, d, full, count);
}

// One block of keys for one panel. kFetch: keys and values come from afar and are fetched ahead.
template <class S, int kVecs, bool kFetch>
void attend_block(const TileArgs<typename S::Real>& args, KeyBlock<typename S::Real>& block, std::int64_t span_begin) {
  constexpr int kScoreRows = S::kAccumulators / kVecs / kKeysPerGroup * kKeysPerGroup;
  constexpr int kContextRows = S::kContextAccumulators / kVecs;
  const auto& panel = *args.panel;
  const std::int64_t begin = span_begin + block.offset;
  const auto clamp = [&](std::int64_t n) { return n < 0 ? 0 : n > block.count ? block.count : n; };
  const std::int64_t count = clamp(panel.last_limit + 1 - begin);  // seen by some lane
  const std::int64_t full = clamp(panel.first_limit + 1 - begin);  // seen by every lane
  if (count <= clamp(panel.first_start - begin)) return;

  const auto& w = workspace_of<S>(*args.task);
  MaskBlock<typename S::Real> mask{Shown::kAll, 0, count, nullptr, false, false, {}};
  if (args.task->options.mask != nullptr) mask = mask_block<S>(*args.task, panel, begin, count, false);
  if (mask.shown == Shown::kNothing) return;
  if (w.shaped || mask.shown == Shown::kPart || panel.last_start > begin) {
    constexpr bool kWhole = kVecs == S::kPanelVecs;  // fewer do not pay for kernels of their own
    return attend_scores<S, kVecs, kFetch && kWhole>(args, block, mask, begin);
  }

  std::int64_t key = 0;
  for (; key + kScoreRows <= full; key += kScoreRows) weigh_keys<S, kVecs, 0, kScoreRows, false, kFetch>(args, key);
  for (; key + kKeysPerGroup <= full; key += kKeysPerGroup) weigh_keys<S, kVecs, 0, kKeysPerGroup, false>(args, key);
  weigh_edge_keys<S, kVecs, 0>(args, key, count);
  if (drops_weights(*args.task)) drop_block<S, kVecs>(args, edges_of<S, kVecs>(args, 0, count), begin);
  if (args.few != nullptr) {
    args.few->add(args, block, FewKeys{0, full, count}, false);
  } else {
    add_all_context<S, kVecs, kContextRows, kFetch>(args, 0, full, count);
  }
  args.state->started = true;
}

// What is to be read after the block that starts at `begin`: the next one; or, where no key of the task is left, or none that
// its thread reads, the first one of what the thread goes on with.
template <class KeyElement>
Fetch fetch_after(const AttentionTask& task, std::int64_t begin, std::int64_t visible_end) {
  const auto block = [](const AttentionTask& of, std::int64_t from, std::int64_t end) {
    return Fetch::of<KeyElement>(of, from, end - from < kKeysPerBlock ? end - from : kKeysPerBlock);
  };
  const std::int64_t end = task.keys_read < visible_end ? task.keys_read : visible_end;
  if (begin + kKeysPerBlock < end) return block(task, begin + kKeysPerBlock, end);
  return task.next != nullptr ? block(*task.next, task.next_key, task.next->num_keys) : Fetch();
}

// Walks over keys [key_begin, key_end), one span: load(begin, count) makes each block of keys ready, attend(block, panel,
// state, last) then adds it to each panel of the task; last says that no key follows. leave(panel, state) is called once for
// each panel after the last block, before spans are joined.
template <class S, class Element, class KeyElement, class Load, class Attend, class Leave>
[[gnu::always_inline]] inline void walk_span(const AttentionTask& task, std::int64_t key_begin, std::int64_t key_end,
                                             const Load& load, const Attend& attend, const Leave& leave) {
  auto& w = workspace_of<S>(task);
  std::int64_t visible_begin = task.num_keys, visible_end = 0;
  for (int p = 0; p < w.num_panels; ++p) {
    auto& panel = w.panels[p];
    set_limits<S>(task, panel, key_begin);
    if (panel.total.started) panel.span.reset(panel.vecs * S::kLanes);
    visible_begin = panel.first_start < visible_begin ? panel.first_start : visible_begin;
    visible_end = panel.last_limit + 1 > visible_end ? panel.last_limit + 1 : visible_end;
  }
  const std::int64_t hidden = visible_begin > key_begin ? (visible_begin - key_begin) / kKeysPerBlock * kKeysPerBlock : 0;
  key_end = visible_end < key_end ? visible_end : key_end;
  for (int p = 0; p < w.num_panels && task.options.mask != nullptr; ++p) {
    prefetch_mask<S>(task, w.panels[p], key_begin + hidden - kKeysPerBlock, 0, w.panels[p].num_rows);
  }
  begin_mask<S>(task);
  bool joins[kMostPanels];
  for (int p = 0; p < w.num_panels; ++p) joins[p] = w.panels[p].total.started;

  for (std::int64_t begin = key_begin + hidden; begin < key_end; begin += kKeysPerBlock) {
    const std::int64_t count = key_end - begin < kKeysPerBlock ? key_end - begin : kKeysPerBlock;
    bool shown = task.options.mask == nullptr;
    for (int p = 0; p < w.num_panels && !shown; ++p) shown = block_shows<S>(task, w.panels[p], begin, count);
    if (!shown) continue;
    w.fetch = task.cold ? fetch_after<KeyElement>(task, begin, visible_end) : Fetch();
    auto block = load(begin, count);
    for (int p = 0; p < w.num_panels; ++p) {
      auto& panel = w.panels[p];
      if (panel.last_limit < begin + count) prefetch_rows<Element>(task, panel.first_row, panel.num_rows);
      attend(block, panel, joins[p] ? panel.span : panel.total, visible_end <= begin + count);
    }
  }
  for (int p = 0; p < w.num_panels; ++p) {
    auto& panel = w.panels[p];
    leave(panel, joins[p] ? panel.span : panel.total);
    if (joins[p]) join<S>(panel.total, panel.span, w.scale, task.value_dim, panel.vecs * S::kLanes);
  }
}

// Keys [key_begin, key_end), one span, for every panel of the task. Element: of queries and results.
template <class S, class Element, class KeyElement>
void attend_span(const AttentionTask& task, std::int64_t key_begin, std::int64_t key_end) {
  using Real = typename S::Real;
  auto& w = workspace_of<S>(task);
  const bool is_few = w.num_panels == 1 && w.panels[0].num_rows <= kFewRows<S> && task.value_dim > 0;
  FewBlock<KeyElement> few;
  for (std::int64_t i = 0; is_few && i < kKeysPerBlock * S::kLanes; ++i) w.products[i] = 0;  // the lanes without a row
  walk_span<S, Element, KeyElement>(
      task, key_begin, key_end,
      [&](std::int64_t begin, std::int64_t count) {
        if (is_few) {
          find_rows(task, begin, count, few);
          KeyBlock<Real> block{};
          block.count = count;
          block.offset = begin - key_begin;
          return block;
        }
        return load_block<S, KeyElement>(task, begin, count, key_begin, task.value_dim > 0);
      },
      [&](KeyBlock<Real>& block, Panel<Real>& panel, Softmax<Real>& state, bool last) {
        TileArgs<Real> args{&task, &block, &panel, &state, w.weights, w.scale,
                            block.keys + (last ? 0 : block.count * block.key_stride), nullptr};
        if (is_few) {
          const auto attend_few = [&] { attend_block<S, 1, false>(args, block, key_begin); };
          return with_few<S>(args, block, few, key_begin + block.offset, attend_few);
        }
        with_vecs<S>(panel.vecs, [&](auto vecs) {
          constexpr int kVecs = decltype(vecs)::value;
          if (__is_same(KeyElement, Real) && task.cold && block.keys != w.keys && &panel == w.panels &&
              panel.first_limit + 1 >= key_begin + block.offset + block.count) {
            attend_block<S, kVecs, true>(args, block, key_begin);
          } else {
            attend_block<S, kVecs, false>(args, block, key_begin);
          }
        });
      },
      [](const Panel<Real>&, const Softmax<Real>&) {});
}

// The spans so far of one copy of a task <- joined with those of another copy, which come later.
template <class S>
void join_tasks(const AttentionTask& total, const AttentionTask& part) {
  auto& to = workspace_of<S>(total);
  auto& from = workspace_of<S>(part);
  for (int p = 0; p < to.num_panels; ++p) {
    join<S>(to.panels[p].total, from.panels[p].total, to.scale, total.value_dim, to.panels[p].vecs * S::kLanes);
  }
}

}  // namespace
}  // namespace headway
