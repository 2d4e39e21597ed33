// Elementary functions over the vector wrapper.
#pragma once

namespace headway {
namespace {

// 2^f = 1 + f * (c0 + f * (c1 + ...)) on 0 <= f < 1: minimax in the relative error, exactly 1 at f = 0.
template <class Real> struct Exp2Coefficients;

template <> struct Exp2Coefficients<float> {  // relative error of the polynomial 8.3e-8 (0.7 ulp)
  static constexpr float kSeries[] = {0.69315131180752296f, 0.24016445013606755f, 0.055799913145968067f,
                                      0.0090170302844367490f, 0.0018671300819070082f};
  static constexpr float kSmallest = -126.0f;
};

template <> struct Exp2Coefficients<double> {  // 3.3e-18
  static constexpr double kSeries[] = {0.69314718055994592839,    0.24022650695906330315,    0.055504108665602238723,
                                       0.0096181290995508956128,  0.0013333558629562675936,  0.00015403512309733948746,
                                       1.525317505379524616e-5,   1.3208367308220049348e-6,  1.025321230405209001e-7,
                                       6.5595298355172712178e-9,  6.2634652734225902742e-10};
  static constexpr double kSmallest = -1022.0;
};

// 2^x for x <= 100. Below the smallest normal number the result is 0 (subnormal weights would only slow the products
// down), hence exactly 0 for x = -inf; integers give exact powers; NaN stays NaN.
template <class S, class C = Exp2Coefficients<typename S::Real>>
inline typename S::Vec exp2(typename S::Vec x) {
  constexpr int kTerms = sizeof(C::kSeries) / sizeof(C::kSeries[0]);
  const auto f = S::fraction(x);
  auto p = S::set1(C::kSeries[kTerms - 1]);
#pragma GCC unroll 16
  for (int i = kTerms - 2; i >= 0; --i) p = S::fma(p, f, S::set1(C::kSeries[i]));
  p = S::fma(p, f, S::set1(1));
  return S::scale_pow2(S::not_less(x, S::set1(C::kSmallest)), p, x);
}

}  // namespace
}  // namespace headway
