// What the backward pass by parts does with 32 keys and a block of rows: the products of both, by tiles; weights and score
// gradients, by vectors; and the products of these. See backward_part_rows.hpp.
#pragma once

#include "backward_part_rows.hpp"

namespace headway {
namespace {

inline constexpr std::ptrdiff_t kLaneBytes = kPanelLanes<VecF32> * kWord;

// Vectors of lanes [first, last), whole pairs.
struct VectorRange {
  int first, last;
  bool has(int j) const { return j >= first && j < last; }
};
inline constexpr VectorRange kAllVectors{0, VecF32::kPanelVecs};

// Those of which some row sees some of 32 keys, from `key` of the chunk on, by its position.
inline VectorRange vectors_that_see(const Panel<float>& panel, std::int64_t key) {
  constexpr int kLanes = VecF32::kLanes;
  VectorRange range = kAllVectors;
  while (range.first < range.last && static_cast<std::int64_t>(panel.limits[(range.first + 1) * kLanes - 1]) < key) ++range.first;
  while (range.first < range.last && static_cast<std::int64_t>(panel.starts[(range.last - 1) * kLanes]) >= key + kDepthPerStep) --range.last;
  return {range.first / 2 * 2, (range.last + 1) / 2 * 2};
}

// Keys of a step whose weights and score gradients are to be made: 32 from `key` of the chunk on, for the vectors of the
// range. Rows `at` on of gradients.weights and .products hold what they are made of.
struct KeyStep {
  const BackwardTask* task;
  std::int64_t key, at;
  VectorRange range;
};

// Of the step, keys i and i + 16 and vectors j and j + 1: scores and products with gradients -> parts of weights and score
// gradients. Two vectors of lanes are neighbours along the depth of the products over rows, keys i and i + 16 along that of
// the product over keys. kShaped: they are weights and score gradients already. kMasked: some row does not see some key.
template <bool kShaped, bool kMasked>
[[gnu::noinline]] void weigh_keys(const KeyStep& step, int i, int j) {
  using S = VecF32;
  using Vec = S::Vec;
  constexpr std::int64_t kLanes = kPanelLanes<S>;
  const auto& w = part_backward_of(*step.task);
  const auto& gradients = w.gradients[0];
  const float* from = kShaped && step.task->forward.options.dropout.drops ? gradients.dropped : gradients.weights;
  const Vec scale2 = S::set1(w.scale.scale2);
  const std::int64_t kept = step.key % kKeysKept / kDepthPerStep;
  VecParts weights[2], scores[2][2];  // of vectors; of keys, vectors
#pragma GCC unroll 2
  for (int m = 0; m < 2; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
      const int lane = (j + n) * S::kLanes;
      const std::int64_t row = i + 16 * m, number = (step.at + row) * kLanes + lane;
      Vec weight = S::load(from + number), score = S::load(gradients.products + number);
      if constexpr (!kShaped) {
        weight = weight_of<S>(weight, S::load(gradients.reference + lane), S::load(gradients.correction + lane), scale2);
        if constexpr (kMasked) weight = S::select(hides<S>(w.panels[0], nullptr, lane, step.key + row), S::zero(), weight);
        score = score_gradient<S>(weight, score, S::load(gradients.delta + lane));
      } else {  // rows that saw nothing, and those beyond the last, may hold NaN
        const auto none = S::greater(S::load(gradients.reference + lane), S::set1(-kLowest<float>));
        weight = S::select(none, S::zero(), weight);
        score = S::select(none, S::zero(), score);
      }
      weights[n] = split_parts(weight);
      scores[m][n] = split_parts(score);
    }
    const std::ptrdiff_t to = ((2 * kept + m) * kRowSteps + j / 2) * kTileBytes3 + i * 64;
    store_joined(weights[0], weights[1], w.weight_tiles + to);
    store_joined(scores[m][0], scores[m][1], w.score_tiles + to);
  }
#pragma GCC unroll 2
  for (int n = 0; n < 2; ++n) {
    store_joined(scores[0][n], scores[1][n], w.score_steps + (kept * S::kPanelVecs + j + n) * kTileBytes3 + i * 64);
  }
}

// Work beside the products of tiles, which keep one unit of the core busy and leave the others free: lines to be read soon,
// and the weights of the next step of keys.
class Beside {
 public:
  explicit Beside(const BackwardTask& task) : fetch_(task.ahead, task.num_ahead) {}

  void begin(void (*weigh)(const KeyStep& step, int i, int j), const KeyStep& step) {
    weigh_ = weigh;
    step_ = step;
    at_ = 0;
    end_ = (step.range.last - step.range.first) / 2 * 16;
  }
  // Called after four products of tiles.
  [[gnu::always_inline]] void next() {
    fetch_.line();
    fetch_.line();
    if (++groups_ % kGroupsPerTurn == 0 && at_ < end_) turn();
  }
  void finish() {
    while (at_ < end_) turn();
  }

