#include "attention.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "dispatch.hpp"
#include "parallel.hpp"
#include "plan.hpp"
#include "scratch.hpp"
#include "tasks.hpp"

namespace headway {
namespace {

// The keys that some row of the task sees.
KeyRange keys_of(const AttentionTask& task) {
  return visible_keys(task.first_position, task.left, task.right, task.num_keys, task.first_row / task.group,
                      (task.first_row + task.num_rows - 1) / task.group);
}

// Calls body(begin, end) for each span that has keys in the range, until it returns false.
template <class Body>
bool for_each_span(const KeyRange& keys, const Body& body) {
  for (std::int64_t begin = keys.begin / kKeysPerSpan * kKeysPerSpan; begin < keys.end; begin += kKeysPerSpan) {
    if (!body(begin, std::min(begin + kKeysPerSpan, keys.end))) return false;
  }
  return true;
}

bool attend(const KindKernels& kernels, const AttentionTask& task, int thread, StopFlag& stop) {
  kernels.begin(task);
  bool first = true;
  return for_each_span(keys_of(task), [&](std::int64_t begin, std::int64_t end) {
    if (!first && stop.should_stop(thread)) return false;  // at the first span it was just asked
    first = false;
    kernels.attend_span(task, begin, end);
    return true;
  });
}

// lse = reference + log(sum); -inf for a row that saw nothing.
void store_lse(const AttentionProblem& p, const TaskPlace& place, const double* reference, const double* sum) {
  const std::int64_t group = p.num_heads / p.num_kv_heads;
  for (std::int64_t i = 0; i < place.num_rows; ++i) {
    const std::int64_t row = place.first_row + i;
    const std::ptrdiff_t at = place.batch * p.lse.batch_stride +
                              (place.kv_head * group + row % group) * p.lse.head_stride +
                              (place.sequence.first_query + row / group) * p.lse.token_stride;
    const double lse = sum[i] == 0 ? -std::numeric_limits<double>::infinity()
                                   : reference[i] + std::log(sum[i]);
    if (p.kind == ElementKind::kFloat64) {
      static_cast<double*>(p.lse.data)[at] = lse;
    } else {
      static_cast<float*>(p.lse.data)[at] = static_cast<float>(lse);
    }
  }
}

// A problem's plan and the memory for it: one slot for each thread, and `shared` more.
class Run {
 public:
  Run(const AttentionProblem& p, const KindKernels& with, bool split, const InterruptCheck& check)
      : problem(p),
        kernels(with),
        plan(make_plan(p, kernels, num_threads())),
        interrupted(check) {
    check_widths(p);
    if (!split) plan.num_spans = 1;
    workspace_ = round_up(kernels.workspace_bytes(p.head_dim, p.value_dim));
    numbers_ = round_up(sizeof(double) * static_cast<std::size_t>(kernels.rows_per_task));
    const std::int64_t shared = plan.num_spans > 1 ? plan.num_tasks : 0;
    if (plan.heads_together > 1 && keeps_mask(p)) mask_ = round_up(kernels.kept_mask_bytes);
    scratch_.emplace(slot_bytes() * static_cast<std::size_t>(plan.num_threads + shared));
  }

  AttentionTask task(const TaskPlace& place, std::int64_t slot) const {
    return task_of(problem, place, memory(slot));
  }
  // The same, `before` tasks for the same rows of other heads having run in the slot.
  AttentionTask task(const TaskPlace& place, std::int64_t slot, std::int64_t before) const {
    AttentionTask found = task(place, slot);
    if (mask_ == 0) return found;
    found.kept_mask = memory(slot) + workspace_ + 2 * numbers_;
    found.mask_is_kept = before > 0;
    return found;
  }
  double* references(std::int64_t slot) const { return reinterpret_cast<double*>(memory(slot) + workspace_); }
  double* sums(std::int64_t slot) const { return reinterpret_cast<double*>(memory(slot) + workspace_ + numbers_); }

  void finish(const AttentionTask& task, const TaskPlace& place, std::int64_t slot) const {
    if (problem.lse.data == nullptr) return kernels.finish(task, nullptr, nullptr);
    kernels.finish(task, references(slot), sums(slot));
    store_lse(problem, place, references(slot), sums(slot));
  }

  const AttentionProblem& problem;
  const KindKernels& kernels;
  Plan plan;
  const InterruptCheck& interrupted;

 private:
  std::size_t slot_bytes() const { return workspace_ + 2 * numbers_ + mask_; }
  std::byte* memory(std::int64_t slot) const {
    return scratch_->data() + slot_bytes() * static_cast<std::size_t>(slot);
  }

