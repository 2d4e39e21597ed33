#include "rotary.hpp"

#include <algorithm>
#include <cmath>

#include "dispatch.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "sine.hpp"

namespace headway {
namespace {

// A task is a few tokens, of which all heads use one table; so large at most, to stay in the first-level cache.
constexpr std::int64_t kTableBytes = 16384;
constexpr std::int64_t kMostTokens = 64;
// Numbers below which a second thread costs more than it brings, an entry of the table counting as several.
constexpr double kNumbersPerThread = 32e3;
constexpr double kNumbersPerEntry = 8;
constexpr std::int64_t kTasksPerThread = 2;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Angles position * frequency -> their cosines and sines, (num_pairs) each. The same bits whatever stands beside it.
void turn(const RotaryProblem& p, double largest_frequency, std::int64_t position, double* cosines, double* sines) {
  const auto at = static_cast<double>(position);
  const double* frequencies = p.frequencies;
  const std::int64_t count = p.num_pairs;
  for (std::int64_t i = 0; i < count; ++i) cosine_and_sine(at * frequencies[i], cosines[i], sines[i]);
  if (std::abs(at) * largest_frequency <= kLargestAngle) return;
  for (std::int64_t i = 0; i < count; ++i) {
    const double angle = at * frequencies[i];
    if (std::abs(angle) <= kLargestAngle) continue;
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
}

// The table of one token as the kernels read it: times factor, rounded once.
template <class Real>
void fill_table(const RotaryProblem& p, const double* cosines, const double* sines, Real* table_cosines,
                Real* table_sines) {
  const std::int64_t count = p.num_pairs;
  const double factor = p.factor;
  if (!p.interleaved) {
    for (std::int64_t i = 0; i < count; ++i) table_cosines[i] = static_cast<Real>(cosines[i] * factor);
    for (std::int64_t i = 0; i < count; ++i) table_sines[i] = static_cast<Real>(sines[i] * factor);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    table_cosines[2 * i] = table_cosines[2 * i + 1] = static_cast<Real>(cosines[i] * factor);
    table_sines[2 * i + 1] = static_cast<Real>(sines[i] * factor);
    table_sines[2 * i] = -table_sines[2 * i + 1];
  }
}

std::ptrdiff_t offset_of(const TensorView& view, std::int64_t b, std::int64_t token) {
  return b * view.batch_stride + token * view.token_stride;
}

}  // namespace

void rotary_embedding(const RotaryProblem& p, const std::function<bool()>& interrupted) {
  if (p.batch == 0 || p.num_heads == 0 || p.num_tokens == 0 || p.num_pairs == 0) return;
  const Rotation rotate = rotation_kernel(kernels(), p.kind);
  const auto size = static_cast<std::ptrdiff_t>(element_size(p.kind));
  const auto wide = static_cast<std::ptrdiff_t>(accumulation_size(p.kind));
  const std::ptrdiff_t out_size = p.wide_out ? wide : size;

  const double rows = static_cast<double>(p.batch) * static_cast<double>(p.num_tokens);
  const double work = rows * (static_cast<double>(p.num_heads) * static_cast<double>(p.head_dim) +
                              kNumbersPerEntry * static_cast<double>(p.num_pairs));
  const int threads = static_cast<int>(std::clamp(work / kNumbersPerThread, 1.0, static_cast<double>(num_threads())));
  const std::int64_t entries = (p.interleaved ? 2 : 1) * p.num_pairs;  // of cosines, and as many of sines
  const std::int64_t wanted = divide_up(kTasksPerThread * threads, p.batch);
  const std::int64_t most = std::clamp<std::int64_t>(kTableBytes / (2 * entries * wide), 1, kMostTokens);
  const std::int64_t tokens_per_task = std::min(most, divide_up(p.num_tokens, wanted));
  const std::int64_t blocks = divide_up(p.num_tokens, tokens_per_task);

  const double largest_frequency = *std::max_element(p.frequencies, p.frequencies + p.num_pairs);
  const std::int64_t table_bytes = 2 * tokens_per_task * entries * wide;
  const std::int64_t exact_bytes = 2 * p.num_pairs * static_cast<std::int64_t>(sizeof(double));
  const std::int64_t per_thread = divide_up(table_bytes + exact_bytes, 64) * 64;
  const Scratch scratch(static_cast<std::size_t>(per_thread) * static_cast<std::size_t>(threads));
  run_tasks(p.batch * blocks, threads, interrupted, [&](std::int64_t index, int thread, StopFlag& stop) {
    const std::int64_t b = index / blocks, first = index % blocks * tokens_per_task;
    const std::int64_t count = std::min(tokens_per_task, p.num_tokens - first);
    auto* cosines = reinterpret_cast<double*>(scratch.data() + per_thread * thread);
    double* sines = cosines + p.num_pairs;
    auto* table = reinterpret_cast<std::byte*>(sines + p.num_pairs);  // for each token its cosines, then its sines
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t token = first + t;
      const std::int64_t position =
          p.positions == nullptr ? p.first_position + token
                                 : p.positions[b * p.position_batch_stride + token * p.position_token_stride];
      turn(p, largest_frequency, position, cosines, sines);
      std::byte* row = table + 2 * t * entries * wide;
      if (p.kind == ElementKind::kFloat64) {
        fill_table(p, cosines, sines, reinterpret_cast<double*>(row), reinterpret_cast<double*>(row) + entries);
      } else {
        fill_table(p, cosines, sines, reinterpret_cast<float*>(row), reinterpret_cast<float*>(row) + entries);
      }
    }
    const auto* x = static_cast<const std::byte*>(p.x.data);
    auto* out = static_cast<std::byte*>(p.out.data);
    const auto turn_rows = [&](std::int64_t t, std::int64_t head, std::int64_t num_rows) {
      const std::byte* row = table + 2 * t * entries * wide;
      rotate({.x = x + (offset_of(p.x, b, first + t) + head * p.x.head_stride) * size,
              .out = out + (offset_of(p.out, b, first + t) + head * p.out.head_stride) * out_size,
              .x_stride = p.x.head_stride,
              .out_stride = p.out.head_stride,
              .num_rows = num_rows,
              .width = p.head_dim,
              .num_pairs = p.num_pairs,
              .cosines = row,
              .sines = row + entries * wide,
              .interleaved = p.interleaved,
              .wide_out = p.wide_out});
    };
    // In the order of memory: token by token where the heads of one lie side by side, else head by head.
    if (count == 1 || std::abs(p.x.head_stride) < std::abs(p.x.token_stride)) {
      for (std::int64_t t = 0; t < count && !stop.should_stop(thread); ++t) turn_rows(t, 0, p.num_heads);
    } else {
      for (std::int64_t head = 0; head < p.num_heads && !stop.should_stop(thread); ++head) {
        for (std::int64_t t = 0; t < count; ++t) turn_rows(t, head, 1);
      }
    }
  });
}

}  // namespace headway
