// Online softmax, one lane per query row, in base 2: x = scale * log2(e) * q.k - reference, weight = 2^x.
//
// The reference of a lane starts at 0 with threshold -inf ("fresh": no key seen). Keys are judged in groups of
// kKeysPerGroup on the absolute grid; a lane whose largest x in a group passes its threshold moves its reference
// there, alone: no lane's bits depend on its neighbours. After that the threshold is kRaiseBeyond, so that the
// reference moves seldom and weights stay below 2^kRaiseBeyond. Lanes that see nothing stay fresh, with sum 0.
// NaN: a comparison with NaN never raises; the NaN goes on through exp2 into the sum and the context.
#pragma once

#include "vec_math.hpp"

namespace headway {
namespace {

inline constexpr int kKeysPerGroup = 4;
inline constexpr int kRaiseBeyond = 16;

// The running softmax of one panel: the context and three numbers per lane.
template <class Real>
struct Softmax {
  Real* context;    // (value_dim, lanes): sum of weight * v, not yet divided; unset until started
  Real* reference;  // (lanes)
  Real* sum;        // (lanes): sum of weights
  Real* threshold;  // (lanes): -inf while the lane is fresh
  bool started;

  void reset(int lanes) {
    started = false;
    for (int i = 0; i < lanes; ++i) {
      reference[i] = 0;
      sum[i] = 0;
      threshold[i] = -static_cast<Real>(__builtin_inf());
    }
  }
};

template <class S>
inline typename S::Mask is_fresh(typename S::Vec threshold) {
  return S::not_less(S::set1(-static_cast<typename S::Real>(__builtin_inf())), threshold);
}

// The slow path: moves the reference of the lanes (of kVecs vectors from `lane` on) whose largest x `top` passed the
// threshold, and rescales what they have summed: the sum, the context, and the `rows` rows of weights of this block.
template <class S, int kVecs>
[[gnu::noinline]] void raise_reference(const Softmax<typename S::Real>& state, const typename S::Real* top, int lane,
                                       typename S::Real* weights, std::int64_t rows, std::int64_t value_dim,
                                       int lane_stride) {
  for (int j = 0; j < kVecs; ++j) {
    const int at = lane + j * S::kLanes;
    const auto highest = S::load(top + j * S::kLanes);
    const auto threshold = S::load(state.threshold + at);
    const auto reference = S::load(state.reference + at);
    const auto raised = S::greater(highest, threshold);
    if (!S::any(raised)) continue;
    const auto moved = S::select(raised, S::add(reference, highest), reference);
    const auto factor = S::select(is_fresh<S>(threshold), S::set1(1), exp2<S>(S::sub(reference, moved)));
    S::store(state.reference + at, moved);
    S::store(state.threshold + at, S::select(raised, S::set1(kRaiseBeyond), threshold));
    S::store(state.sum + at, S::mul(S::load(state.sum + at), factor));
    if (state.started) {
      for (std::int64_t d = 0; d < value_dim; ++d) {
        auto* p = state.context + d * lane_stride + at;
        S::store(p, S::mul(S::load(p), factor));
      }
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      auto* p = weights + row * lane_stride + at;
      S::store(p, S::mul(S::load(p), factor));
    }
  }
}

// total <- total joined with part, the keys of part being later ones. Lanes that are fresh on one side take the other
// side's bits as they are.
template <class S>
void join(Softmax<typename S::Real>& total, const Softmax<typename S::Real>& part, std::int64_t value_dim, int lanes) {
  using Vec = typename S::Vec;
  if (!part.started) return;
  for (int at = 0; at < lanes; at += S::kLanes) {
    const Vec total_threshold = S::load(total.threshold + at), part_threshold = S::load(part.threshold + at);
    const Vec total_reference = S::load(total.reference + at), part_reference = S::load(part.reference + at);
    const auto keep = is_fresh<S>(part_threshold);    // nothing to add
    const auto take = is_fresh<S>(total_threshold);   // nothing before
    const Vec reference = S::max(total_reference, part_reference);
    const Vec a = exp2<S>(S::sub(total_reference, reference));
    const Vec b = exp2<S>(S::sub(part_reference, reference));
    const auto blend = [&](Vec before, Vec added) {
      const Vec joined = S::fma(added, b, S::mul(before, a));
      return S::select(keep, before, S::select(take, added, joined));
    };
    S::store(total.reference + at, S::select(keep, total_reference, S::select(take, part_reference, reference)));
    S::store(total.threshold + at, S::select(keep, total_threshold, part_threshold));
    S::store(total.sum + at, blend(S::load(total.sum + at), S::load(part.sum + at)));
    for (std::int64_t d = 0; d < value_dim; ++d) {
      const std::int64_t p = d * lanes + at;
      const Vec before = total.started ? S::load(total.context + p) : S::zero();
      S::store(total.context + p, blend(before, S::load(part.context + p)));
    }
  }
  total.started = true;
}

}  // namespace
}  // namespace headway
