// The objects that the fused loop never stores: scores and weights, (rows, keys), for those who ask to see them.
#pragma once

#include "prefill.hpp"

namespace headway {
namespace {

// q.k of kRows keys from `key` on -> rows [key, key + kRows) of scores (kKeysPerBlock, lanes): the product of
// weigh_keys, in the same order.
template <class S, int kVecs, int kRows>
[[gnu::noinline]] void store_products(const TileArgs<typename S::Real>& args, std::int64_t key) {
  constexpr int kLanes = kVecs * S::kLanes;
  const std::int64_t head_dim = args.task->head_dim;
  typename S::Vec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) acc[i][j] = S::zero();
  }
  multiply_tile<S, kRows, kVecs>(acc, args.block->group(key), args.block->group_stride(key, head_dim), 1,
                                 args.panel->queries, kLanes, head_dim);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) S::store(args.weights + (key + i) * kLanes + j * S::kLanes, acc[i][j]);
  }
}

// Products of one block (count, lanes) -> what `stage` names, in place.
template <class S>
void apply_stage(const TileArgs<typename S::Real>& args, ScoreStage stage) {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  const Panel<Real>& panel = *args.panel;
  const int lanes = panel.vecs * S::kLanes;
  const Vec scale = S::set1(static_cast<Real>(workspace_of<S>(*args.task).split.rest));
  const Vec hidden = S::set1(stage == ScoreStage::kWeights ? 0 : -static_cast<Real>(__builtin_inf()));
  for (int at = 0; at < lanes; at += S::kLanes) {
    const Vec limit = S::load(panel.limits + at);
    const Vec reference = S::load(panel.total.reference + at);
    const Vec sum = S::load(panel.total.sum + at);
    const Vec inverse = S::select(is_empty<S>(sum), S::zero(), S::div(S::set1(1), sum));
    for (std::int64_t key = 0; key < args.block->count; ++key) {
      Real* p = args.weights + key * lanes + at;
      const Vec product = S::load(p);
      Vec value = stage == ScoreStage::kWeights
                      ? S::mul(exp2<S>(S::mul(S::sub(product, reference), S::set1(args.scale.scale2))), inverse)
                      : S::mul(product, scale);
      if (stage != ScoreStage::kScaled) {
        const auto position = static_cast<Real>(args.block->offset + key);
        value = S::select(S::not_less(limit, S::set1(position)), value, hidden);
      }
      S::store(p, value);
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
      TileArgs<Real> args{&task, &block, &panel, &panel.total, w.weights, w.scale, nullptr};
      with_vecs<S>(panel.vecs, [&](auto vecs) {
        constexpr int kVecs = decltype(vecs)::value;
        for (std::int64_t key = 0; key < count; key += kKeysPerGroup) store_products<S, kVecs, kKeysPerGroup>(args, key);
      });
      apply_stage<S>(args, stage);
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
