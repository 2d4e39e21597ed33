// bfloat16 attention on products of pairs: CPUs that multiply two neighbouring bfloat16 numbers by two others and add
// both products to one float32 sum do more of that work than of float32's.
//
// The shape is prefill's: lanes are queries, S^T = K . Q^T, then C^T += V^T . W^T. Keys come in pairs along head_dim as
// they lie. Weights are rounded to bfloat16, pairs of keys side by side, for the second product. The context
// is divided by the sum of the weights so rounded, for then they add up to 1; the lse has that of the weights before. The
// scores of a few keys lie in memory between the product and the softmax, small enough for the first-level cache. `Products`
// says how the two products are made.
//
// A maximum is judged for kKeysPerJudgement keys at a time, on an absolute grid. Weights of hidden keys are 0; a value
// that is not finite is taken out of the product and added to the lanes that see it, see add_not_finite. The CPU takes
// subnormal numbers for 0 in these products and in rounding to bfloat16.
#pragma once

#include "pair_weights.hpp"

namespace headway {
namespace {

// Weights of one key and a vector of lanes, out of the pairs.
inline VecF32::Vec weights_of_key(const PairArgs& args, std::int64_t key, int lane) {
  constexpr int kLanes = VecF32::kLanes;
  alignas(64) float weights[kLanes];
  const auto* pairs = reinterpret_cast<const BFloat16*>(args.weights + key / 2 * args.panel->vecs * kLanes + lane);
  for (int i = 0; i < kLanes; ++i) weights[i] = widen(pairs[2 * i + key % 2]);
  return VecF32::load(weights);
}

// Dropout of the block's weights, pairs of them, the keys that each vector sees; see dropout.hpp.
[[gnu::noinline]] void drop_pairs(const PairArgs& args, std::int64_t first_key) {
  using S = VecF32;
  const Dropout& dropout = args.task->options.dropout;
  const int vecs = args.panel->vecs;
  for (int j = 0; j < vecs; ++j) {
    const DrawLanes<S> lanes = draw_lanes<S>(*args.task, *args.panel, j * S::kLanes);
    for (std::int64_t key = args.begin; key < args.ends[j]; key += kKeysPerDraw) {
      LaneWords<float>::Words words[kKeysPerDraw];
      draw_words<S>(lanes, dropout, first_key + key, words);
#pragma GCC unroll 2
      for (int i = 0; i < kKeysPerDraw; i += 2) {
        const auto kept = ((words[i] >= dropout.threshold) & 0xffff) | ((words[i + 1] >= dropout.threshold) & -0x10000);
        float* p = args.weights + ((key + i) / 2 * vecs + j) * S::kLanes;
        S::store(p, _mm512_and_ps(S::load(p), reinterpret_cast<S::Vec>(kept)));
      }
    }
  }
}

// The context of few rows -> lanes, where all else expects it.
template <class Products>
void leave_rows(const AttentionTask& task, const Panel<float>& panel, const Softmax<float>& state, RowContext& few) {
  if (few.in_use && state.started) Products::Few::to_lanes(few.now, panel.num_rows, task.value_dim, state.context);
  few.in_use = false;
}

// The context of few rows += the block. Where a value is not finite, the way of many rows takes over for the rest of the span.
template <class Products>
void add_few_pairs(const PairArgs& args) {
  if (args.few->in_use) {
    RowContext& few = *args.few;
    const PairBlock& block = *args.block;
    const typename Products::Few::Values values{block.values, block.value_stride, block.count, args.begin, args.ends[0]};
    const float* before = args.state->started ? few.now : nullptr;
    Fetch& fetch = workspace_of<VecF32>(*args.task).fetch;
    if (Products::Few::add(args.weights, args.panel->num_rows, values, args.task->value_dim, before, few.next, fetch)) {
      few = {few.next, few.now, true};
      return;
    }
    leave_rows<Products>(*args.task, *args.panel, *args.state, few);
  }
  load_pair_values<Products>(*args.task, *args.block);
  Products::template context<1>(args);
}

// One block of keys, the first of which is first_key, for one panel.
template <class Products>
void attend_pairs(PairArgs& args, std::int64_t first_key) {
  using S = VecF32;
  const int vecs = args.panel->vecs;
  for (int j = 0; j < vecs; ++j) {
    const std::int64_t end = static_cast<std::int64_t>(args.panel->limits[(j + 1) * S::kLanes - 1]) + 1 - args.block->offset;
    args.ends[j] = end < 0 ? 0 : end > args.block->count ? args.block->count : end;
  }
  const std::int64_t start = args.panel->first_start - first_key;
  if (args.ends[vecs - 1] <= (start > 0 ? start : 0)) return;
  args.begin = start > 0 ? start / kKeysPerJudgement * kKeysPerJudgement : 0;
  if (args.task->options.mask != nullptr) {
    const MaskBlock<float> mask = mask_block<S>(*args.task, *args.panel, first_key, args.ends[vecs - 1], true);
    if (mask.shown == Shown::kNothing) return;
    args.bias = mask.addends;
    if (mask.begin > args.begin) args.begin = mask.begin / kKeysPerJudgement * kKeysPerJudgement;
    for (auto& end : args.ends) end = end < mask.end ? end : mask.end;
  }
  with_vecs<S>(vecs, [&](auto n) {
    constexpr int kVecs = decltype(n)::value;
    for (std::int64_t begin = args.begin; begin < args.ends[kVecs - 1]; begin += kKeysPerJudgement) {
      Products::template scores<kVecs>(args, begin);
      for (int j = 0; j < kVecs; ++j) {
        if (args.ends[j] > begin) weigh_pairs<Products>(args, j * S::kLanes, begin, args.ends[j]);
      }
    }
    if (drops_weights(*args.task)) drop_pairs(args, first_key);
    if (kVecs == 1 && args.few != nullptr) return add_few_pairs<Products>(args);
    Products::template context<kVecs>(args);
  });
  args.state->started = true;
  if (!args.block->cleaned) return;
  const PairBlock& block = *args.block;
  add_not_finite<S>(
      *args.task, *args.panel, *args.state, args.bias, block.offset, args.begin, args.ends[vecs - 1],
      [&](std::int64_t key, std::int64_t d) { return widen(block.values[key * block.value_stride + d]); },
      [&](std::int64_t key, int lane) { return weights_of_key(args, key, lane); });
}

// Keys [key_begin, key_end), one span, for every panel of the task.
template <class Products>
void attend_pairs_span(const AttentionTask& task, std::int64_t key_begin, std::int64_t key_end) {
  [[maybe_unused]] const typename Products::Session session;
  auto& w = pair_workspace_of(task);
  const bool is_few = Products::Few::serves(task, w);
  RowContext few{w.few_context, w.few_context + 16 * task.value_dim, is_few};
  walk_span<VecF32, BFloat16, BFloat16>(
      task, key_begin, key_end,
      [&](std::int64_t begin, std::int64_t count) {
        PairBlock block = load_pair_keys<Products>(task, begin, count, key_begin, is_few);
        if (!is_few) load_pair_values<Products>(task, block);
        return block;
      },
      [&](PairBlock& block, Panel<float>& panel, Softmax<float>& state, bool) {
        PairArgs args{&task, &block, &panel, &state, w.scores, w.weights, w.scale, nullptr, 0, {}, is_few ? &few : nullptr};
        attend_pairs<Products>(args, key_begin + block.offset);
      },
      [&](const Panel<float>& panel, const Softmax<float>& state) { leave_rows<Products>(task, panel, state, few); });
}

// context / sum -> the output rows: rounded while in lanes, so that half as much is transposed, in pairs.
template <class Products>
void finish_pairs(const AttentionTask& task, double* reference, double* sum) {
  using S = VecF32;
  if (task.wide_out || task.value_dim % 2 != 0) return finish_task<S, BFloat16>(task, reference, sum);
  finish_panels<S>(task, reference, sum, [&](const Panel<float>& panel, const float* inverse) {
    const int lanes = panel.vecs * S::kLanes;
    for_rows<S, BFloat16>(task, panel, 0, [&](int lane, BFloat16* const(&rows)[S::kLanes], int count) {
      const auto times = S::load(inverse + lane);
      float* context = panel.total.context + lane;
      for (std::int64_t d = 0; d < task.value_dim; d += 2) {  // row d / 2 <- rows d and d + 1
        const auto even = S::add(S::mul(S::load(context + d * lanes), times), S::zero());  // +0, see store_rows
        const auto odd = S::add(S::mul(S::load(context + (d + 1) * lanes), times), S::zero());
        S::store(context + d / 2 * lanes, Products::pair(even, odd));
      }
      float* words[S::kLanes] = {};
      for (int i = 0; i < count; ++i) words[i] = reinterpret_cast<float*>(rows[i]);
      store_transposed<S>(context, lanes, task.value_dim / 2, [](S::Vec x) { return x; }, words, count);
    });
  });
}

// For the scores and weights that a user asks to see, another ISA's kernels serve: store_scores stays empty.
template <class Products>
constexpr KindKernels pair_kernels() {
  using S = VecF32;
  return KindKernels{
      .rows_per_panel = S::kPanelVecs * S::kLanes,
      .rows_per_task = Products::kPanels * S::kPanelVecs * S::kLanes,
      .workspace_bytes =
          [](std::int64_t head_dim, std::int64_t value_dim) {
            PairWorkspace w;
            return lay_out_pairs<Products>(w, nullptr, head_dim, value_dim);
          },
      .kept_mask_bytes = kept_mask_bytes<S>(Products::kPanels),
      .begin = begin_pairs<Products>,
      .attend_span = attend_pairs_span<Products>,
      .join = join_tasks<S>,
      .finish = finish_pairs<Products>,
      .store_scores = nullptr,
  };
}

}  // namespace
}  // namespace headway
