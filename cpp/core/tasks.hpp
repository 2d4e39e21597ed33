// From problems to the tasks of the kernels.
#pragma once

#include "plan.hpp"

namespace headway {

inline std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Throws std::bad_alloc where sizes of workspaces might wrap round.
void check_widths(const AttentionProblem& problem);

// Of a batch entry's head, from its token `token` on.
void* offset(const TensorView& view, std::size_t size, std::int64_t batch, std::int64_t head, std::int64_t token);

AttentionTask task_of(const AttentionProblem& problem, const TaskPlace& place, void* workspace);

}  // namespace headway
