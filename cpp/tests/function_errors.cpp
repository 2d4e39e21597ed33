// The errors of the kernels' 2^x and tanh, in units of the last place of the exact result, for each ISA.
//
//   function_errors [STRIDE [POINTS]]
//
// float32: every STRIDE-th of the 2^32 numbers (1: all of them) against the C library in double. float64: POINTS numbers
// against the C library in long double. Prints the worst error of each and where it is; fails where one is above its
// bound, or where a special value is wrong.
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "../core/cpu_features.hpp"
#include "functions.hpp"

namespace headway {
#define FUNCTIONS_DECLARE(isa) extern const Functions functions_of_##isa;
#define FUNCTIONS_ADDRESS(isa) &functions_of_##isa,
FUNCTIONS_FOR_ISAS(FUNCTIONS_DECLARE)
}  // namespace headway

namespace {

using namespace headway;

// What is stated in vec_math.hpp, cpp/README.md and the documentation; function_errors is the test that holds it.
constexpr double kExp2Bound32 = 3.5, kExp2Bound64 = 2, kTanhBound32 = 4, kTanhBound64 = 4.5;
constexpr double kPairsBound = 52;  // of float32; the last place of bfloat16, to which they are rounded, is 65,536 of these

constexpr std::int64_t kChunk = 1 << 14;

struct Worst {
  double error = -1, at = 0;
  std::int64_t points = 0, wrong = 0;  // wrong: special values
  void join(const Worst& other) {
    if (other.error > error) error = other.error, at = other.at;
    points += other.points;
    wrong += other.wrong;
  }
};

// The distance of two neighbours of Real near the exact result.
template <class Real, class Wide>
Wide spacing(Wide exact) {
  constexpr int kDigits = std::numeric_limits<Real>::digits, kLeast = std::numeric_limits<Real>::min_exponent;
  int exponent;
  std::frexp(exact, &exponent);
  return std::ldexp(Wide{1}, (exponent < kLeast ? kLeast : exponent) - kDigits);
}

// One function in one precision: the exact one, and for which numbers the kernels' has a bound.
template <class Real, class Wide>
struct Subject {
  const char* name;
  Wide (*exact)(Wide);
  Real least, most;  // numbers with a bound; below, 2^x is 0, above, it is not called
};

template <class Real, class Wide>
void judge(const Subject<Real, Wide>& subject, Real x, Real found, const Wide& exact, Worst& worst) {
  if (std::isnan(x)) {
    worst.wrong += !std::isnan(found);
  } else if (x > subject.most) {
    return;
  } else if (x < subject.least) {
    worst.wrong += found != 0;
  } else {
    const auto error = static_cast<double>(std::fabs(static_cast<Wide>(found) - exact) / spacing<Real>(exact));
    ++worst.points;
    if (!(error <= worst.error)) worst.error = std::isnan(error) ? HUGE_VAL : error, worst.at = static_cast<double>(x);
  }
}

// Runs every implementation on the numbers that fill(first, x, n) gives, in several threads.
template <class Real, class Wide, class Fill>
std::vector<Worst> sweep(const Subject<Real, Wide>& subject, const std::vector<void (*)(const Real*, Real*, std::int64_t)>& all,
                         std::int64_t points, const Fill& fill) {
  std::vector<Worst> worst(all.size());
  std::atomic<std::int64_t> next{0};
  std::mutex lock;
  const auto work = [&] {
    struct alignas(64) Numbers { Real numbers[kChunk]; };
    std::vector<Numbers> x(1), out(1);
    std::vector<Wide> exact(kChunk);
    std::vector<Worst> mine(all.size());
    for (std::int64_t first; (first = next.fetch_add(kChunk)) < points;) {
      fill(first, x[0].numbers, kChunk);
      for (std::int64_t i = 0; i < kChunk; ++i) {
        const Real each = x[0].numbers[i];
        if (each >= subject.least && each <= subject.most) exact[static_cast<std::size_t>(i)] = subject.exact(each);
      }
      const std::int64_t n = points - first < kChunk ? points - first : kChunk;
      for (std::size_t f = 0; f < all.size(); ++f) {
        all[f](x[0].numbers, out[0].numbers, kChunk);
        for (std::int64_t i = 0; i < n; ++i) {
          judge(subject, x[0].numbers[i], out[0].numbers[i], exact[static_cast<std::size_t>(i)], mine[f]);
        }
      }
    }
    const std::lock_guard<std::mutex> guard(lock);
    for (std::size_t f = 0; f < all.size(); ++f) worst[f].join(mine[f]);
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < usable_cpus(); ++i) threads.emplace_back(work);
  work();
  for (auto& thread : threads) thread.join();
  return worst;
}

int failures = 0;

template <class Real>
using Function = void (*)(const Real*, Real*, std::int64_t);

// The function of each ISA that has it, see Functions.
template <class Real, class Wide, class Fill>
void report(const Subject<Real, Wide>& subject, Function<Real> Functions::* which, double bound, std::int64_t points,
            const Fill& fill) {
  std::vector<const char*> names;
  std::vector<Function<Real>> all;
  for (const Functions* each : {FUNCTIONS_FOR_ISAS(FUNCTIONS_ADDRESS)}) {
    if (each->*which == nullptr || !cpu_runs(each->isa)) continue;
    names.push_back(each->isa);
    all.push_back(each->*which);
  }
  const auto worst = sweep(subject, all, points, fill);
  for (std::size_t f = 0; f < all.size(); ++f) {
    const bool good = worst[f].error <= bound && worst[f].wrong == 0 && worst[f].points > 0;
    failures += !good;
    std::printf("%s%-10s %-12s at most %.3f ulp, at %.9g; %lld numbers%s\n", good ? "" : "FAILED ", names[f], subject.name,
                worst[f].error, worst[f].at, static_cast<long long>(worst[f].points),
                worst[f].wrong == 0 ? "" : "; a special value is wrong");
    std::fflush(stdout);
  }
}

double exact_exp2(double x) { return std::exp2(x); }
double exact_tanh(double x) { return std::tanh(x); }
long double wide_exp2(long double x) { return std::exp2(x); }
long double wide_tanh(long double x) { return std::tanh(x); }

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t stride = argc > 1 ? std::atoll(argv[1]) : 1, points = argc > 2 ? std::atoll(argv[2]) : 10'000'000;
  if (stride < 1 || points < 1) {
    std::printf("expected a stride and a number of points, both at least 1\n");
    return 2;
  }
  const std::int64_t count = ((std::int64_t{1} << 32) + stride - 1) / stride;
  const auto patterns = [&](std::int64_t first, float* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) x[i] = std::bit_cast<float>(static_cast<std::uint32_t>((first + i) * stride));
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  report(Subject<float, double>{"exp2 float32", exact_exp2, -126, 100}, &Functions::exp2_float32, kExp2Bound32, count, patterns);
  report(Subject<float, double>{"tanh float32", exact_tanh, -kInfinity, kInfinity}, &Functions::tanh_float32, kTanhBound32, count, patterns);
  report(Subject<float, double>{"exp2 pairs", exact_exp2, -126, 100}, &Functions::exp2_pairs, kPairsBound, count, patterns);

  // Uniform in the number of the point, half of them over the range, half with every exponent down to 2^-60.
  const auto numbers = [&](double least, double most) {
    return [=](std::int64_t first, double* x, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        std::uint64_t z = static_cast<std::uint64_t>(first + i + 1) * 0x9e3779b97f4a7c15u;  // SplitMix64
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        const double uniform = static_cast<double>(z >> 11) * 0x1p-53;
        const double all = least + (most - least) * uniform;
        x[i] = (first + i) % 2 == 0 ? all : std::ldexp(all / most, -static_cast<int>(z % 60));
      }
    };
  };
  report(Subject<double, long double>{"exp2 float64", wide_exp2, -1022, 100}, &Functions::exp2_float64, kExp2Bound64, points,
         numbers(-1022, 100));
  report(Subject<double, long double>{"tanh float64", wide_tanh, -HUGE_VAL, HUGE_VAL}, &Functions::tanh_float64, kTanhBound64,
         points, numbers(-25, 25));
  return failures == 0 ? 0 : 1;
}
