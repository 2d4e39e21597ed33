// From products to scores: what the options of a call do to them. In this order: scale, soft cap, ALiBi, the numbers of a
// mask; then -inf where a key is hidden. A task without an option does not pay for it.
#pragma once

#include "positions.hpp"

namespace headway {
namespace {

// Products or scores of some keys, (keys, lanes), with the mask's part for the same keys, or null.
template <class Real>
struct ScoreTile {
  Real* scores;
  const Real* bias;
  std::int64_t offset;  // of the first key from the span's first
  std::int64_t count;
};

// The lanes of the vector from `lane` on that do not see a key, `key` from the span's first. bias: what the mask has for
// the key and these lanes, or null. NaN does not hide.
template <class S>
[[gnu::always_inline]] inline typename S::Mask hides(const Panel<typename S::Real>& panel, const typename S::Real* bias,
                                                     int lane, std::int64_t key) {
  using Real = typename S::Real;
  const auto position = S::set1(static_cast<Real>(key));
  const auto outside = S::either(S::greater(position, S::load(panel.limits + lane)),
                                 S::greater(S::load(panel.starts + lane), position));
  if (bias == nullptr) return outside;
  return S::either(outside, S::greater(S::set1(kLowest<Real>), S::load(bias)));
}

// Whether every lane of the vector sees, by its position, every key of the tile.
template <class S>
inline bool sees_all(const Panel<typename S::Real>& panel, int lane, std::int64_t offset, std::int64_t count) {
  return static_cast<std::int64_t>(panel.limits[lane]) >= offset + count - 1 &&
         static_cast<std::int64_t>(panel.starts[lane + S::kLanes - 1]) <= offset;
}

// What becomes of the products of a task, beside masks and hiding, as far as `stage` says.
template <class Real>
struct Shape {
  bool scaled, capped, alibi;
  Real scale;         // score = scale * product
  Real inner, outer;  // capped: score = outer * tanh(inner * product)

