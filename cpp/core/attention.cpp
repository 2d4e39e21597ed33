#include "attention.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "dispatch.hpp"
#include "parallel.hpp"
#include "plan.hpp"
#include "scratch.hpp"

namespace headway {
namespace {

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 40;  // far beyond any memory; keeps sizes from wrapping round

std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t element_size(ElementKind kind) {
  return kind == ElementKind::kFloat64 ? 8 : kind == ElementKind::kFloat32 ? 4 : 2;
}

void* offset(const TensorView& view, std::size_t size, std::int64_t batch, std::int64_t head) {
  const std::ptrdiff_t elements = batch * view.batch_stride + head * view.head_stride;
  return static_cast<char*>(view.data) + elements * static_cast<std::ptrdiff_t>(size);
}

AttentionTask task_of(const AttentionProblem& p, const TaskPlace& place, void* workspace) {
  const std::size_t size = element_size(p.kind);
  const std::size_t out_size = p.wide_out ? (p.kind == ElementKind::kFloat64 ? 8u : 4u) : size;
  const std::int64_t group = p.num_heads / p.num_kv_heads;
  return AttentionTask{
      .q = offset(p.q, size, place.batch, place.kv_head * group),
      .k = offset(p.k, size, place.batch, place.kv_head),
      .v = offset(p.v, size, place.batch, place.kv_head),
      .out = offset(p.out, out_size, place.batch, place.kv_head * group),
      .q_token_stride = p.q.token_stride,
      .q_head_stride = p.q.head_stride,
      .k_token_stride = p.k.token_stride,
      .v_token_stride = p.v.token_stride,
      .out_token_stride = p.out.token_stride,
      .out_head_stride = p.out.head_stride,
      .group = group,
      .num_keys = p.num_keys,
      .head_dim = p.head_dim,
      .value_dim = p.value_dim,
      .first_row = place.first_row,
      .num_rows = place.num_rows,
      .first_position = p.positions[place.batch],
      .scale = p.scale,
      .causal = p.causal,
      .wide_out = p.wide_out,
      .workspace = workspace,
  };
}

// One past the last key that any row of the task sees.
std::int64_t visible_end(const AttentionTask& task) {
  if (!task.causal) return task.num_keys;
  const std::int64_t last_token = (task.first_row + task.num_rows - 1) / task.group;
  // Positions may be anywhere in the range of an int64: compare before adding.
  if (task.first_position >= task.num_keys) return task.num_keys;
  return std::clamp<std::int64_t>(task.first_position + last_token + 1, 0, task.num_keys);
}

// Calls body(begin, end) for each span below `end` until it returns false.
template <class Body>
bool for_each_span(std::int64_t end, const Body& body) {
  for (std::int64_t begin = 0; begin < end; begin += kKeysPerSpan) {
    if (!body(begin, std::min(begin + kKeysPerSpan, end))) return false;
  }
  return true;
}

bool attend(const KindKernels& kernels, const AttentionTask& task, int thread, StopFlag& stop) {
  kernels.begin(task);
  return for_each_span(visible_end(task), [&](std::int64_t begin, std::int64_t end) {
    if (stop.should_stop(thread)) return false;
    kernels.attend_span(task, begin, end);
    return true;
  });
}

// lse = ln 2 * (reference + log2(sum)); -inf for a row that saw nothing.
void store_lse(const AttentionProblem& p, const TaskPlace& place, const double* reference, const double* sum) {
  const std::int64_t group = p.num_heads / p.num_kv_heads;
  for (std::int64_t i = 0; i < place.num_rows; ++i) {
    const std::int64_t row = place.first_row + i;
    const std::ptrdiff_t at = place.batch * p.lse.batch_stride + (place.kv_head * group + row % group) * p.lse.head_stride +
                              row / group * p.lse.token_stride;
    const double lse = sum[i] == 0 ? -std::numeric_limits<double>::infinity()
                                   : 0.69314718055994530942 * (reference[i] + std::log2(sum[i]));
    if (p.kind == ElementKind::kFloat64) {
      static_cast<double*>(p.lse.data)[at] = lse;
    } else {
      static_cast<float*>(p.lse.data)[at] = static_cast<float>(lse);
    }
  }
}

// Calls body(task, place, reference, sum, thread, stop) for each task; reference and sum hold one double per row.
template <class Body>
void for_each_task(const AttentionProblem& problem, const KindKernels& kernels, const InterruptCheck& interrupted,
                   const Body& body) {
  if (problem.batch == 0 || problem.num_heads == 0 || problem.num_queries == 0) return;
  if (problem.head_dim > kMaxWidth || problem.value_dim > kMaxWidth) throw std::bad_alloc();
  const Plan plan = make_plan(problem, kernels, num_threads());
  const std::size_t workspace = round_up(kernels.workspace_bytes(problem.head_dim, problem.value_dim));
  const std::size_t numbers = round_up(sizeof(double) * static_cast<std::size_t>(kernels.rows_per_task));
  const std::size_t per_thread = workspace + 2 * numbers;
  const Scratch scratch(per_thread * static_cast<std::size_t>(plan.num_threads));
  run_tasks(plan.num_tasks, plan.num_threads, interrupted, [&](std::int64_t index, int thread, StopFlag& stop) {
    std::byte* memory = scratch.data() + per_thread * static_cast<std::size_t>(thread);
    const TaskPlace place = place_of(plan, problem, index);
    auto* reference = reinterpret_cast<double*>(memory + workspace);
    auto* sum = reinterpret_cast<double*>(memory + workspace + numbers);
    body(task_of(problem, place, memory), place, reference, sum, thread, stop);
  });
}

}  // namespace

void attention(const AttentionProblem& problem, const InterruptCheck& interrupted) {
  const KindKernels& kernels = headway::kernels().kinds[static_cast<int>(problem.kind)];
  for_each_task(problem, kernels, interrupted,
                [&](const AttentionTask& task, const TaskPlace& place, double* reference, double* sum, int thread,
                    StopFlag& stop) {
                  if (!attend(kernels, task, thread, stop)) return;
                  kernels.finish(task, reference, sum);
                  if (problem.lse.data != nullptr) store_lse(problem, place, reference, sum);
                });
}

void attention_scores(const AttentionProblem& problem, ScoreStage stage, const InterruptCheck& interrupted) {
  const KindKernels& kernels = headway::kernels().kinds[static_cast<int>(problem.kind)];
  AttentionProblem p = problem;
  p.value_dim = 0;  // the weights need the sums of the first pass, not its context
  p.v = p.k;
  for_each_task(p, kernels, interrupted,
                [&](const AttentionTask& task, const TaskPlace&, double*, double*, int thread, StopFlag& stop) {
                  if (stage == ScoreStage::kWeights) {
                    if (!attend(kernels, task, thread, stop)) return;
                  } else {
                    kernels.begin(task);
                  }
                  for_each_span(task.num_keys, [&](std::int64_t begin, std::int64_t end) {
                    if (stop.should_stop(thread)) return false;
                    kernels.store_scores(task, begin, end, stage);
                    return true;
                  });
                });
}

double fma_peak(double seconds, int threads, const InterruptCheck& interrupted) {
  using Clock = std::chrono::steady_clock;
  const KernelTable& table = kernels();
  constexpr std::int64_t kRounds = 200000;
  const auto start = Clock::now();
  double best = 0;
  do {
    std::vector<double> done(static_cast<std::size_t>(threads));
    const auto begin = Clock::now();
    run_tasks(threads, threads, interrupted, [&](std::int64_t index, int, StopFlag&) {
      done[static_cast<std::size_t>(index)] = table.fma_burst(kRounds);
    });
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    double total = 0;
    for (const double flops : done) total += flops;
    best = std::max(best, total / elapsed * 1e-9);
  } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds);
  return best;
}

}  // namespace headway
