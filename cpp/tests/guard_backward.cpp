// The backward pass of every case of the guard-page executable: gradients each between unreadable pages.
#include <algorithm>
#include <cmath>
#include <vector>

#include "../core/backward.hpp"
#include "guarded.hpp"
#include "plain_loops.hpp"

namespace headway {
namespace {

using Numbers = std::vector<double>;

// An array of (batch, heads, tokens, width), or packed (tokens, heads, width), against an unreadable page.
struct Gradient {
  std::int64_t heads, tokens, width;
  std::size_t count;
  Guarded memory;
  TensorView view;
  Numbers wanted;

  Gradient(const AttentionProblem& p, ElementKind kind, std::int64_t num_heads, bool of_queries, std::int64_t columns, bool at_end)
      : heads(num_heads),
        tokens(of_queries ? p.num_queries : p.num_keys),
        width(columns),
        count(static_cast<std::size_t>(heads * width * (p.query_begins != nullptr ? (of_queries ? p.query_begins : p.key_begins)[p.batch]
                                                                                 : p.batch * tokens))),
        memory(count * element_size(kind), at_end),
        view(p.query_begins != nullptr ? TensorView{memory.data(), 0, width, heads * width}
                                       : TensorView{memory.data(), heads * tokens * width, tokens * width, width}),
        wanted(count) {}

  double& at(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d) {
    return wanted[static_cast<std::size_t>(b * view.batch_stride + h * view.head_stride + t * view.token_stride + d)];
  }
  // The largest error, relative to the largest number where that is above 1; NaN counts.
  double error(ElementKind kind) const {
    double worst = 0, largest = 1;
    for (const double x : wanted) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < count; ++i) {
      const double off = std::abs(read(memory.data(), kind, static_cast<std::int64_t>(i)) - wanted[i]) / largest;
      worst = off <= worst ? worst : off;
    }
    return worst;
  }
};

// What score_row makes of a product, of which it is a function: its derivative.
double flatness(const AttentionProblem& p, std::int64_t b, std::int64_t h, const Entry& entry, std::int64_t i, std::int64_t j) {
  if (p.softcap == 0) return 1;
  const std::int64_t kv = h / (p.num_heads / p.num_kv_heads);
  double score = 0;
  for (std::int64_t d = 0; d < p.head_dim; ++d) {
    score += element(p.q, p.kind, b, h, entry.first_query + i, d) * element(p.k, p.kind, b, kv, entry.first_key + j, d);
  }
  const double t = std::tanh(score * *p.scale / p.softcap);
  return 1 - t * t;
}

}  // namespace

double gradient_error(const AttentionProblem& p, bool at_end) {
  const ElementKind kind = p.kind, wide = accumulation_size(kind) == 8 ? ElementKind::kFloat64 : ElementKind::kFloat32;
  Gradient grad(p, kind, p.num_heads, true, p.value_dim, at_end), grad_lse(p, wide, p.num_heads, true, 1, at_end);
  Gradient dq(p, kind, p.num_heads, true, p.head_dim, at_end), dk(p, kind, p.num_kv_heads, false, p.head_dim, at_end);
  Gradient dv(p, kind, p.num_kv_heads, false, p.value_dim, at_end);
  const bool scored = p.query_begins == nullptr;
  Gradient scores(p, wide, p.num_heads, true, scored ? p.num_keys : 0, at_end);
  const Guarded sinks(static_cast<std::size_t>(p.num_heads) * sizeof(double), at_end);
  Numbers dsinks(static_cast<std::size_t>(p.num_heads));
  fill(grad.memory.data(), kind, static_cast<std::int64_t>(grad.count), 5);
  fill(grad_lse.memory.data(), wide, static_cast<std::int64_t>(grad_lse.count), 6);

  Numbers row_scores, dw(static_cast<std::size_t>(p.num_keys));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Entry entry = entry_of(p, b);
    for (std::int64_t h = 0; h < p.num_heads; ++h) {
      const std::int64_t kv = h / (p.num_heads / p.num_kv_heads);
      for (std::int64_t i = 0; i < entry.num_queries; ++i) {
        const std::int64_t row = entry.first_query + i;
        const double lse = score_row(p, b, h, i, row_scores), at_lse = element(grad_lse.view, wide, b, h, row, 0);
        double delta = 0;
        for (std::int64_t j = 0; j < entry.num_keys; ++j) {
          const auto at = static_cast<std::size_t>(j);
          dw[at] = 0;
          if (row_scores[at] == -kInfinity) continue;
          const double weight = std::exp(row_scores[at] - lse), kept = kept_share(p, b, h, i, j);
          for (std::int64_t d = 0; d < p.value_dim; ++d) {
            const double g = element(grad.view, kind, b, h, row, d);
            dw[at] += g * element(p.v, kind, b, kv, entry.first_key + j, d) * kept;
            dv.at(b, kv, entry.first_key + j, d) += weight * kept * g;
          }
          delta += weight * dw[at];
        }
        if (p.sinks != nullptr && p.sinks[h] > -kInfinity) {
          dsinks[static_cast<std::size_t>(h)] += std::exp(p.sinks[h] - lse) * (at_lse - delta);
        }
        for (std::int64_t j = 0; j < entry.num_keys; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (row_scores[at] == -kInfinity) continue;
          const double ds = std::exp(row_scores[at] - lse) * (dw[at] - delta + at_lse);
          if (scored) scores.at(b, h, row, j) = ds;
          const double factor = ds * flatness(p, b, h, entry, i, j) * *p.scale;
          for (std::int64_t d = 0; d < p.head_dim; ++d) {
            dq.at(b, h, row, d) += factor * element(p.k, kind, b, kv, entry.first_key + j, d);
            dk.at(b, kv, entry.first_key + j, d) += factor * element(p.q, kind, b, h, row, d);
          }
        }
      }
    }
  }

  const auto never = [] { return false; };
  BackwardProblem problem{p, grad.view, grad_lse.view, dq.view, dk.view, dv.view, nullptr, {}};
  if (p.sinks != nullptr) problem.dsinks = reinterpret_cast<double*>(sinks.data());
  attention_backward(problem, never);
  double worst = 0;
  const auto take = [&](double error, double allowed) { worst = error / allowed <= worst ? worst : error / allowed; };
  for (const Gradient* each : {&dq, &dk, &dv}) take(each->error(kind), 2 * tolerance(kind));
  for (std::size_t h = 0; h < dsinks.size() && p.sinks != nullptr; ++h) {
    take(distance(problem.dsinks[h], dsinks[h]), std::max(2 * tolerance(kind), 1e-4));
  }
  if (scored) {
    problem.scores = scores.view;
    score_gradients(problem, never);
    take(scores.error(wide), 2 * tolerance(kind));  // the context was rounded
  }
  return worst;
}

}  // namespace headway
