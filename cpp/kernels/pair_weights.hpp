// The weights of pairs: from the products of one block's keys and a vector of lanes to weights in bfloat16, see pairs.hpp.
#pragma once

#include "pair_block.hpp"

namespace headway {
namespace {

// The weights are rounded to 8 bits, but not in the sum of the lse: relative error of the polynomial 2.9e-6.
struct PairExp2Coefficients {
  static constexpr float kSeries[] = {0.69304484490814969f, 0.24128020472272364f, 0.052242474269121572f,
                                      0.013426684250649921f};
  static constexpr float kSmallest = -126.0f;
};

// The context of few rows where it lies in rows, see pairs_few.hpp: (16, value_dim) floats, once it is started.
struct RowContext {
  float *now, *next;
  bool in_use;  // else it lies in lanes, as all others do
};

// What the steps need to know for one block and panel.
struct PairArgs {
  const AttentionTask* task;
  PairBlock* block;
  const Panel<float>* panel;
  Softmax<float>* state;
  float* scores;   // (kKeysPerJudgement, lanes)
  float* weights;  // (kKeysPerBlock / 2, lanes): pairs
  SoftmaxScale<float> scale;
  const float* bias;  // (kKeysPerBlock, lanes): what a mask adds to the scores, or null
  std::int64_t begin;  // keys of the block before this one, a multiple of kKeysPerJudgement, are seen by no lane
  std::int64_t ends[VecF32::kPanelVecs];  // keys of the block that some lane of each vector sees; rising
  RowContext* few;  // null: of many rows
};

// Moves the reference of the lanes whose largest product passed the bound, see raise_reference, and rescales the pairs
// of weights of this block's keys before `begin`.
template <class Products>
[[gnu::noinline]] void raise_pairs(const PairArgs& args, VecF32::Vec most, int lane, std::int64_t begin) {
  using S = VecF32;
  const int lanes = args.panel->vecs * S::kLanes;
  alignas(64) float products[S::kLanes];
  S::store(products, most);
  const auto before = S::load(args.state->reference + lane);
  const auto fresh = is_fresh<S>(S::load(args.state->bound + lane));  // their weights so far are 0 and stay so
  alignas(64) float rises[2 * S::kLanes];
  const bool alibi = args.task->options.slopes != nullptr;
  if (alibi) {
    const Rise<S> rise = rise_at<S>(*args.panel, lane, args.block->offset + begin);
    S::store(rises, rise.ahead);
    S::store(rises + S::kLanes, rise.eager);
  }
  // Products, unlike scores, have a unit of their own: their reference does not go ahead.
  const float least_weight = workspace_of<S>(*args.task).shaped ? kLeastWeight<float, true> : kLeastWeight<float, false>;
  const bool in_rows = args.few != nullptr && args.few->in_use;
  raise_reference<S, 1>(*args.state, args.scale, products, lane, nullptr, 0, in_rows ? 0 : args.task->value_dim, lanes,
                        least_weight, alibi ? rises : nullptr);
  const auto moved = S::sub(before, S::load(args.state->reference + lane));
  const auto factor = S::select(fresh, S::set1(1), exp2<S>(S::mul(moved, S::set1(args.scale.scale2))));
  if (in_rows && args.state->started) {
    alignas(64) float factors[S::kLanes];
    S::store(factors, factor);
    Products::Few::rescale(args.few->now, args.panel->num_rows, args.task->value_dim, factors);
  }
  const auto least = S::div(S::set1(kLeastWeight<float, true>), factor);  // see raise_reference
  const auto times = [&](S::Vec x) { return S::mul(S::select(S::greater(least, x), S::zero(), x), factor); };
  auto rounding = S::zero();  // what rounding once more adds to the weights
  for (std::int64_t key = args.begin; key < begin; key += 2) {
    float* p = args.weights + key / 2 * lanes + lane;
    const auto [even, odd] = Products::split(S::load(p));
    const auto first = times(even), second = times(odd), pair = Products::pair(first, second);
    const auto [new_even, new_odd] = Products::split(pair);
    rounding = S::add(rounding, S::add(S::sub(new_even, first), S::sub(new_odd, second)));
    S::store(p, pair);
  }
  float* divisor = args.state->divisor + lane;
  S::store(divisor, S::add(S::load(divisor), rounding));
}

// Products (kKeysPerJudgement, lanes) of the keys from `begin` on, for the vector of lanes from `lane` on, of which keys
// [0, end) of the block are seen by some lane -> pairs of weights (kKeysPerBlock / 2, lanes). Only a task with more than
// the causal rule makes scores of them first.
template <class Products>
[[gnu::noinline]] void weigh_pairs(const PairArgs& args, int lane, std::int64_t begin, std::int64_t end) {
  using S = VecF32;
  using Vec = S::Vec;
  const int lanes = args.panel->vecs * S::kLanes;
  const float* scores = args.scores + lane;
  const Vec limit = S::load(args.panel->limits + lane), hidden = S::set1(-static_cast<float>(__builtin_inf()));
  const std::int64_t offset = args.block->offset + begin;
  if (static_cast<std::int64_t>(args.panel->starts[lane]) >= offset + kKeysPerJudgement) {  // no lane sees any
    for (int i = 0; i < kKeysPerJudgement; i += 2) S::store(args.weights + (begin + i) / 2 * lanes + lane, S::zero());
    return;
  }
  const bool shaped = workspace_of<S>(*args.task).shaped || args.bias != nullptr ||
                      static_cast<std::int64_t>(args.panel->starts[lane + S::kLanes - 1]) > offset;
  if (shaped) {
    const ScoreTile<float> tile{args.scores, args.bias != nullptr ? args.bias + begin * lanes : nullptr, offset, kKeysPerJudgement};
    make_scores<S>(*args.task, *args.panel, lane, tile, ScoreStage::kWeights);
  }
  const bool full = shaped || (static_cast<std::int64_t>(args.panel->limits[lane]) + 1 >= offset + kKeysPerJudgement &&
                               end >= begin + kKeysPerJudgement);
  const int count = end - begin < kKeysPerJudgement ? static_cast<int>(end - begin) : kKeysPerJudgement;
  const auto masked = [&](int i) {  // -inf where the lane may not see the key
    const auto seen = S::not_less(limit, S::set1(static_cast<float>(offset + i)));
    return S::select(seen, S::load(scores + i * lanes), hidden);
  };

  Vec largest[4] = {hidden, hidden, hidden, hidden};
  if (full) {
    for (int i = 0; i < kKeysPerJudgement; i += 4) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) largest[c] = S::max(largest[c], S::load(scores + (i + c) * lanes));
    }
  } else {
    for (int i = 0; i < count; ++i) largest[i % 4] = S::max(largest[i % 4], masked(i));
  }
  const Vec most = S::max(S::max(largest[0], largest[1]), S::max(largest[2], largest[3]));
  Vec compared = most;
  if (args.task->options.slopes != nullptr) compared = S::add(most, rise_at<S>(*args.panel, lane, offset).eager);
  if (S::any(S::greater(compared, S::load(args.state->bound + lane)))) raise_pairs<Products>(args, most, lane, begin);

