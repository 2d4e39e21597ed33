#include "backward.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "dispatch.hpp"
#include "parallel.hpp"
#include "plan.hpp"
#include "rows_ahead.hpp"
#include "scratch.hpp"
#include "tasks.hpp"

namespace headway {
namespace {

void* offset_of(const TensorView& view, std::size_t size, const TaskPlace& place, std::int64_t head, std::int64_t token) {
  return view.data != nullptr ? offset(view, size, place.batch, head, token) : nullptr;
}

// One call: what its tasks share. A unit is a key head of a batch entry; its rows are cut into blocks, its keys into
// chunks. The sums of a block of rows get the chunks in ascending order, so that no bits depend on who works on which.
class Backward {
 public:
  Backward(const BackwardProblem& problem, const InterruptCheck& interrupted)
      : problem_(problem),
        p_(problem.forward),
        kernels_(backward_kernels(headway::kernels(), p_.kind, p_.wide_out || problem.scores.data != nullptr)),
        interrupted_(interrupted),
        threads_(threads_for(p_, num_threads())),
        group_(p_.num_heads / p_.num_kv_heads),
        units_(p_.batch * p_.num_kv_heads),
        chunk_(kernels_.keys_per_chunk(p_.head_dim, p_.value_dim)) {
    check_widths(p_);
    const std::int64_t tokens = p_.query_begins != nullptr ? p_.query_begins[p_.batch] : p_.num_queries;
    const std::int64_t entries = p_.query_begins != nullptr ? 1 : p_.batch;
    const std::size_t size = accumulation_size(p_.kind);
    deltas_.emplace(round_up(size * static_cast<std::size_t>(entries * p_.num_heads * tokens)));
    delta_ = TensorView{deltas_->data(), p_.query_begins != nullptr ? 0 : p_.num_heads * tokens, tokens, 1};
    blocks_ = (p_.num_queries * group_ + kernels_.rows_per_block - 1) / kernels_.rows_per_block;
    block_bytes_ = round_up(kernels_.sums_bytes(p_.head_dim));
    workspace_ = round_up(kernels_.workspace_bytes(p_.head_dim, p_.value_dim));
    // Too few units for the threads: these share the chunks of a unit.
    split_ = threads_ > 1 && problem.scores.data == nullptr && (units_ < 2 * threads_ || (units_ < 6 * threads_ && units_ % threads_ != 0));
    while (split_ && chunk_ > kLeastChunk && (p_.num_keys + chunk_ - 1) / chunk_ * units_ < 4 * threads_) chunk_ /= 2;
    chunks_ = std::max<std::int64_t>(1, (p_.num_keys + chunk_ - 1) / chunk_);
    if (!split_) threads_ = static_cast<int>(std::min<std::int64_t>(threads_, units_));
    const std::size_t sums = block_bytes_ * static_cast<std::size_t>(blocks_ * (split_ ? units_ : threads_));
    scratch_.emplace(sums + workspace_ * static_cast<std::size_t>(threads_));
  }

  void run() const {
    std::vector<std::atomic<std::int64_t>> next(static_cast<std::size_t>(split_ ? units_ * blocks_ : 0));
    for (std::size_t i = 0; i < next.size(); ++i) {
      const std::int64_t unit = static_cast<std::int64_t>(i) / blocks_, block = static_cast<std::int64_t>(i) % blocks_;
      next[i] = chunks_of(place_of_block(unit, block)).begin;
    }
    run_tasks(split_ ? units_ * chunks_ : units_, threads_, interrupted_, [&](std::int64_t index, int thread, StopFlag& stop) {
      if (!split_) {
        for (std::int64_t c = 0; c < chunks_; ++c) {
          if (!run_chunk(index, c, thread, stop, nullptr)) return;
        }
      } else {
        run_chunk(index / chunks_, index % chunks_, thread, stop, next.data() + index / chunks_ * blocks_);
      }
    });
  }

  // Each head's sum over its rows, in order: the sink's weight, exp(sink - lse), times -delta.
  void fill_sinks() const {
    run_tasks(p_.num_heads, threads_, interrupted_, [&](std::int64_t head, int, StopFlag&) {
      double sum = 0;
      for (std::int64_t b = 0; b < p_.batch; ++b) {
        const Sequence s = sequence_of(p_, b);
        for (std::int64_t t = s.first_query; t < s.first_query + s.num_queries; ++t) {
          if (p_.sinks[head] > -HUGE_VAL || std::isnan(p_.sinks[head])) {
            sum -= std::exp(p_.sinks[head] - number(p_.lse, b, head, t)) * number(delta_, b, head, t);
          }
        }
      }
      problem_.dsinks[head] = sum;
    });
  }

