// Online softmax, one lane per query row: weight = 2^((product - reference) * scale2), where product = q.k and
// scale2 = scale * log2(e), not negative (the sign of the scale is in the packed queries).
//
// The reference is a product, not a score: the difference of products near each other is exact however large they are,
// the largest one gets weight 1 exactly, and equal keys get equal weights.
//
// The reference of a lane starts at 0 with bound -inf ("fresh": no key seen). Keys are judged in groups of
// kKeysPerGroup on the absolute grid; a lane whose largest product in a group passes its bound moves its reference
// there, alone: no lane's bits depend on its neighbours. Then the bound lies 2^kRaiseBeyond in weight above it, so that
// the reference moves seldom. Lanes that see nothing stay fresh, with sum 0.
// NaN: a comparison with NaN never raises; the NaN goes on through exp2 into the sum and the context.
#pragma once

#include "vec_math.hpp"

namespace headway {
namespace {

inline constexpr int kKeysPerGroup = 4;
inline constexpr int kRaiseBeyond = 16;

// How products become weights, the same for all lanes.
template <class Real>
struct SoftmaxScale {
  Real scale2;    // |scale| * log2(e); log2(e) where the scale is 0 and the queries are packed as 0
  Real headroom;  // from the reference to the bound

  explicit SoftmaxScale(double scale)
      : scale2(static_cast<Real>((scale < 0 ? -scale : scale > 0 ? scale : 1.0) * 1.4426950408889634074)),
        headroom(static_cast<Real>(kRaiseBeyond) / scale2) {}
};

// The running softmax of one panel: the context and three numbers per lane.
template <class Real>
struct Softmax {
  Real* context;    // (value_dim, lanes): sum of weight * v, not yet divided; unset until started
  Real* reference;  // (lanes)
  Real* sum;        // (lanes): sum of weights
  Real* bound;      // (lanes): -inf while the lane is fresh
  bool started;

  void reset(int lanes) {
    started = false;
    for (int i = 0; i < lanes; ++i) {
      reference[i] = 0;
      sum[i] = 0;
      bound[i] = -static_cast<Real>(__builtin_inf());
    }
  }
};

template <class S>
inline typename S::Mask is_fresh(typename S::Vec bound) {
  return S::not_less(S::set1(-static_cast<typename S::Real>(__builtin_inf())), bound);
}

// The slow path: moves the reference of the lanes (of kVecs vectors from `lane` on) whose largest product passed the
// bound, and rescales what they have summed: the sum, the context, and the `rows` rows of weights of this block.
template <class S, int kVecs>
[[gnu::noinline]] void raise_reference(const Softmax<typename S::Real>& state,
                                       const SoftmaxScale<typename S::Real>& scale, const typename S::Real* largest,
                                       int lane, typename S::Real* weights, std::int64_t rows, std::int64_t value_dim,
                                       int lane_stride) {
  for (int j = 0; j < kVecs; ++j) {
    const int at = lane + j * S::kLanes;
    const auto product = S::load(largest + j * S::kLanes);
    const auto bound = S::load(state.bound + at);
    const auto reference = S::load(state.reference + at);
    const auto raised = S::greater(product, bound);
    if (!S::any(raised)) continue;
    const auto moved = S::select(raised, product, reference);
    const auto factor =
        S::select(is_fresh<S>(bound), S::set1(1), exp2<S>(S::mul(S::sub(reference, moved), S::set1(scale.scale2))));
    S::store(state.reference + at, moved);
    S::store(state.bound + at, S::select(raised, S::add(moved, S::set1(scale.headroom)), bound));
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
void join(Softmax<typename S::Real>& total, const Softmax<typename S::Real>& part,
          const SoftmaxScale<typename S::Real>& scale, std::int64_t value_dim, int lanes) {
  using Vec = typename S::Vec;
  if (!part.started) return;
  for (int at = 0; at < lanes; at += S::kLanes) {
    const Vec total_bound = S::load(total.bound + at), part_bound = S::load(part.bound + at);
    const Vec total_reference = S::load(total.reference + at), part_reference = S::load(part.reference + at);
    const auto keep = is_fresh<S>(part_bound);    // nothing to add
    const auto take = is_fresh<S>(total_bound);   // nothing before
    const auto higher = S::greater(part_reference, total_reference);
    const Vec reference = S::select(higher, part_reference, total_reference);
    const Vec a = exp2<S>(S::mul(S::sub(total_reference, reference), S::set1(scale.scale2)));
    const Vec b = exp2<S>(S::mul(S::sub(part_reference, reference), S::set1(scale.scale2)));
    const auto blend = [&](Vec before, Vec added) {
      const Vec joined = S::fma(added, b, S::mul(before, a));
      return S::select(keep, before, S::select(take, added, joined));
    };
    S::store(total.reference + at, S::select(keep, total_reference, S::select(take, part_reference, reference)));
    S::store(total.bound + at, S::select(keep, total_bound, S::set1(0)));  // no longer fresh
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
