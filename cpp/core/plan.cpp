#include "plan.hpp"

#include <algorithm>

namespace headway {
namespace {

// Multiply-adds below which a second thread costs more than it brings: a few microseconds of one core.
constexpr double kWorkPerThread = 200e3;
// With fewer tasks than this per thread, tasks are cut to one panel, so that the threads end together.
constexpr std::int64_t kTasksPerThread = 4;

// Keys and values that stay in the second cache level beside the mask of a block of rows; and a whole mask that does.
constexpr std::int64_t kBytesTogether = 1 << 20, kMaskBytes = 3 << 18;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t rows_of(const AttentionProblem& problem, const Sequence& sequence) {
  return sequence.num_queries * (problem.num_heads / problem.num_kv_heads);
}

// What all batch entries come to: rows times keys that a row sees, on average, and the most spans in which the keys of
// one entry lie that some row of it sees.
struct Extent {
  double pairs = 0;
  std::int64_t spans = 0;
};

Extent extent_of(const AttentionProblem& problem) {
  Extent extent;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_of(problem, b);
    if (s.num_queries == 0) continue;
    const auto visible = [&](std::int64_t first, std::int64_t last) {
      return visible_keys(problem.positions[b], problem.left, problem.right, s.num_keys, first, last);
    };
    const KeyRange first = visible(0, 0), last = visible(s.num_queries - 1, s.num_queries - 1);
    const auto seen = static_cast<double>(first.end - first.begin + last.end - last.begin);
    extent.pairs += static_cast<double>(rows_of(problem, s)) * seen / 2;
    const KeyRange all = visible(0, s.num_queries - 1);
    if (all.begin == all.end) continue;
    extent.spans = std::max(extent.spans, divide_up(all.end, kKeysPerSpan) - all.begin / kKeysPerSpan);
  }
  return extent;
}

int threads_for(const AttentionProblem& problem, const Extent& extent, int max_threads) {
  const double work = static_cast<double>(problem.num_kv_heads) * extent.pairs *
                      static_cast<double>(problem.head_dim + problem.value_dim);
  return static_cast<int>(std::clamp(work / kWorkPerThread, 1.0, static_cast<double>(max_threads)));
}

// How many key heads go together, see place_of: a divisor of their number.
std::int64_t heads_together(const AttentionProblem& problem, const Plan& plan) {
  if (problem.mask.data == nullptr || problem.mask.head_stride != 0 || plan.num_spans > 1) return 1;
  if (problem.mask.token_stride == 0) return 1;  // one row: it stays in the nearest cache
  const auto size = [](auto kind) { return static_cast<double>(element_size(kind)); };
  const auto keys = static_cast<double>(problem.num_keys);
  const double mask = static_cast<double>(problem.num_queries) * keys * size(problem.mask.kind);
  const double bytes = keys * static_cast<double>(problem.head_dim + problem.value_dim) * size(problem.key_kind);
  if (mask <= kMaskBytes) return 1;
  const double most = keeps_mask(problem) ? static_cast<double>(problem.num_kv_heads) : kBytesTogether / bytes;
  auto heads = static_cast<std::int64_t>(std::clamp(most, 1.0, static_cast<double>(problem.num_kv_heads)));
  while (problem.num_kv_heads % heads != 0 || (heads > 1 && plan.num_tasks < kTasksPerThread * plan.num_threads * heads)) --heads;
  return heads;
}

}  // namespace

bool keeps_mask(const AttentionProblem& problem) { return problem.num_keys <= kKeysPerSpan; }

int threads_for(const AttentionProblem& problem, int max_threads) {
  return threads_for(problem, extent_of(problem), max_threads);
}

Sequence sequence_of(const AttentionProblem& problem, std::int64_t batch) {
  if (problem.query_begins != nullptr) {
    const std::int64_t *q = problem.query_begins + batch, *k = problem.key_begins + batch;
    return {q[0], q[1] - q[0], k[0], k[1] - k[0]};
  }
  return {0, problem.num_queries, 0, problem.key_counts != nullptr ? problem.key_counts[batch] : problem.num_keys};
}

KeyRange visible_keys(std::int64_t first_position, std::int64_t left, std::int64_t right, std::int64_t num_keys,
                      std::int64_t first, std::int64_t last) {
  KeyRange range{0, num_keys};
  if (left < kNoLimit) range.begin = std::clamp<std::int64_t>(first_position + first - left, 0, num_keys);
  if (right < kNoLimit) range.end = std::clamp<std::int64_t>(first_position + last + right + 1, 0, num_keys);
  range.end = std::max(range.begin, range.end);
  return range;
}

Plan make_plan(const AttentionProblem& problem, const KindKernels& kernels, int max_threads) {
  Plan plan{};
  const Extent extent = extent_of(problem);
  plan.num_threads = threads_for(problem, extent, max_threads);

  const auto count_tasks = [&](std::int64_t rows_per_task) {
    plan.rows_per_task = rows_per_task;
    if (problem.query_begins == nullptr) {
      plan.tasks_per_head = divide_up(rows_of(problem, sequence_of(problem, 0)), rows_per_task);
      plan.num_tasks = problem.batch * problem.num_kv_heads * plan.tasks_per_head;
      return;
    }
    plan.first_tasks.assign(1, 0);
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      const std::int64_t tasks = divide_up(rows_of(problem, sequence_of(problem, b)), rows_per_task);
      plan.first_tasks.push_back(plan.first_tasks.back() + problem.num_kv_heads * tasks);
    }
    plan.num_tasks = plan.first_tasks.back();
  };
  std::int64_t rows = kernels.rows_per_task;
  count_tasks(rows);
  while (plan.num_tasks < kTasksPerThread * plan.num_threads && rows > kernels.rows_per_panel) {
    rows = std::max(rows / 2, kernels.rows_per_panel);
    count_tasks(rows);
  }

  plan.num_spans = 1;
  // Too few tasks for the threads, but long ones: the spans of a task go to several threads.
  if (plan.num_tasks < 2 * plan.num_threads) plan.num_spans = std::max<std::int64_t>(1, extent.spans);
  plan.num_threads = static_cast<int>(std::min<std::int64_t>(plan.num_threads, plan.num_tasks * plan.num_spans));
  plan.heads_together = problem.query_begins == nullptr ? heads_together(problem, plan) : 1;
  return plan;
}

TaskPlace place_of(const Plan& plan, const AttentionProblem& problem, std::int64_t index) {
  TaskPlace place{};
  std::int64_t tasks_per_head = plan.tasks_per_head;
  if (plan.first_tasks.empty()) {
    place.batch = index / (problem.num_kv_heads * tasks_per_head);
    index -= place.batch * problem.num_kv_heads * tasks_per_head;
  } else {
    const auto next = std::upper_bound(plan.first_tasks.begin(), plan.first_tasks.end(), index);
    place.batch = next - plan.first_tasks.begin() - 1;
    tasks_per_head = (*next - next[-1]) / problem.num_kv_heads;
    index -= next[-1];
  }
  place.sequence = sequence_of(problem, place.batch);
  const std::int64_t together = plan.heads_together, group = index / (together * tasks_per_head);
  index -= group * together * tasks_per_head;
  place.kv_head = group * together + index % together;
  const std::int64_t block = tasks_per_head - 1 - index / together;
  place.first_row = block * plan.rows_per_task;
  place.num_rows = std::min(plan.rows_per_task, rows_of(problem, place.sequence) - place.first_row);
  place.cold = tasks_per_head - 1 - block < plan.num_threads || together > 1;
  return place;
}

}  // namespace headway