  Shape(const AttentionTask& task, const Workspace<Real>& w, ScoreStage stage) {
    constexpr double kMost = sizeof(Real) == 4 ? 0x1p127 : 0x1p1023;
    constexpr double kFarCap = sizeof(Real) == 4 ? 0x1p120 : 0x1p1000;  // all scores are far below such a cap
    const double cap = task.options.softcap, rest = w.split.rest;
    scaled = w.shaped || stage != ScoreStage::kWeights;
    capped = scaled && stage != ScoreStage::kScaled && cap > 0 && cap < kFarCap;
    alibi = task.options.slopes != nullptr && (stage == ScoreStage::kMasked || stage == ScoreStage::kWeights);
    scale = static_cast<Real>(rest);
    inner = static_cast<Real>(capped ? (rest / cap < kMost ? rest / cap : kMost) : 0);
    outer = static_cast<Real>(capped ? cap : 0);
  }
};

// What ALiBi adds to a score, -slope * |position - key|, key from the span's first. kBefore: only keys up to the position
// count.
template <class S, bool kBefore = false>
[[gnu::always_inline]] inline typename S::Vec alibi_of(typename S::Vec slope, typename S::Vec position, std::int64_t key) {
  const auto away = S::sub(position, S::set1(static_cast<typename S::Real>(key)));
  return S::mul(S::sub(S::zero(), slope), kBefore ? away : S::max(away, S::sub(S::zero(), away)));
}

// scale * x + bias; -inf where that is -inf, whatever x is.
template <class S>
[[gnu::always_inline]] inline typename S::Vec add_bias(typename S::Vec x, typename S::Vec scale, typename S::Vec bias) {
  return S::select(S::greater(S::set1(kLowest<typename S::Real>), bias), bias, S::fma(x, scale, bias));
}

// (rows, vecs vectors), rows `stride` apart, capped in place.
template <class S>
[[gnu::noinline]] void cap_products(const Shape<typename S::Real>& shape, typename S::Real* products, std::int64_t rows,
                                    int vecs, std::int64_t stride) {
  const auto inner = S::set1(shape.inner), outer = S::set1(shape.outer);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (int j = 0; j < vecs; ++j) {
      auto* p = products + i * stride + j * S::kLanes;
      S::store(p, S::mul(tanh<S>(S::mul(S::load(p), inner)), outer));
    }
  }
}

// Products -> what the softmax works on (stage kWeights), or scores as far as `stage` says, in memory, for the vector
// from `lane` on.
template <class S>
void make_scores(const AttentionTask& task, const Panel<typename S::Real>& panel, int lane,
                 const ScoreTile<typename S::Real>& tile, ScoreStage stage) {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  const int lanes = panel.vecs * S::kLanes;
  const auto for_keys = [&](const auto& change) __attribute__((always_inline)) {
    Real* p = tile.scores + lane;
#pragma GCC unroll 4
    for (std::int64_t key = 0; key < tile.count; ++key, p += lanes) S::store(p, change(S::load(p), key));
  };
  const Shape<Real> shape(task, workspace_of<S>(task), stage);
  if (shape.capped) {
    cap_products<S>(shape, tile.scores + lane, tile.count, 1, lanes);
  } else if (shape.scaled && !shape.alibi) {
    for_keys([&](Vec x, std::int64_t) { return S::mul(x, S::set1(shape.scale)); });
  }
  if (stage == ScoreStage::kScaled || stage == ScoreStage::kCapped) return;

  if (shape.alibi) {
    const Vec slope = S::load(panel.slopes + lane), position = S::load(panel.positions + lane);
    const Vec scale = S::set1(shape.capped ? 1 : shape.scale);
    for_keys([&](Vec x, std::int64_t key) { return S::fma(x, scale, alibi_of<S>(slope, position, tile.offset + key)); });
  }
  if (shape.alibi && stage == ScoreStage::kMasked) {
    alignas(64) Real shift[S::kLanes] = {};
    RowCursor row(panel.first_row + lane, task.group);
    for (int i = 0; i < S::kLanes && lane + i < panel.num_rows; ++i, row.next()) {
      shift[i] = static_cast<Real>(alibi_shift(task, row.token, row.head));
    }
    for_keys([&](Vec x, std::int64_t) { return S::add(x, S::load(shift)); });
  }
  if (tile.bias != nullptr) {
    for_keys([&](Vec x, std::int64_t key) { return add_bias<S>(x, S::set1(1), S::load(tile.bias + key * lanes + lane)); });
  }
  if (sees_all<S>(panel, lane, tile.offset, tile.count)) return;
  const Vec hidden = S::set1(-static_cast<Real>(__builtin_inf()));
  for_keys([&](Vec x, std::int64_t key) {
    return S::select(hides<S>(panel, nullptr, lane, tile.offset + key), hidden, x);
  });
}

// By ALiBi the scores of a row rise with the keys up to its own position. So that references need not follow them every
// few keys, and those of all lanes at other keys, they go ahead: to where the scores are expected at the next multiple of
// the lane's step, at most kMostAhead in weight; and at such a multiple (kKeysPerStep divides it) a lane's reference moves
// already if the scores up to the next one are expected to pass its bound.
template <class S>
struct Rise {
  typename S::Vec ahead;  // from the score of the key to the reference
  typename S::Vec eager;  // what to add to the score before it is compared with the bound
};

// For the vector of lanes from `lane` on; key from the span's first.
template <class S>
[[gnu::always_inline]] inline Rise<S> rise_at(const Panel<typename S::Real>& panel, int lane, std::int64_t key) {
  using Real = typename S::Real;
  const auto at = S::set1(static_cast<Real>(key)), step = S::load(panel.steps + lane);
  const auto inverse = S::load(panel.steps + panel.vecs * S::kLanes + lane);
  const auto passed = S::fraction(S::mul(at, inverse));  // exact, for steps are powers of two
  const auto left = S::mul(S::sub(S::set1(1), passed), step), away = S::sub(S::load(panel.positions + lane), at);
  const auto rise = S::mul(S::load(panel.slopes + lane), S::select(S::greater(left, away), away, left));
  const auto ahead = whole_powers<S>(S::max(rise, S::zero()));
  return {ahead, S::select(S::greater(passed, S::zero()), S::zero(), ahead)};
}

}  // namespace
}  // namespace headway
