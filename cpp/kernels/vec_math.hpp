// Elementary functions over the vector wrapper.
#pragma once

namespace headway {
namespace {

// 2^f = 1 + f * (c0 + f * (c1 + ...)) on 0 <= f < 1: minimax in the relative error, exactly 1 at f = 0.
template <class Real> struct Exp2Coefficients;

template <> struct Exp2Coefficients<float> {  // relative error of the polynomial 8.3e-8; of the result at most 3.5 ulp
  static constexpr float kSeries[] = {0.69315131180752296f, 0.24016445013606755f, 0.055799913145968067f,
                                      0.0090170302844367490f, 0.0018671300819070082f};
  static constexpr float kSmallest = -126.0f;
};

template <> struct Exp2Coefficients<double> {  // 3.3e-18; at most 2 ulp. Held by cpp/tests/function_errors.cpp
  static constexpr double kSeries[] = {0.69314718055994592839,    0.24022650695906330315,    0.055504108665602238723,
                                       0.0096181290995508956128,  0.0013333558629562675936,  0.00015403512309733948746,
                                       1.525317505379524616e-5,   1.3208367308220049348e-6,  1.025321230405209001e-7,
                                       6.5595298355172712178e-9,  6.2634652734225902742e-10};
  static constexpr double kSmallest = -1022.0;
};

// 2^x for x <= 100. Below 2^least the result is 0, hence exactly 0 for x = -inf; integers give exact powers; NaN stays
// NaN. least is at least kSmallest, the smallest normal number: subnormal weights would only slow the products down.
template <class S, class C = Exp2Coefficients<typename S::Real>>
inline typename S::Vec exp2(typename S::Vec x, typename S::Real least = C::kSmallest) {
  constexpr int kTerms = sizeof(C::kSeries) / sizeof(C::kSeries[0]);
  const auto f = S::fraction(x);
  auto p = S::set1(C::kSeries[kTerms - 1]);
#pragma GCC unroll 16
  for (int i = kTerms - 2; i >= 0; --i) p = S::fma(p, f, S::set1(C::kSeries[i]));
  p = S::fma(p, f, S::set1(1));
  return S::scale_pow2(S::not_less(x, S::set1(least)), p, x);
}

// (2^f - 1) / f = c0 + f * (c1 + ...) on -1/2 <= f <= 1/2: minimax in the relative error.
template <class Real> struct Exp2Minus1Coefficients;

template <> struct Exp2Minus1Coefficients<float> {  // relative error of the polynomial 1.4e-8; of tanh at most 4 ulp
  static constexpr float kSeries[] = {0.693147182464599609f,   0.240226492285728455f,  0.0555036701261997223f,
                                      0.00961831584572792053f, 0.001338755595497787f, 0.00015379925025627017f};
  static constexpr float kTanhIsOne = 10.0f;
};

template <> struct Exp2Minus1Coefficients<double> {  // 3.4e-17; at most 4.5 ulp
  static constexpr double kSeries[] = {0.69314718055994528623,    0.24022650695910069407,   0.055504108664823199881,
                                       0.0096181291076200929602,  0.0013333558146153908115, 0.00015403530424429220632,
                                       1.5252733992301490524e-5,  1.3215451241328712717e-6, 1.017802324158818315e-7,
                                       7.0711184241222548649e-9,  4.457577427375269739e-10};
  static constexpr double kTanhIsOne = 20.0;
};

// a / b where b and 1 / b are normal numbers: within 1 ulp, by the wrapper's own way where it has one.
template <class S>
[[gnu::always_inline]] inline typename S::Vec quotient(typename S::Vec a, typename S::Vec b) {
  if constexpr (requires { S::quotient(a, b); }) return S::quotient(a, b);
  else return S::div(a, b);
}

// tanh x = m / (m + 2) with m = e^(2x) - 1, made without cancellation: 2^(n + f) - 1 = 2^n (2^f - 1) + (2^n - 1) with the
// whole number n nearest to 2x log2(e). NaN stays NaN.
template <class S>
inline typename S::Vec tanh(typename S::Vec x) {
  using Real = typename S::Real;
  using C = Exp2Minus1Coefficients<Real>;
  constexpr int kTerms = sizeof(C::kSeries) / sizeof(C::kSeries[0]);
  const auto limit = S::set1(C::kTanhIsOne);
  const auto nearer = S::max(S::sub(S::zero(), limit), S::min(limit, x));
  const auto t = S::mul(nearer, S::set1(static_cast<Real>(2 * 1.4426950408889634074)));
  const auto f = S::rest(t);
  auto p = S::set1(C::kSeries[kTerms - 1]);
#pragma GCC unroll 16
  for (int i = kTerms - 2; i >= 0; --i) p = S::fma(p, f, S::set1(C::kSeries[i]));
  const auto always = S::not_less(limit, limit);
  const auto power = S::scale_pow2(always, S::set1(1), S::sub(t, f));
  const auto m = S::fma(power, S::mul(p, f), S::sub(power, S::set1(1)));
  return quotient<S>(m, S::add(m, S::set1(2)));
}

}  // namespace
}  // namespace headway
