#include "peak.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "dispatch.hpp"
#include "parallel.hpp"

namespace headway {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWords = kReadBlockBytes / sizeof(std::uint64_t);  // in a block

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The best rate of runs of `once`, which returns how much it did, until `seconds` have passed; one run at least.
template <class Once>
double best_rate(double seconds, const Once& once) {
  const auto start = Clock::now();
  double best = 0;
  do {
    const auto begin = Clock::now();
    const double done = once();
    best = std::max(best, done / seconds_since(begin) * 1e-9);
  } while (seconds_since(start) < seconds);
  return best;
}

// Independent sums, so that no load waits for an addition; integers, so that the compiler may use vectors.
std::uint64_t sum_block(const std::uint64_t* block) {
  constexpr std::size_t kSums = 64;
  std::uint64_t sums[kSums] = {};
  for (std::size_t i = 0; i < kWords; i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) sums[j] += block[i + j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

std::optional<double> burst_peak(double seconds, int threads, ElementKind kind,
                                 const std::function<bool()>& interrupted) {
  const KernelTable* table = &kernels();
  while (table != nullptr && table->bursts[static_cast<int>(kind)] == nullptr) table = table->base;
  if (table == nullptr) return std::nullopt;
  const auto burst = table->bursts[static_cast<int>(kind)];
  constexpr std::int64_t kRounds = 200000;
  std::vector<double> done(static_cast<std::size_t>(threads));
  return best_rate(seconds, [&] {
    run_tasks(threads, threads, interrupted, [&](std::int64_t index, int, StopFlag&) {
      done[static_cast<std::size_t>(index)] = burst(kRounds);
    });
    double total = 0;
    for (const double flops : done) total += flops;
    return total;
  });
}

double read_bandwidth(double seconds, int threads, const std::uint64_t* words, std::int64_t num_blocks,
                      const std::function<bool()>& interrupted) {
  // The tasks store their sums where another thread might look, so that no read can be left out.
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(num_blocks));
  return best_rate(seconds, [&] {
    run_tasks(num_blocks, threads, interrupted, [&](std::int64_t index, int, StopFlag&) {
      sums[static_cast<std::size_t>(index)] = sum_block(words + static_cast<std::size_t>(index) * kWords);
    });
    return static_cast<double>(num_blocks * kReadBlockBytes);
  });
}

}  // namespace headway