  // Rows of keys that do not count, and scores of hidden keys.
  void clear_rest() const {
    const std::size_t size = element_size(p_.kind);
    const auto clear = [](const TensorView& view, std::size_t item, std::int64_t width, std::int64_t b, std::int64_t head, std::int64_t row) {
      std::memset(offset(view, item, b, head, row), 0, item * static_cast<std::size_t>(width));
    };
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      if (problem_.scores.data != nullptr) {
        for (std::int64_t row = 0; row < p_.num_heads * p_.num_queries; ++row) {
          clear(problem_.scores, accumulation_size(p_.kind), p_.num_keys, b, row / p_.num_queries, row % p_.num_queries);
        }
        continue;
      }
      const Sequence s = sequence_of(p_, b);
      for (std::int64_t head = 0; head < p_.num_kv_heads && p_.key_begins == nullptr; ++head) {
        for (std::int64_t row = s.num_keys; row < p_.num_keys; ++row) {
          clear(problem_.dk, size, p_.head_dim, b, head, row);
          clear(problem_.dv, size, p_.value_dim, b, head, row);
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kLeastChunk = 128;

  double number(const TensorView& view, std::int64_t batch, std::int64_t head, std::int64_t token) const {
    const void* at = offset(view, accumulation_size(p_.kind), batch, head, token);
    return p_.kind == ElementKind::kFloat64 ? *static_cast<const double*>(at) : static_cast<double>(*static_cast<const float*>(at));
  }

  TaskPlace place_of_rows(std::int64_t unit, std::int64_t first_row, std::int64_t most) const {
    TaskPlace place{};
    place.batch = unit / p_.num_kv_heads;
    place.kv_head = unit % p_.num_kv_heads;
    place.sequence = sequence_of(p_, place.batch);
    place.first_row = first_row;
    place.num_rows = std::clamp<std::int64_t>(place.sequence.num_queries * group_ - first_row, 0, most);
    return place;
  }
  TaskPlace place_of_block(std::int64_t unit, std::int64_t block) const {
    return place_of_rows(unit, block * kernels_.rows_per_block, kernels_.rows_per_block);
  }

  // The chunks that some row of the block sees; empty where there is none.
  KeyRange chunks_of(const TaskPlace& place) const {
    if (place.num_rows == 0) return {0, 0};
    const KeyRange keys = visible_keys(p_.positions[place.batch], p_.left, p_.right, place.sequence.num_keys, place.first_row / group_,
                                       (place.first_row + place.num_rows - 1) / group_);
    if (keys.begin >= keys.end) return {0, 0};
    return {keys.begin / chunk_, (keys.end - 1) / chunk_ + 1};
  }

  std::byte* workspace(int thread) const { return scratch_->data() + workspace_ * static_cast<std::size_t>(thread); }
  std::byte* sums(std::int64_t slot, std::int64_t block) const {
    return workspace(threads_) + block_bytes_ * static_cast<std::size_t>(slot * blocks_ + block);
  }

  BackwardTask task_at(const TaskPlace& place, void* memory, void* sums) const;
  void look_ahead(std::int64_t unit, std::int64_t chunk, std::int64_t first_block, std::int64_t block, AheadList& ahead) const;

  // Adds one chunk of keys to all blocks of rows that see it, and writes what is complete then. next: of the unit's blocks,
  // the chunk that comes next, where several threads are at work on it. False: the call ends early.
  bool run_chunk(std::int64_t unit, std::int64_t chunk, int thread, StopFlag& stop, std::atomic<std::int64_t>* next) const {
    const TaskPlace unit_place = place_of_block(unit, 0);
    const std::int64_t num_keys = unit_place.sequence.num_keys, begin = std::min(chunk * chunk_, num_keys);
    const BackwardTask keys = task_at(unit_place, workspace(thread), nullptr);
    kernels_.begin_keys(keys, begin, std::min(begin + chunk_, num_keys));
    std::int64_t first_seen = blocks_;
    for (std::int64_t block = 0; block < blocks_; ++block) {
      const TaskPlace place = place_of_block(unit, block);
      if (place.num_rows == 0) break;
      const KeyRange chunks = chunks_of(place);
      const bool sees = chunk >= chunks.begin && chunk < chunks.end, sees_none = chunks.begin == chunks.end && chunk == 0;
      if (!sees && !sees_none) continue;
      std::byte* memory = sums(next != nullptr ? unit : thread, block);
      BackwardTask task = task_at(place, workspace(thread), memory);
      while (next != nullptr && next[block].load(std::memory_order_acquire) != chunk) {
        if (stop.should_stop(thread)) return false;
        std::this_thread::yield();
      }
      if (stop.should_stop(thread)) return false;
      if (sees_none || chunk == chunks.begin) kernels_.row_deltas(task);
      if (chunk == chunks.begin) std::memset(memory, 0, block_bytes_);
      if (sees) {
        first_seen = std::min(first_seen, block);
        AheadList ahead;
        if (kernels_.fetches_ahead) look_ahead(unit, chunk, first_seen, block, ahead);
        task.ahead = ahead.data();
        task.num_ahead = ahead.count();
        kernels_.add_rows(task);
      }
      if (problem_.scores.data == nullptr && (sees_none || chunk == chunks.end - 1)) kernels_.finish_rows(task);
      if (next != nullptr) next[block].store(chunk + 1, std::memory_order_release);
    }
    if (problem_.scores.data == nullptr) kernels_.finish_keys(keys);
    return true;
  }

  const BackwardProblem& problem_;
  const AttentionProblem& p_;
  const BackwardKernels& kernels_;
  const InterruptCheck& interrupted_;
  int threads_;
  std::int64_t group_, units_, chunk_, chunks_ = 0, blocks_ = 0;
  bool split_ = false;
  std::size_t block_bytes_ = 0, workspace_ = 0;
  TensorView delta_;
  std::optional<Scratch> deltas_, scratch_;
};

BackwardTask Backward::task_at(const TaskPlace& place, void* memory, void* sums) const {
  const std::size_t size = element_size(p_.kind), wide = accumulation_size(p_.kind), grad = p_.wide_out ? wide : size;
  const std::int64_t head = place.kv_head * group_, query = place.sequence.first_query, key = place.sequence.first_key;
  return BackwardTask{
      .forward = task_of(p_, place, memory),
      .grad_out = offset_of(problem_.grad_out, grad, place, head, query),
      .lse = offset_of(p_.lse, wide, place, head, query),
      .grad_lse = offset_of(problem_.grad_lse, wide, place, head, query),
      .delta = offset_of(delta_, wide, place, head, query),
      .query_sums = sums,
      .dq = offset_of(problem_.dq, size, place, head, query),
      .dk = offset_of(problem_.dk, size, place, place.kv_head, key),
      .dv = offset_of(problem_.dv, size, place, place.kv_head, key),
      .score_gradients = offset_of(problem_.scores, wide, place, head, query),
      .grad_token_stride = problem_.grad_out.token_stride,
      .grad_head_stride = problem_.grad_out.head_stride,
      .lse_token_stride = p_.lse.token_stride,
      .lse_head_stride = p_.lse.head_stride,
      .grad_lse_token_stride = problem_.grad_lse.token_stride,
      .grad_lse_head_stride = problem_.grad_lse.head_stride,
      .delta_token_stride = delta_.token_stride,
      .delta_head_stride = delta_.head_stride,
      .dq_token_stride = problem_.dq.token_stride,
      .dq_head_stride = problem_.dq.head_stride,
      .dk_token_stride = problem_.dk.token_stride,
      .dv_token_stride = problem_.dv.token_stride,
      .score_token_stride = problem_.scores.token_stride,
      .score_head_stride = problem_.scores.head_stride,
      .wide_grad = p_.wide_out,
      .ahead = nullptr,
      .num_ahead = 0,
  };
}

// What comes after a block of rows with a chunk of keys, of which first_block is the first to see some: the next block of
// rows; and, a share for each block, the chunk that this thread goes on with, as far as can be told. What is written is not
// asked for: memory that is used for the first time has no pages yet, and each line would be looked for in vain.
void Backward::look_ahead(std::int64_t unit, std::int64_t chunk, std::int64_t first_block, std::int64_t block, AheadList& ahead) const {
  const std::size_t size = element_size(p_.kind), grad = p_.wide_out ? accumulation_size(p_.kind) : size;
  const auto rows = [&](const TaskPlace& at, bool first) {
    ahead.add_rows(p_.q, size, at, group_, p_.head_dim);
    ahead.add_rows(problem_.grad_out, grad, at, group_, p_.value_dim);
    if (first) ahead.add_rows(p_.out, grad, at, group_, p_.value_dim);
  };
  const TaskPlace next = block + 1 < blocks_ ? place_of_block(unit, block + 1) : TaskPlace{};
  if (next.num_rows > 0) rows(next, chunks_of(next).begin == chunk);
  const bool stays = !split_ && chunk + 1 < chunks_;  // with this unit
  const std::int64_t index = (split_ ? unit * chunks_ + chunk : unit) + threads_;
  const std::int64_t next_unit = stays ? unit : split_ ? index / chunks_ : index;
  const std::int64_t next_chunk = stays ? chunk + 1 : split_ ? index % chunks_ : 0;
  if (next_unit >= units_) return;
  const TaskPlace at = place_of_block(next_unit, 0);
  const std::int64_t first = next_chunk * chunk_, count = std::clamp<std::int64_t>(at.sequence.num_keys - first, 0, chunk_);
  const std::int64_t parts = blocks_ - first_block, part = block - first_block, key = at.sequence.first_key + first;
  const std::int64_t begin = key + count * part / parts, end = key + count * (part + 1) / parts;
  ahead.add(p_.k, size, at.batch, at.kv_head, begin, end, p_.head_dim);
  ahead.add(p_.v, size, at.batch, at.kv_head, begin, end, p_.value_dim);
  if (next.num_rows == 0 && next_chunk == 0) rows(at, true);
}

}  // namespace

void attention_backward(const BackwardProblem& problem, const InterruptCheck& interrupted) {
  if (problem.forward.batch == 0 || problem.forward.num_heads == 0) return;
  const Backward backward(problem, interrupted);
  backward.run();
  backward.clear_rest();
  if (problem.dsinks != nullptr) backward.fill_sinks();
}

void score_gradients(const BackwardProblem& problem, const InterruptCheck& interrupted) {
  if (problem.forward.batch == 0 || problem.forward.num_heads == 0 || problem.forward.num_queries == 0) return;
  const Backward backward(problem, interrupted);
  backward.clear_rest();
  backward.run();
}

}  // namespace headway
