// Online softmax, one lane per query row: weight = 2^((product - reference) * scale2), where product = q.k and
// scale2 = scale * log2(e), not negative (the sign of the scale is in the packed queries, see SplitScale).
//
// The reference is a product, not a score: the difference of products near each other is exact however large they are,
// the largest one gets weight 1 exactly (unless the reference went ahead of it), and equal keys get equal weights.
//
// The reference of a lane starts at 0 with bound -inf ("fresh": no key seen). Keys are judged in groups of
// kKeysPerGroup on the absolute grid; a lane whose largest product in a group passes its bound moves its reference
// there, alone: no lane's bits depend on its neighbours. Then the bound lies 2^kRaiseBeyond in weight above it, so that
// the reference moves seldom. Where scores are known to rise with the keys (ALiBi), or may do so (masks), it moves
// further, by up to 2^kMostAhead in weight. Lanes that see nothing stay fresh, with sum 0.
// NaN: a comparison with NaN never raises; the NaN goes on through exp2 into the sum and the context.
#pragma once

#include <cstdint>

#include "vec_math.hpp"

namespace headway {
namespace {

inline constexpr int kKeysPerGroup = 4;
inline constexpr int kRaiseBeyond = 16;
inline constexpr int kMostAhead = 48;

// The scale in two factors: `queries`, its sign, multiplies the packed queries, `rest`, not negative, their products.
// A power of two moves from the one to the other where the scale itself nears an end of the range; a scale of 0 gives
// queries of 0.
template <class Real>
struct SplitScale {
  double queries, rest;

  explicit SplitScale(double scale) : queries(scale < 0 ? -1 : 1), rest(scale < 0 ? -scale : scale) {
    constexpr double kFar = sizeof(Real) == 4 ? 0x1p100 : 0x1p1000;
    constexpr double kLargest = sizeof(Real) == 4 ? 0x1p126 : 0x1p1022;  // rest * log2(e) stays in the range
    constexpr double kSmallest = sizeof(Real) == 4 ? 0x1p-126 : 0x1p-1022;
    if (rest == 0) {
      queries = 0;
      rest = 1;
    } else if (rest > kFar) {
      queries *= 0x1p100;
      rest *= 0x1p-100;
    } else if (rest < 1 / kFar) {
      queries *= 0x1p-100;
      rest *= 0x1p100;
    }
    rest = rest > kLargest ? kLargest : rest < kSmallest ? kSmallest : rest;
  }
};

// How products become weights, the same for all lanes.
template <class Real>
struct SoftmaxScale {
  Real scale2;    // the scale's rest, times log2(e)
  Real headroom;  // from the reference to the bound

  explicit SoftmaxScale(const SplitScale<Real>& scale)
      : scale2(static_cast<Real>(scale.rest * 1.4426950408889634074)),
        headroom(static_cast<Real>(kRaiseBeyond) / scale2) {}
  explicit SoftmaxScale(double scale) : SoftmaxScale(SplitScale<Real>(scale)) {}
};

// The running softmax of one panel: the context and four numbers per lane.
template <class Real>
struct Softmax {
  Real* context;    // (value_dim, lanes): sum of weight * v, not yet divided; unset until started
  Real* reference;  // (lanes)
  Real* sum;        // (lanes): sum of weights
  Real* divisor;    // (lanes): that of the weights as the context has them: `sum` itself, unless they are rounded
  Real* bound;      // (lanes): -inf while the lane is fresh
  bool started;

