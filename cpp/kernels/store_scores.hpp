// The objects that the fused loop never stores: scores and weights, (rows, keys), for those who ask to see them.
#pragma once

#include "finish.hpp"
#include "prefill.hpp"

namespace headway {
namespace {

// q.k of one group of keys from `key` on -> rows of args.weights (keys, lanes), in the same order as for the weights.
template <class S, int kVecs>
[[gnu::noinline]] void store_products(const TileArgs<typename S::Real>& args, std::int64_t key) {
  typename S::Vec acc[kKeysPerGroup][kVecs];
  multiply_keys<S, kVecs, 0>(acc, args, key);
#pragma GCC unroll 32
  for (int i = 0; i < kKeysPerGroup; ++i) {
#pragma GCC unroll 32
    for (int j = 0; j < kVecs; ++j) S::store(args.weights + ((key + i) * kVecs + j) * S::kLanes, acc[i][j]);
  }
}

// Products of one block (count, lanes), from first_key on -> what `stage` names, in place. inverse (lanes): see settle_sums.
template <class S>
void apply_stage(const TileArgs<typename S::Real>& args, const typename S::Real* bias, const typename S::Real* inverse,
                 ScoreStage stage, std::int64_t first_key) {
  using Real = typename S::Real;
  const Panel<Real>& panel = *args.panel;
  const int lanes = panel.vecs * S::kLanes;
  const std::int64_t offset = args.block->offset, count = args.block->count;
  for (int at = 0; at < lanes; at += S::kLanes) {
    make_scores<S>(*args.task, panel, at, ScoreTile<Real>{args.weights, bias, offset, count}, stage);
    if (stage != ScoreStage::kWeights) continue;
    const auto reference = S::load(panel.total.reference + at), times = S::load(inverse + at);
    for (std::int64_t key = 0; key < count; ++key) {
      Real* p = args.weights + key * lanes + at;
      const auto weight = exp2<S>(S::mul(S::sub(S::load(p), reference), S::set1(args.scale.scale2)));
      const auto hidden = hides<S>(panel, bias != nullptr ? bias + key * lanes + at : nullptr, at, offset + key);
      S::store(p, S::select(hidden, S::zero(), S::mul(weight, times)));
    }
    if (args.task->options.dropout.drops) {
      const std::int64_t groups = (count + kKeysPerGroup - 1) / kKeysPerGroup * kKeysPerGroup;
      drop_weights<S>(*args.task, panel, at, args.weights, first_key, 0, groups);
    }
  }
}

// Columns [key_begin, key_end) of the task's rows of scores or weights; key_begin and key_end lie in one span.
template <class S, class Element>
void store_scores(const AttentionTask& task, std::int64_t key_begin, std::int64_t key_end, ScoreStage stage) {
  using Real = typename S::Real;
  auto& w = workspace_of<S>(task);
  for (int p = 0; p < w.num_panels; ++p) set_limits<S>(task, w.panels[p], key_begin);
  alignas(64) Real ones[S::kPanelVecs * S::kLanes];
  for (auto& one : ones) one = 1;
  for (std::int64_t begin = key_begin; begin < key_end; begin += kKeysPerBlock) {
    const std::int64_t count = key_end - begin < kKeysPerBlock ? key_end - begin : kKeysPerBlock;
    const KeyBlock<Real> block = load_block<S, Element>(task, begin, count, key_begin, false);
    for (int p = 0; p < w.num_panels; ++p) {
      auto& panel = w.panels[p];
      TileArgs<Real> args{&task, &block, &panel, &panel.total, w.weights, w.scale, nullptr, nullptr};
      with_vecs<S>(panel.vecs, [&](auto vecs) {
        for (std::int64_t key = 0; key < count; key += kKeysPerGroup) store_products<S, decltype(vecs)::value>(args, key);
      });
      const Real* bias = nullptr;
      if (task.options.mask != nullptr && stage != ScoreStage::kScaled && stage != ScoreStage::kCapped) {
        bias = mask_of<S>(task, panel, begin, count);
      }
      alignas(64) Real inverse[S::kPanelVecs * S::kLanes];
      if (stage == ScoreStage::kWeights) settle_sums<S>(task, panel, inverse, nullptr, nullptr);
      apply_stage<S>(args, bias, inverse, stage, begin);
      if (task.wide_out) {
        store_rows<S, Real>(task, panel, w.weights, count, ones, begin);
      } else {
        store_rows<S, Element>(task, panel, w.weights, count, ones, begin);
      }
    }
  }
}

}  // namespace
}  // namespace headway
