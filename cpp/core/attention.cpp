#include "attention.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "dispatch.hpp"
#include "parallel.hpp"
#include "plan.hpp"
#include "scratch.hpp"

namespace headway {
namespace {

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 40;  // far beyond any memory; keeps sizes from wrapping round

std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Of a batch entry's head, from its token `token` on.
void* offset(const TensorView& view, std::size_t size, std::int64_t batch, std::int64_t head, std::int64_t token) {
  const std::ptrdiff_t elements = batch * view.batch_stride + head * view.head_stride + token * view.token_stride;
  return static_cast<char*>(view.data) + elements * static_cast<std::ptrdiff_t>(size);
}

// The weights of query heads from `head` on. A weight is dropped with the probability rounded to a multiple of 2^-32, to
// nearest, ties to even; never all of them.
Dropout dropout_of(const AttentionProblem& p, std::int64_t batch, std::int64_t head) {
  if (p.dropout == 0) return Dropout{};
  constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
  return Dropout{
      .drops = true,
      .threshold = static_cast<std::uint32_t>(std::min(std::nearbyint(p.dropout * 0x1p32), double{kMost})),
      .seed_low = static_cast<std::uint32_t>(p.seed),
      .seed_high = static_cast<std::uint32_t>(p.seed >> 32),
      .batch = static_cast<std::uint32_t>(batch),
      .head = static_cast<std::uint32_t>(head),
      .scale = 1 / (1 - p.dropout),
  };
}

ScoreOptions options_of(const AttentionProblem& p, std::int64_t batch, std::int64_t head) {
  const MaskView& mask = p.mask;
  const std::ptrdiff_t at = batch * mask.batch_stride + head * mask.head_stride;
  return ScoreOptions{
      .softcap = p.softcap,
      .slopes = p.slopes != nullptr ? p.slopes + batch * p.num_heads + head : nullptr,
      .sinks = p.sinks != nullptr ? p.sinks + head : nullptr,
      .mask = mask.data != nullptr
                  ? static_cast<const char*>(mask.data) + at * static_cast<std::ptrdiff_t>(element_size(mask.kind))
                  : nullptr,
      .mask_kind = mask.kind,
      .mask_token_stride = mask.token_stride,
      .mask_head_stride = mask.head_stride,
      .mask_key_stride = mask.key_stride,
      .dropout = dropout_of(p, batch, head),
  };
}

KeyPages pages_of(const AttentionProblem& p, std::int64_t batch, std::int64_t kv_head) {
  const PagesView& pages = p.pages;
  const auto scales = [&](const TensorView& view) {
    return view.data != nullptr ? static_cast<const float*>(offset(view, sizeof(float), 0, kv_head, 0)) : nullptr;
  };
  return KeyPages{
      .table = pages.table != nullptr ? pages.table + batch * pages.pages_per_entry : nullptr,
      .count = pages.pages_per_entry,
      .size = pages.page_size,
      .k_stride = p.k.batch_stride,
      .v_stride = p.v.batch_stride,
      .k_scales = scales(pages.k_scales),
      .v_scales = scales(pages.v_scales),
      .k_scale_stride = pages.k_scales.batch_stride,
      .v_scale_stride = pages.v_scales.batch_stride,
      .k_scale_token_stride = pages.k_scales.token_stride,
      .v_scale_token_stride = pages.v_scales.token_stride,
  };
}

AttentionTask task_of(const AttentionProblem& p, const TaskPlace& place, void* workspace) {
  const std::size_t size = element_size(p.kind), key_size = element_size(p.key_kind);
  const std::size_t out_size = p.wide_out ? accumulation_size(p.kind) : size;
  const std::int64_t group = p.num_heads / p.num_kv_heads, head = place.kv_head * group;
  const Sequence& s = place.sequence;
  const std::int64_t first_page = p.pages.table != nullptr ? 0 : place.batch;
  return AttentionTask{
      .q = offset(p.q, size, place.batch, head, s.first_query),
      .k = offset(p.k, key_size, first_page, place.kv_head, s.first_key),
      .v = offset(p.v, key_size, first_page, place.kv_head, s.first_key),
      .out = offset(p.out, out_size, place.batch, head, s.first_query),
      .q_token_stride = p.q.token_stride,
      .q_head_stride = p.q.head_stride,
      .k_token_stride = p.k.token_stride,
      .v_token_stride = p.v.token_stride,
      .out_token_stride = p.out.token_stride,
      .out_head_stride = p.out.head_stride,
      .group = group,
      .head_dim = p.head_dim,
      .value_dim = p.value_dim,
      .num_keys = s.num_keys,
      .first_row = place.first_row,
      .num_rows = place.num_rows,
      .first_position = p.positions[place.batch],
      .left = p.left,
      .right = p.right,
      // Computed here, in a task, so that the caller's rounding mode does not matter.
      .scale = p.scale ? *p.scale : 1 / std::sqrt(static_cast<double>(p.head_dim)),
      .options = options_of(p, place.batch, head),
      .pages = pages_of(p, place.batch, place.kv_head),
      // Rows that lie apart are not foreseen by the CPU either.
      .cold = place.cold || p.k.token_stride != p.head_dim || p.v.token_stride != p.value_dim,
      .wide_out = p.wide_out,
      .workspace = workspace,
  };
}

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
    if (p.head_dim > kMaxWidth || p.value_dim > kMaxWidth) throw std::bad_alloc();
    if (!split) plan.num_spans = 1;
    workspace_ = round_up(kernels.workspace_bytes(p.head_dim, p.value_dim));
    numbers_ = round_up(sizeof(double) * static_cast<std::size_t>(kernels.rows_per_task));
    const std::int64_t shared = plan.num_spans > 1 ? plan.num_tasks : 0;
    scratch_.emplace(slot_bytes() * static_cast<std::size_t>(plan.num_threads + shared));
  }

  AttentionTask task(const TaskPlace& place, std::int64_t slot) const {
    return task_of(problem, place, memory(slot));
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
  std::size_t slot_bytes() const { return workspace_ + 2 * numbers_; }
  std::byte* memory(std::int64_t slot) const {
    return scratch_->data() + slot_bytes() * static_cast<std::size_t>(slot);
  }

  std::size_t workspace_ = 0, numbers_ = 0;
  std::optional<Scratch> scratch_;
};

// Each task in one thread, its spans one after the other.
void attend_tasks(const Run& run) {
  run_tasks(run.plan.num_tasks, run.plan.num_threads, run.interrupted,
            [&](std::int64_t index, int thread, StopFlag& stop) {
              const TaskPlace place = place_of(run.plan, run.problem, index);
              const AttentionTask task = run.task(place, thread);
              if (attend(run.kernels, task, thread, stop)) run.finish(task, place, thread);
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
              const AttentionTask total = run.task(place, slot), part = run.task(place, thread);
              const KeyRange visible = keys_of(part);
              const std::int64_t begin = (visible.begin / kKeysPerSpan + span) * kKeysPerSpan;
              const std::int64_t end = std::min(begin + kKeysPerSpan, visible.end);
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
