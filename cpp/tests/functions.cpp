// Compiled once per ISA, with its flags: FUNCTIONS_ISA is its name, FUNCTIONS_HEADER what brings its vectors, and
// FUNCTIONS_PAIRS is defined where that also brings products of pairs, whose exponential is then the only function.
#include FUNCTIONS_HEADER

#include "vec_math.hpp"

#include "functions.hpp"

namespace headway {
namespace {

template <class S, class Function>
[[gnu::always_inline]] inline void apply(const typename S::Real* x, typename S::Real* out, std::int64_t n,
                                         const Function& function) {
  for (std::int64_t i = 0; i < n; i += S::kLanes) S::store(out + i, function(S::load(x + i)));
}

template <class S, class C>
[[maybe_unused]] void all_exp2(const typename S::Real* x, typename S::Real* out, std::int64_t n) {
  apply<S>(x, out, n, [](typename S::Vec v) { return exp2<S, C>(v); });
}

template <class S>
[[maybe_unused]] void all_tanh(const typename S::Real* x, typename S::Real* out, std::int64_t n) {
  apply<S>(x, out, n, [](typename S::Vec v) { return tanh<S>(v); });
}

}  // namespace

#define FUNCTIONS_TEXT(name) #name
#define FUNCTIONS_STRING(name) FUNCTIONS_TEXT(name)
#define FUNCTIONS_JOIN(a, b) a##b
#define FUNCTIONS_NAME(isa) FUNCTIONS_JOIN(functions_of_, isa)

extern const Functions FUNCTIONS_NAME(FUNCTIONS_ISA);
const Functions FUNCTIONS_NAME(FUNCTIONS_ISA) = {
    FUNCTIONS_STRING(FUNCTIONS_ISA),
#ifdef FUNCTIONS_PAIRS
    nullptr, nullptr, nullptr, nullptr, all_exp2<VecF32, PairExp2Coefficients>,
#else
    all_exp2<VecF32, Exp2Coefficients<float>>,  all_tanh<VecF32>,
    all_exp2<VecF64, Exp2Coefficients<double>>, all_tanh<VecF64>, nullptr,
#endif
};

}  // namespace headway
