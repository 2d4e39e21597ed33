// How a problem is cut into tasks, and in which order they are handed out.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace headway {

// One batch entry: its first token in q and in k, and how many there are.
struct Sequence {
  std::int64_t first_query, num_queries, first_key, num_keys;
};
Sequence sequence_of(const AttentionProblem& problem, std::int64_t batch);

struct KeyRange {
  std::int64_t begin, end;  // equal where it is empty
};
// The keys that some token from `first` to `last` sees.
KeyRange visible_keys(std::int64_t first_position, std::int64_t left, std::int64_t right, std::int64_t num_keys,
                      std::int64_t first, std::int64_t last);

struct Plan {
  std::int64_t rows_per_task;
  std::int64_t tasks_per_head;           // where all batch entries have as many
  std::vector<std::int64_t> first_tasks;  // else (batch + 1): the first task of each entry
  std::int64_t num_tasks;
  std::int64_t heads_together;  // key heads whose tasks for the same rows follow each other, in one thread
  std::int64_t num_spans;  // of a task, at most, that several threads work on at once; 1: it stays in its thread
  int num_threads;
};

struct TaskPlace {
  std::int64_t batch, kv_head, first_row, num_rows;
  Sequence sequence;
  bool cold;  // its thread has not read these keys and values yet, or others since
};

// The threads that the work of a problem pays for, at most max_threads.
int threads_for(const AttentionProblem& problem, int max_threads);

// Whether heads that go together keep a mask in the lanes, see AttentionTask::kept_mask. Then it pays for more of them than
// keep their keys and values in cache: moving a mask into the lanes costs more than fetching keys does.
bool keeps_mask(const AttentionProblem& problem);

// At most max_threads threads, and fewer where the work would not pay for waking them.
Plan make_plan(const AttentionProblem& problem, const KindKernels& kernels, int max_threads);

// Task `index` in the order of work: head by head, so that the keys and values of one head stay in cache, and within
// a head the last rows first, since under the causal mask they take longest. Heads that share a mask go together, so that
// the mask of a block of rows is fetched once for them: all of them if it is kept, else as many as their keys and values
// stay in cache together.
TaskPlace place_of(const Plan& plan, const AttentionProblem& problem, std::int64_t index);

}  // namespace headway
