// Runs attention problems: the plan's tasks over the threads, each with its workspace.
#pragma once

#include <functional>

#include "../kernels/kernel_table.hpp"
#include "problem.hpp"

namespace headway {

// `interrupted` is asked now and then in the calling thread; yes ends the call with Interrupted (parallel.hpp).
// std::bad_alloc comes before any work.
using InterruptCheck = std::function<bool()>;

// Fills problem.out and, where it has data, problem.lse.
void attention(const AttentionProblem& problem, const InterruptCheck& interrupted);

// Fills problem.out, (batch, num_heads, num_queries, num_keys), with what `stage` names; v and value_dim are not used.
void attention_scores(const AttentionProblem& problem, ScoreStage stage, const InterruptCheck& interrupted);

}  // namespace headway