  void reset(int lanes) {
    started = false;
    for (int i = 0; i < lanes; ++i) {
      reference[i] = 0;
      sum[i] = divisor[i] = 0;
      bound[i] = -static_cast<Real>(__builtin_inf());
    }
  }
};

template <class Real>
inline constexpr Real kLeastNormal = sizeof(Real) == 4 ? static_cast<Real>(0x1p-126) : static_cast<Real>(0x1p-1022);

// Weights below 2^kLeastWeight are 0. Shaped scores may lie far below the largest one, many of them, and their weights
// times values must not come near the subnormal numbers, with which the CPU is slow.
template <class Real, bool kShaped>
inline constexpr Real kLeastExponent = sizeof(Real) == 4 ? (kShaped ? -112 : -126) : (kShaped ? -1008 : -1022);
template <class Real, bool kShaped>  // 2 to that power
inline constexpr Real kLeastWeight = static_cast<Real>(sizeof(Real) == 4 ? (kShaped ? 0x1p-112 : 0x1p-126)
                                                                         : (kShaped ? 0x1p-1008 : 0x1p-1022));

template <class S>
inline typename S::Mask is_fresh(typename S::Vec bound) {
  return S::not_less(S::set1(-static_cast<typename S::Real>(__builtin_inf())), bound);
}

// A rise of scores -> how far a reference goes ahead of it: at most kMostAhead, and whole powers of two in weight, so that
// a weight that would have been 1 has few bits.
template <class S>
inline typename S::Vec whole_powers(typename S::Vec rise) {
  using Real = typename S::Real;
  const auto most = S::set1(static_cast<Real>(kMostAhead));
  const auto powers = S::mul(rise, S::set1(static_cast<Real>(1.4426950408889634074)));
  const auto capped = S::select(S::greater(powers, most), most, powers);
  return S::mul(S::sub(capped, S::fraction(capped)), S::set1(static_cast<Real>(0.69314718055994530942)));
}

// The slow path: moves the reference of the lanes (of kVecs vectors from `lane` on) whose largest product passed the
// bound, and rescales what they have summed: the sum, the context, and the `rows` rows of weights of this block.
// What is left of a weight below `least` is 0, as in exp2. With rises (kVecs pairs of vectors, see Rise) the second of a
// pair is added to the product before it is compared, the first gives how far beyond it the reference goes; or null.
template <class S, int kVecs>
[[gnu::noinline]] void raise_reference(const Softmax<typename S::Real>& state,
                                       const SoftmaxScale<typename S::Real>& scale, const typename S::Real* largest,
                                       int lane, typename S::Real* weights, std::int64_t rows, std::int64_t value_dim,
                                       int lane_stride, typename S::Real least, const typename S::Real* rises = nullptr) {
  // What would become smaller than `least` (a context: than a normal number) becomes 0 without being multiplied: the CPU
  // is slow with subnormal numbers.
  const auto times = [&](typename S::Vec x, typename S::Vec factor, typename S::Vec least_times) {
    if constexpr (requires { S::mul_unless_below(least_times, x, factor); }) {
      return S::mul_unless_below(least_times, x, factor);
    } else {
      const auto size = S::max(x, S::sub(S::zero(), x));
      return S::mul(S::select(S::greater(least_times, size), S::zero(), x), factor);
    }
  };
  for (int j = 0; j < kVecs; ++j) {
    const int at = lane + j * S::kLanes;
    const auto product = S::load(largest + j * S::kLanes);
    const auto bound = S::load(state.bound + at);
    const auto reference = S::load(state.reference + at);
    const auto* rise = rises + 2 * j * S::kLanes;
    const auto raised = S::greater(rises != nullptr ? S::add(product, S::load(rise + S::kLanes)) : product, bound);
    if (!S::any(raised)) continue;
    auto further = rises != nullptr ? S::add(product, S::load(rise)) : product;
    if (rises == nullptr && least > kLeastNormal<typename S::Real>) {
      // Shaped scores that rose so far may go on: as much further as they rose, at most kMostAhead in weight.
      const auto ahead = whole_powers<S>(S::sub(product, reference));
      further = S::select(is_fresh<S>(bound), product, S::add(product, ahead));
    }
    const auto moved = S::select(raised, further, reference);
    const auto factor =
        S::select(is_fresh<S>(bound), S::set1(1), exp2<S>(S::mul(S::sub(reference, moved), S::set1(scale.scale2))));
    S::store(state.reference + at, moved);
    S::store(state.bound + at, S::select(raised, S::add(moved, S::set1(scale.headroom)), bound));
    S::store(state.sum + at, S::mul(S::load(state.sum + at), factor));
    if (state.divisor != state.sum) S::store(state.divisor + at, S::mul(S::load(state.divisor + at), factor));
    const auto least_context = S::div(S::set1(kLeastNormal<typename S::Real>), factor);
    for (std::int64_t d = 0; d < (state.started ? value_dim : 0); ++d) {
      auto* p = state.context + d * lane_stride + at;
      S::store(p, times(S::load(p), factor, least_context));
    }
    const auto least_weight = S::div(S::set1(least), factor);
    for (std::int64_t row = 0; row < rows; ++row) {
      auto* p = weights + row * lane_stride + at;
      S::store(p, times(S::load(p), factor, least_weight));
    }
  }
}

// Lanes that have seen no key, or only keys of weight 0, have a sum below this. The sum of any other lane is at least
// its largest weight, which is 1 or, with a reference that went ahead, at least 2^-kMostAhead; or it is NaN.
inline constexpr float kEmptySum = 0x1p-64f;
template <class S>
inline typename S::Mask is_empty(typename S::Vec sum) {
  return S::greater(S::set1(kEmptySum), sum);
}

// total <- total joined with part, the keys of part being later ones. Lanes that are empty on one side take the other
// side's bits as they are.
template <class S>
void join(Softmax<typename S::Real>& total, const Softmax<typename S::Real>& part,
          const SoftmaxScale<typename S::Real>& scale, std::int64_t value_dim, int lanes) {
  using Vec = typename S::Vec;
  if (!part.started) return;
  for (int at = 0; at < lanes; at += S::kLanes) {
    const Vec total_reference = S::load(total.reference + at), part_reference = S::load(part.reference + at);
    const Vec total_sum = S::load(total.sum + at), part_sum = S::load(part.sum + at);
    const auto keep = is_empty<S>(part_sum);   // nothing to add
    const auto take = is_empty<S>(total_sum);  // nothing before
    const auto higher = S::greater(part_reference, total_reference);
    const Vec reference = S::select(higher, part_reference, total_reference);
    const Vec a = exp2<S>(S::mul(S::sub(total_reference, reference), S::set1(scale.scale2)));
    const Vec b = exp2<S>(S::mul(S::sub(part_reference, reference), S::set1(scale.scale2)));
    const auto blend = [&](Vec kept, Vec taken, Vec joined) {
      return S::select(keep, kept, S::select(take, taken, joined));
    };
    S::store(total.reference + at, blend(total_reference, part_reference, reference));
    S::store(total.bound + at, blend(S::load(total.bound + at), S::set1(0), S::set1(0)));  // no longer fresh
    S::store(total.sum + at, blend(total_sum, part_sum, S::fma(part_sum, b, S::mul(total_sum, a))));
    if (total.divisor != total.sum) {
      const Vec before = S::load(total.divisor + at), added = S::load(part.divisor + at);
      S::store(total.divisor + at, blend(before, added, S::fma(added, b, S::mul(before, a))));
    }
    for (std::int64_t d = 0; d < value_dim; ++d) {
      const std::int64_t p = d * lanes + at;
      const Vec before = total.started ? S::load(total.context + p) : S::zero();
      const Vec added = S::load(part.context + p);
      // The context of an empty side is 0, or NaN from a value of weight 0: subtracting it keeps bits, and NaN.
      S::store(total.context + p,
               blend(S::sub(before, added), S::sub(added, before), S::fma(added, b, S::mul(before, a))));
    }
  }
  total.started = true;
}

}  // namespace
}  // namespace headway
