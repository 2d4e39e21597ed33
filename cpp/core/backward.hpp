// The backward pass of an attention problem.
#pragma once

#include "attention.hpp"

namespace headway {

struct BackwardProblem {
  AttentionProblem forward;  // its out and lse hold the results; wide_out: out and grad_out have the accumulation type
  TensorView grad_out;       // (batch, num_heads, num_queries, value_dim)
  TensorView grad_lse;       // (batch, num_heads, num_queries) in the accumulation type, or no data
  TensorView dq, dk, dv;     // like q, k and v
  double* dsinks = nullptr;  // (num_heads), or null
  TensorView scores;         // (batch, num_heads, num_queries, num_keys) in the accumulation type, see score_gradients
};

// Fills dq, dk, dv and, unless it is null, dsinks. Works in memory of the order of queries times head_dim.
void attention_backward(const BackwardProblem& problem, const InterruptCheck& interrupted);

// Fills scores alone: gradients at the scores that the softmax got, 0 where a key is hidden. Not for packed sequences.
void score_gradients(const BackwardProblem& problem, const InterruptCheck& interrupted);

}  // namespace headway
