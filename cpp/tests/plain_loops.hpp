// Attention by plain loops in double, with every option: what the guard-page executable compares the kernels with.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "guarded.hpp"

namespace headway {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Where a batch entry's tokens lie.
struct Entry {
  std::int64_t first_query, num_queries, first_key, num_keys;
};
inline Entry entry_of(const AttentionProblem& p, std::int64_t b) {
  if (p.query_begins == nullptr) return {0, p.num_queries, 0, p.key_counts != nullptr ? p.key_counts[b] : p.num_keys};
  return {p.query_begins[b], p.query_begins[b + 1] - p.query_begins[b], p.key_begins[b],
          p.key_begins[b + 1] - p.key_begins[b]};
}

inline double element(const TensorView& view, ElementKind kind, std::int64_t b, std::int64_t h, std::int64_t t,
                      std::int64_t d) {
  return read(static_cast<const char*>(view.data), kind,
              b * view.batch_stride + h * view.head_stride + t * view.token_stride + d);
}

inline double mask_element(const MaskView& mask, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const std::int64_t at = b * mask.batch_stride + h * mask.head_stride + i * mask.token_stride + j * mask.key_stride;
  const auto* p = static_cast<const char*>(mask.data);
  if (mask.kind == MaskKind::kBool) return p[at] != 0 ? 0 : -kInfinity;
  return read(p, static_cast<ElementKind>(mask.kind), at);
}

// One row by plain loops: its scores, -inf where hidden, and their log-sum-exp with the sink.
inline double score_row(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i,
                        std::vector<double>& scores) {
  const Entry entry = entry_of(p, b);
  const std::int64_t kv = h / (p.num_heads / p.num_kv_heads), position = p.positions[b] + i;
  scores.assign(static_cast<std::size_t>(p.num_keys), -kInfinity);
  double top = p.sinks != nullptr ? p.sinks[h] : -kInfinity;
  for (std::int64_t j = 0; j < entry.num_keys; ++j) {
    if (p.left < kNoLimit && j < position - p.left) continue;
    if (p.right < kNoLimit && j > position + p.right) continue;
    double score = 0;
    for (std::int64_t d = 0; d < p.head_dim; ++d) {
      score += element(p.q, p.kind, b, h, entry.first_query + i, d) * element(p.k, p.kind, b, kv, entry.first_key + j, d);
    }
    score *= *p.scale;
    if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
    if (p.slopes != nullptr) score -= p.slopes[b * p.num_heads + h] * std::abs(static_cast<double>(position - j));
    if (p.mask.data != nullptr) score += mask_element(p.mask, b, h, i, j);
    scores[static_cast<std::size_t>(j)] = score;
    top = std::max(top, score);
  }
  if (top == -kInfinity) return top;
  double sum = p.sinks != nullptr ? std::exp(p.sinks[h] - top) : 0;
  for (const double score : scores) sum += std::exp(score - top);
  return top + std::log(sum);
}

// What dropout makes of the weight of query i and key j: a factor on it. Philox4x32-10, see kernels/philox.hpp.
inline double kept_share(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  if (p.dropout == 0) return 1;
  std::uint64_t c[] = {static_cast<std::uint64_t>(j) / 4, static_cast<std::uint64_t>(p.positions[b] + i),
                       static_cast<std::uint64_t>(h), static_cast<std::uint64_t>(b)};
  constexpr std::uint64_t kLow = 0xffffffff;
  std::uint64_t low = p.seed & kLow, high = p.seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = 0xD2511F53 * (c[0] & kLow), second = 0xCD9E8D57 * (c[2] & kLow);
    c[0] = (second >> 32) ^ c[1] ^ low;
    c[1] = second;
    c[2] = (first >> 32) ^ c[3] ^ high;
    c[3] = first;
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  const bool kept = static_cast<double>(c[j % 4] & kLow) >= std::nearbyint(p.dropout * 0x1p32);
  return kept ? 1 / (1 - p.dropout) : 0;
}

// 0 for equal numbers, infinities too; NaN for NaN. Relative where numbers are large.
inline double distance(double got, double wanted) {
  return got == wanted ? 0 : std::abs(got - wanted) / std::max(1.0, std::abs(wanted));
}

// Calls check(b, h, row of out, scores, lse) for every row of the problem; the largest error it returns, NaN included.
template <class Check>
double worst_of(const AttentionProblem& p, const Check& check) {
  double worst = 0;
  std::vector<double> scores;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Entry entry = entry_of(p, b);
    for (std::int64_t h = 0; h < p.num_heads; ++h) {
      for (std::int64_t i = 0; i < entry.num_queries; ++i) {
        const double lse = score_row(p, b, h, i, scores);
        const double error = check(b, h, entry.first_query + i, scores, lse);
        worst = error <= worst ? worst : error;
      }
    }
  }
  return worst;
}

// Of the contexts in p.out, whose elements are of p.kind, and of the lse.
inline double context_error(const AttentionProblem& p) {
  const ElementKind wide = p.kind == ElementKind::kFloat64 ? p.kind : ElementKind::kFloat32;
  std::vector<double> context;
  return worst_of(p, [&](std::int64_t b, std::int64_t h, std::int64_t row, const auto& scores, double lse) {
    const Entry entry = entry_of(p, b);
    const std::int64_t kv = h / (p.num_heads / p.num_kv_heads);
    context.assign(static_cast<std::size_t>(p.value_dim), 0);
    for (std::int64_t j = 0; j < entry.num_keys; ++j) {
      const double score = scores[static_cast<std::size_t>(j)];
      if (score == -kInfinity) continue;
      const double weight = std::exp(score - lse) * kept_share(p, b, h, row - entry.first_query, j);
      for (std::int64_t d = 0; d < p.value_dim; ++d) {
        context[static_cast<std::size_t>(d)] += weight * element(p.v, p.kind, b, kv, entry.first_key + j, d);
      }
    }
    double worst = distance(element(p.lse, wide, b, h, row, 0), lse);
    for (std::int64_t d = 0; d < p.value_dim; ++d) {
      const double error = std::abs(element(p.out, p.kind, b, h, row, d) - context[static_cast<std::size_t>(d)]);
      worst = error <= worst ? worst : error;
    }
    return worst;
  });
}

// Of the matrix in p.out, whose elements are of `kind`: scores, or weights.
inline double matrix_error(const AttentionProblem& p, ElementKind kind, bool weights) {
  return worst_of(p, [&](std::int64_t b, std::int64_t h, std::int64_t row, const auto& scores, double lse) {
    double worst = 0;
    for (std::int64_t j = 0; j < p.num_keys; ++j) {
      const double score = scores[static_cast<std::size_t>(j)], got = element(p.out, kind, b, h, row, j);
      const double share = weights ? kept_share(p, b, h, row - entry_of(p, b).first_query, j) : 1;
      const double wanted = !weights ? score : score == -kInfinity ? 0 : std::exp(score - lse) * share;
      const double error = distance(got, wanted);
      worst = error <= worst ? worst : error;
    }
    return worst;
  });
}

}  // namespace headway