  std::size_t workspace_ = 0, numbers_ = 0, mask_ = 0;
  std::optional<Scratch> scratch_;
};

// Rows of a task that are little work beside reading its keys.
constexpr std::int64_t kFewRows = 16;

// Each task in one thread, its spans one after the other; likewise the heads that go together.
void attend_tasks(const Run& run) {
  const std::int64_t heads = run.plan.heads_together;
  // Tasks of few rows pass over their keys once, quickly; the first of the next task are asked for ahead. The threads take
  // turns: likely every num_threads-th task is one thread's.
  const bool few = heads == 1 && run.plan.tasks_per_head == 1 && run.plan.first_tasks.empty() &&
                   run.problem.num_queries * (run.problem.num_heads / run.problem.num_kv_heads) <= kFewRows;
  run_tasks(run.plan.num_tasks / heads, run.plan.num_threads, run.interrupted,
            [&](std::int64_t index, int thread, StopFlag& stop) {
              for (std::int64_t i = 0; i < heads; ++i) {
                const std::int64_t at = index * heads + i;
                const TaskPlace place = place_of(run.plan, run.problem, at);
                AttentionTask task = run.task(place, thread, i), next;
                if (few && at + run.plan.num_threads < run.plan.num_tasks) {
                  next = run.task(place_of(run.plan, run.problem, at + run.plan.num_threads), thread);
                  task.next = &next;
                  task.next_key = keys_of(next).begin;
                }
                if (!attend(run.kernels, task, thread, stop)) return;
                run.finish(task, place, thread);
              }
            });
}

// Few tasks, long ones: spans go to the threads one at a time, in ascending order, and a thread waits with its part
// until all earlier spans of the task are joined. The first outstanding span never waits, so the work always goes on.
void attend_spans(const Run& run) {
  const std::int64_t spans = run.plan.num_spans;
  std::vector<std::atomic<std::int64_t>> joined(static_cast<std::size_t>(run.plan.num_tasks));
  run_tasks(run.plan.num_tasks * spans, run.plan.num_threads, run.interrupted,
            [&](std::int64_t index, int thread, StopFlag& stop) {
              const std::int64_t span = index % spans, slot = run.plan.num_threads + index / spans;
              const TaskPlace place = place_of(run.plan, run.problem, index / spans);
              const AttentionTask total = run.task(place, slot);
              AttentionTask part = run.task(place, thread);
              const KeyRange visible = keys_of(part);
              const std::int64_t begin = (visible.begin / kKeysPerSpan + span) * kKeysPerSpan;
              const std::int64_t end = std::min(begin + kKeysPerSpan, visible.end);
              part.keys_read = end;
              part.next_key = begin + run.plan.num_threads * kKeysPerSpan;  // the threads take turns
              if (part.next_key < visible.end) part.next = &part;
              const bool sees = end > std::max(begin, visible.begin);
              run.kernels.begin(part);
              if (sees) run.kernels.attend_span(part, begin, end);
              auto& turn = joined[static_cast<std::size_t>(index / spans)];
              while (turn.load(std::memory_order_acquire) != span) {
                if (stop.should_stop(thread)) return;
                std::this_thread::yield();
              }
              if (span == 0) run.kernels.begin(total);
              if (sees) run.kernels.join(total, part);
              if (span == spans - 1) run.finish(total, place, slot);
              turn.store(span + 1, std::memory_order_release);
            });
}

bool is_empty(const AttentionProblem& p) { return p.batch == 0 || p.num_heads == 0 || p.num_queries == 0; }

}  // namespace

void attention(const AttentionProblem& problem, const InterruptCheck& interrupted) {
  if (is_empty(problem)) return;
  const Run run(problem, attention_kernels(kernels(), problem.key_kind), true, interrupted);
  if (run.plan.num_spans > 1) {
    attend_spans(run);
  } else {
    attend_tasks(run);
  }
}

void attention_scores(const AttentionProblem& problem, ScoreStage stage, const InterruptCheck& interrupted) {
  if (is_empty(problem)) return;
  AttentionProblem p = problem;
  p.value_dim = 0;  // the weights need the sums of the first pass, not its context
  p.v = p.k;
  const Run run(p, score_kernels(kernels(), p.kind), false, interrupted);
  run_tasks(run.plan.num_tasks, run.plan.num_threads, interrupted, [&](std::int64_t index, int thread, StopFlag& stop) {
    const AttentionTask task = run.task(place_of(run.plan, p, index), thread);
    if (stage == ScoreStage::kWeights) {
      if (!attend(run.kernels, task, thread, stop)) return;
    } else {
      run.kernels.begin(task);
    }
    for_each_span({0, p.num_keys}, [&](std::int64_t begin, std::int64_t end) {
      if (stop.should_stop(thread)) return false;
      run.kernels.store_scores(task, begin, end, stage);
      return true;
    });
  });
}

}  // namespace headway
