// How a problem is cut into tasks, and in which order they are handed out.
#pragma once

#include <cstdint>

#include "problem.hpp"

namespace headway {

struct Plan {
  std::int64_t rows;             // query rows of one key head: num_queries * group
  std::int64_t rows_per_task;
  std::int64_t tasks_per_head;
  std::int64_t num_tasks;        // batch * num_kv_heads * tasks_per_head
  std::int64_t num_spans;        // spans of keys that several threads work on at once; 1: a task stays in its thread
  int num_threads;
};

struct TaskPlace {
  std::int64_t batch, kv_head, first_row, num_rows;
  bool cold;  // its thread has not read these keys and values yet
};

// At most max_threads threads, and fewer where the work would not pay for waking them.
Plan make_plan(const AttentionProblem& problem, const KindKernels& kernels, int max_threads);

// Task `index` in the order of work: head by head, so that the keys and values of one head stay in cache, and within
// a head the last rows first, since under the causal mask they take longest.
TaskPlace place_of(const Plan& plan, const AttentionProblem& problem, std::int64_t index);

}  // namespace headway
