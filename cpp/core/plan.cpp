#include "plan.hpp"

#include <algorithm>

namespace headway {
namespace {

// Multiply-adds below which a second thread costs more than it brings: a few microseconds of one core.
constexpr double kWorkPerThread = 200e3;
// With fewer tasks than this per thread, tasks are cut to one panel, so that the threads end together.
constexpr std::int64_t kTasksPerThread = 4;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// How many keys the last query sees, in the batch entry where it sees most.
std::int64_t visible_keys(const AttentionProblem& problem) {
  if (!problem.causal) return problem.num_keys;
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    most = std::max(most, std::min(problem.positions[b], problem.num_keys) + problem.num_queries);
  }
  return std::min(most, problem.num_keys);
}

}  // namespace

Plan make_plan(const AttentionProblem& problem, const KindKernels& kernels, int max_threads) {
  Plan plan{};
  const std::int64_t heads = problem.batch * problem.num_kv_heads;
  const std::int64_t keys = visible_keys(problem);
  plan.rows = problem.num_queries * (problem.num_heads / std::max<std::int64_t>(problem.num_kv_heads, 1));
  const double work = static_cast<double>(heads) * static_cast<double>(plan.rows) *
                      static_cast<double>(keys) *
                      static_cast<double>(problem.head_dim + problem.value_dim) * (problem.causal ? 0.5 : 1.0);
  plan.num_threads = static_cast<int>(std::clamp(work / kWorkPerThread, 1.0, static_cast<double>(max_threads)));
  plan.rows_per_task = kernels.rows_per_task;
  if (heads * divide_up(plan.rows, plan.rows_per_task) < kTasksPerThread * plan.num_threads) {
    plan.rows_per_task = kernels.rows_per_panel;
  }
  plan.tasks_per_head = divide_up(plan.rows, plan.rows_per_task);
  plan.num_tasks = heads * plan.tasks_per_head;
  // Too few tasks for the threads, but long ones: the spans of a task go to several threads.
  plan.num_spans = plan.num_tasks < 2 * plan.num_threads ? std::max<std::int64_t>(divide_up(keys, kKeysPerSpan), 1) : 1;
  plan.num_threads = static_cast<int>(std::min<std::int64_t>(plan.num_threads, plan.num_tasks * plan.num_spans));
  return plan;
}

TaskPlace place_of(const Plan& plan, const AttentionProblem& problem, std::int64_t index) {
  const std::int64_t head = index / plan.tasks_per_head;
  const std::int64_t block = plan.tasks_per_head - 1 - index % plan.tasks_per_head;
  TaskPlace place{};
  place.batch = head / problem.num_kv_heads;
  place.kv_head = head % problem.num_kv_heads;
  place.first_row = block * plan.rows_per_task;
  place.num_rows = std::min(plan.rows_per_task, plan.rows - place.first_row);
  place.cold = plan.tasks_per_head - 1 - block < plan.num_threads;
  return place;
}

}  // namespace headway