  const Vec scale2 = S::set1(args.scale.scale2), reference = S::load(args.state->reference + lane);
  Vec sum = S::load(args.state->sum + lane), divisor = S::load(args.state->divisor + lane);
  float* weights = args.weights + begin / 2 * lanes + lane;
  const auto weight = [&](Vec x) { return exp2<S, PairExp2Coefficients>(S::mul(S::sub(x, reference), scale2), kLeastExponent<float, true>); };
  const auto store = [&](int i, Vec even, Vec odd) {
    const Vec pair = Products::pair(even, odd);
    const auto [first, second] = Products::split(pair);
    sum = S::add(S::add(sum, even), odd);
    divisor = S::add(S::add(divisor, first), second);
    S::store(weights + i / 2 * lanes, pair);
  };
  if (full) {
#pragma GCC unroll 2
    for (int i = 0; i < kKeysPerJudgement; i += 2) {
      store(i, weight(S::load(scores + i * lanes)), weight(S::load(scores + (i + 1) * lanes)));
    }
  } else {
    int i = 0;
    for (; i < count; i += 2) store(i, weight(masked(i)), weight(masked(i + 1)));
    for (; i < kKeysPerJudgement; i += 2) S::store(weights + i / 2 * lanes, S::zero());
  }
  S::store(args.state->sum + lane, sum);
  S::store(args.state->divisor + lane, divisor);
}

}  // namespace
}  // namespace headway
