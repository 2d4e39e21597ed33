// Runs every kernel on buffers that end right before an unreadable page, and on buffers that begin right after one:
// a single byte read or written outside ends the process. The results are compared with plain loops in double.
//
//   guard_pages [--every N] [ISA ...]   every Nth case, for slow machines such as emulated ones; these ISAs only
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../core/attention.hpp"
#include "../core/dispatch.hpp"
#include "../core/parallel.hpp"
#include "guarded.hpp"
#include "plain_loops.hpp"

namespace {

using namespace headway;

struct Shape {
  std::int64_t heads, kv_heads, queries, keys, head_dim, value_dim;
};

bool run(const Shape& s, ElementKind kind, bool causal, bool at_end) {
  const std::size_t size = element_size(kind), wide = kind == ElementKind::kFloat64 ? 8 : 4;
  const std::int64_t q_count = s.heads * s.queries * s.head_dim, k_count = s.kv_heads * s.keys * s.head_dim;
  const std::int64_t v_count = s.kv_heads * s.keys * s.value_dim, rows = s.heads * s.queries;
  const auto bytes = [](std::int64_t count, std::size_t each) { return static_cast<std::size_t>(count) * each; };
  const Guarded q(bytes(q_count, size), at_end), k(bytes(k_count, size), at_end), v(bytes(v_count, size), at_end);
  const Guarded out(bytes(rows * s.value_dim, size), at_end), lse(bytes(rows, wide), at_end);
  const Guarded weights(bytes(rows * s.keys, size), at_end), scores(bytes(rows * s.keys, wide), at_end);
  fill(q.data(), kind, q_count, 1);
  fill(k.data(), kind, k_count, 2);
  fill(v.data(), kind, v_count, 3);
  const std::int64_t position = s.keys - s.queries;
  AttentionProblem p{};
  p.kind = p.key_kind = kind;
  p.batch = 1;
  p.num_heads = s.heads;
  p.num_kv_heads = s.kv_heads;
  p.num_queries = s.queries;
  p.num_keys = s.keys;
  p.head_dim = s.head_dim;
  p.value_dim = s.value_dim;
  p.q = {q.data(), 0, s.queries * s.head_dim, s.head_dim};
  p.k = {k.data(), 0, s.keys * s.head_dim, s.head_dim};
  p.v = {v.data(), 0, s.keys * s.value_dim, s.value_dim};
  p.out = {out.data(), 0, s.queries * s.value_dim, s.value_dim};
  p.lse = {lse.data(), 0, s.queries, 1};
  p.positions = &position;
  p.scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  p.right = causal ? 0 : kNoLimit;
  const auto never = [] { return false; };
  attention(p, never);
  const double error = context_error(p), gradient = gradient_error(p, at_end);
  p.out = {weights.data(), 0, s.queries * s.keys, s.keys};
  attention_scores(p, ScoreStage::kWeights, never);
  p.out.data = scores.data();
  p.wide_out = true;
  attention_scores(p, ScoreStage::kMasked, never);
  if (error <= tolerance(kind) && gradient <= 1) return true;
  std::printf("FAILED %s kind %d heads %d:%d queries %d keys %d widths %d, %d causal %d: error %g, gradients %g\n", kernels().name,
              static_cast<int>(kind), static_cast<int>(s.heads), static_cast<int>(s.kv_heads),
              static_cast<int>(s.queries), static_cast<int>(s.keys), static_cast<int>(s.head_dim),
              static_cast<int>(s.value_dim), causal, error, gradient);
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t widths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 80};
  const std::int64_t tokens[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 33, 47, 49, 63, 64, 65, 129};
  Tally tally;
  std::vector<std::string> isas;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--every" && i + 1 < argc) {
      tally.every = std::atoi(argv[++i]);
    } else {
      isas.emplace_back(argv[i]);
    }
  }
  if (isas.empty()) isas = available_isas();
  if (tally.every < 1) {
    std::printf("--every: expected a number of 1 or more\n");
    return 2;
  }
  constexpr ElementKind kKinds[] = {ElementKind::kFloat32, ElementKind::kFloat64, ElementKind::kFloat16,
                                    ElementKind::kBFloat16};
  set_num_threads(1);
  for (const auto kind : kKinds) {
    for (const bool at_end : {true, false}) run_quantize(kind, at_end, tally);
  }
  for (const std::string& isa : isas) {
    set_isa(isa);
    for (const auto kind : kKinds) {
      for (const bool at_end : {true, false}) {
        run_projections(kind, at_end, tally);
        run_rotations(kind, at_end, tally);
        run_options(kind, at_end, tally);
        run_caches(kind, at_end, tally);
        for (const bool causal : {true, false}) {
          // Every width with a few lengths, every length with a few widths, then what crosses blocks and spans.
          for (const auto width : widths) {
            for (const std::int64_t keys : {1, 6, 67}) {
              tally.count([&] { return run({1, 1, keys, keys, width, width}, kind, causal, at_end); });
              tally.count([&] { return run({3, 1, 2, keys, width, 81 - width}, kind, causal, at_end); });
            }
          }
          for (const auto queries : tokens) {
            for (const std::int64_t width : {3, 16}) {
              tally.count([&] { return run({1, 1, queries, queries, width, width}, kind, causal, at_end); });
              tally.count([&] { return run({2, 1, queries, 40, width, 5}, kind, causal, at_end); });
            }
          }
          for (const std::int64_t keys : {255, 257, 1023, 1025, 1301}) {
            tally.count([&] { return run({2, 1, 5, keys, 9, 18}, kind, causal, at_end); });
          }
          // Few rows over whole groups of keys and whole vectors of values, which are read where they lie.
          for (const std::int64_t heads : {1, 2, 3, 8}) {
            for (const std::int64_t keys : {128, 144, 1040}) {
              tally.count([&] { return run({heads, 1, 1, keys, 64, 64}, kind, causal, at_end); });
              tally.count([&] { return run({heads, 1, 1, keys, 34, 160}, kind, causal, at_end); });
            }
          }
        }
      }
    }
  }
  for (const std::string& isa : isas) std::printf("%s ", isa.c_str());
  std::printf("%d passed, %d failed\n", tally.passed, tally.failed);
  return tally.failed == 0 && tally.passed > 0 ? 0 : 1;
}