 private:
  static constexpr unsigned kGroupsPerTurn = 2;  // so that the turns of a step are over before those of the step before end
  void turn() {
    weigh_(step_, at_ % 16, step_.range.first + at_ / 16 * 2);
    ++at_;
  }
  FetchList fetch_;
  void (*weigh_)(const KeyStep& step, int i, int j) = nullptr;
  KeyStep step_{};
  int at_ = 0, end_ = 0;
  unsigned groups_ = 0;
};

// sums (kRows * 16, width) <- or += left . right, two tiles of columns at a time.
template <int kRows, bool kAdd>
void multiply_columns(PartTiles left, PartTiles right, std::int64_t steps, std::int64_t width, float* sums, std::ptrdiff_t row_bytes,
                      Beside& beside) {
  std::int64_t column = 0;
  for (; column + 32 <= width; column += 32, right.tiles += 2 * right.beside) {
    multiply_parts<kRows, 2, kAdd>(left, right, steps, sums + column, row_bytes, beside);
  }
  if (column < width) multiply_parts<kRows, 1, kAdd>(left, right, steps, sums + column, row_bytes, beside);
}

// Scores and products with gradients of 32 keys from `key` of the chunk on -> rows `at` on of gradients.weights, .products.
inline void multiply_keys(const BackwardTask& task, std::int64_t key, std::int64_t at, VectorRange range, Beside& beside) {
  const auto& w = part_backward_of(task);
  const auto& gradients = w.gradients[0];
  const auto multiply = [&](const char* left, const char* right, std::int64_t steps, float* out) {
    multiply_columns<2, false>({left + key / 16 * steps * kTileBytes3, steps * kTileBytes3, kTileBytes3},
                               {right + range.first * kTileBytes3, kTileBytes3, VecF32::kPanelVecs * kTileBytes3}, steps,
                               (range.last - range.first) * 16, out + at * kPanelLanes<VecF32> + range.first * 16, kLaneBytes, beside);
  };
  multiply(w.key_tiles, w.query_tiles, w.head_steps, gradients.weights);
  multiply(w.value_tiles, w.grad_tiles, w.value_steps, gradients.products);
}

// Adds what the rows give to the sums of 32 keys from `key` of the chunk on, or begins them.
inline void add_to_key_sums(const BackwardTask& task, std::int64_t key, VectorRange range, Beside& beside) {
  if (range.first == range.last) return;
  auto& w = part_backward_of(task);
  const std::int64_t tiles = key % kKeysKept / 16 * kRowSteps + range.first / 2, steps = (range.last - range.first) / 2;
  const bool first = !w.started[key / kDepthPerStep];
  w.started[key / kDepthPerStep] = true;
  const auto add = [&](const char* left, const char* right, std::int64_t width, float* sums) {
    const std::ptrdiff_t step = width / 16 * kTileBytes3;
    const PartTiles factor{left + tiles * kTileBytes3, kRowSteps * kTileBytes3, kTileBytes3};
    const PartTiles rows{right + range.first / 2 * step, kTileBytes3, step};
    (first ? multiply_columns<2, false> : multiply_columns<2, true>)(factor, rows, steps, width, sums + key * width, width * kWord, beside);
  };
  add(w.weight_tiles, w.grad_steps, w.value_width, w.value_sums);
  add(w.score_tiles, w.query_steps, w.head_width, w.key_sums);
}

// Adds what keys [from, to) of the chunk, of one unit, give to the sums (head_dim, lanes) of vectors j and j + 1.
inline void add_to_query_sums(const BackwardTask& task, std::int64_t from, std::int64_t to, int j, Beside& beside) {
  const auto& w = part_backward_of(task);
  const std::ptrdiff_t step = w.head_width / 16 * kTileBytes3;
  const std::int64_t steps = (to - from) / kDepthPerStep;
  const PartTiles right{w.score_steps + (from % kKeysKept / kDepthPerStep * VecF32::kPanelVecs + j) * kTileBytes3, kTileBytes3,
                        VecF32::kPanelVecs * kTileBytes3};
  PartTiles left{w.turned_keys + from / kDepthPerStep * step, kTileBytes3, step};
  float* sums = static_cast<float*>(task.query_sums) + j * VecF32::kLanes;
  std::int64_t d = 0;
  for (; d + 32 <= w.head_width; d += 32, left.tiles += 2 * kTileBytes3) {
    multiply_parts<2, 2, true>(left, right, steps, sums + d * kPanelLanes<VecF32>, kLaneBytes, beside);
  }
  if (d < w.head_width) multiply_parts<1, 2, true>(left, right, steps, sums + d * kPanelLanes<VecF32>, kLaneBytes, beside);
}

}  // namespace
}  // namespace headway
