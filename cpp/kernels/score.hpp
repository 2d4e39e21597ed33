// From products to scores: what the options of a call do to some keys and one vector of lanes, in memory. In this order:
// scale, soft cap, ALiBi, the numbers of a mask; then -inf where a key is hidden. One pass for each, over numbers that
// lie in the first-level cache: a task without an option does not pay for it.
#pragma once

#include "panel.hpp"

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

// Products -> what the softmax works on (stage kWeights), or scores as far as `stage` says, for the vector from `lane` on.
template <class S>
void make_scores(const AttentionTask& task, const Panel<typename S::Real>& panel, int lane,
                 const ScoreTile<typename S::Real>& tile, ScoreStage stage) {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  const auto& w = workspace_of<S>(task);
  const int lanes = panel.vecs * S::kLanes;
  const auto for_keys = [&](const auto& change) __attribute__((always_inline)) {
    Real* p = tile.scores + lane;
#pragma GCC unroll 4
    for (std::int64_t key = 0; key < tile.count; ++key, p += lanes) S::store(p, change(S::load(p), key));
  };

  if (w.shaped || stage != ScoreStage::kWeights) {
    const double cap = stage == ScoreStage::kScaled ? 0 : task.options.softcap;
    constexpr double kMost = sizeof(Real) == 4 ? 0x1p120 : 0x1p1000;  // scores are far below such a cap
    if (cap > 0 && cap < kMost) {
      const double most = sizeof(Real) == 4 ? 0x1p127 : 0x1p1023;
      const Vec inner = S::set1(static_cast<Real>(w.split.rest / cap < most ? w.split.rest / cap : most));
      const Vec outer = S::set1(static_cast<Real>(cap));
      for_keys([&](Vec x, std::int64_t) { return S::mul(tanh<S>(S::mul(x, inner)), outer); });
    } else {
      const Vec scale = S::set1(static_cast<Real>(w.split.rest));
      for_keys([&](Vec x, std::int64_t) { return S::mul(x, scale); });
    }
  }
  if (stage == ScoreStage::kScaled || stage == ScoreStage::kCapped) return;

  if (task.options.slopes != nullptr) {
    const Vec slope = S::sub(S::zero(), S::load(panel.slopes + lane)), position = S::load(panel.positions + lane);
    for_keys([&](Vec x, std::int64_t key) {
      const Vec away = S::sub(position, S::set1(static_cast<Real>(tile.offset + key)));
      return S::fma(slope, S::max(away, S::sub(S::zero(), away)), x);
    });
    if (stage == ScoreStage::kMasked) {
      alignas(64) Real shift[S::kLanes] = {};
      RowCursor row(panel.first_row + lane, task.group);
      for (int i = 0; i < S::kLanes && lane + i < panel.num_rows; ++i, row.next()) {
        shift[i] = static_cast<Real>(alibi_shift(task, row.token, row.head));
      }
      for_keys([&](Vec x, std::int64_t) { return S::add(x, S::load(shift)); });
    }
  }
  if (tile.bias != nullptr) {
    for_keys([&](Vec x, std::int64_t key) { return S::add(x, S::load(tile.bias + key * lanes + lane)); });
  }
  const Vec hidden = S::set1(-static_cast<Real>(__builtin_inf()));
  if (tile.bias != nullptr) {
    for_keys([&](Vec x, std::int64_t key) {
      return S::select(hides<S>(panel, tile.bias + key * lanes + lane, lane, tile.offset + key), hidden, x);
    });
  } else if (!sees_all<S>(panel, lane, tile.offset, tile.count)) {
    for_keys([&](Vec x, std::int64_t key) {
      return S::select(hides<S>(panel, nullptr, lane, tile.offset + key), hidden, x);
    });
  }
}

}  // namespace
}  // namespace headway
