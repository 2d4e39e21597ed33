// What the files of the numeric executable share: one attention problem with its memory, and what they check.
#pragma once

#include <string>
#include <vector>

#include "../core/attention.hpp"
#include "../core/dispatch.hpp"
#include "guarded.hpp"

namespace headway {

inline const auto kNever = [] { return false; };

inline const char* name_of(ElementKind kind) {
  constexpr const char* kNames[] = {"float32", "float64", "float16", "bfloat16", "int8", "fp8_e4m3"};
  return kNames[static_cast<int>(kind)];
}

// Whether the ISA in use multiplies bfloat16 numbers in pairs: its instructions take subnormal numbers for 0.
inline bool multiplies_pairs(ElementKind kind) {
  return kind == ElementKind::kBFloat16 && kernels().kinds[static_cast<int>(kind)].begin != nullptr &&
         kernels().base != nullptr;
}

// One head of one batch entry: q (queries, head_dim), k and v (keys, width), out, lse. The last query sees the last key.
struct OneHead {
  std::vector<char> q, k, v, out, lse;
  std::int64_t position;
  AttentionProblem p{};

  OneHead(ElementKind kind, std::int64_t queries, std::int64_t keys, std::int64_t head_dim, std::int64_t value_dim,
          ElementKind key_kind)
      : position(keys - queries) {
    const auto sized = [](std::int64_t count, std::size_t size) { return std::vector<char>(static_cast<std::size_t>(count) * size); };
    const std::size_t size = element_size(kind), key_size = element_size(key_kind);
    q = sized(queries * head_dim, size);
    k = sized(keys * head_dim, key_size);
    v = sized(keys * value_dim, key_size);
    out = sized(queries * value_dim, 8);
    lse = sized(queries, 8);
    p.kind = kind;
    p.key_kind = key_kind;
    p.batch = p.num_heads = p.num_kv_heads = 1;
    p.num_queries = queries;
    p.num_keys = keys;
    p.head_dim = head_dim;
    p.value_dim = value_dim;
    p.q = {q.data(), 0, 0, head_dim};
    p.k = {k.data(), 0, 0, head_dim};
    p.v = {v.data(), 0, 0, value_dim};
    p.out = {out.data(), 0, 0, value_dim};
    p.lse = {lse.data(), 0, 0, 1};
    p.positions = &position;
    p.scale = 1;
    p.right = 0;
  }
  OneHead(ElementKind kind, std::int64_t queries, std::int64_t keys, std::int64_t head_dim, std::int64_t value_dim)
      : OneHead(kind, queries, keys, head_dim, value_dim, kind) {
    fill(q.data(), kind, queries * head_dim, 1);
    fill(k.data(), kind, keys * head_dim, 2);
    fill(v.data(), kind, keys * value_dim, 3);
  }
  OneHead(const OneHead&) = delete;
  OneHead& operator=(const OneHead&) = delete;
};

// Counts the good and the bad, and says which were bad.
struct Report {
  int passed = 0, failed = 0;
  void check(bool good, const std::string& what, ElementKind kind, double figure = 0) {
    ++(good ? passed : failed);
    if (!good) std::printf("FAILED %s %s %s: %g\n", kernels().name, name_of(kind), what.c_str(), figure);
  }
};

// Each for one kind of element, with the ISA in use.
void check_conversions(ElementKind kind, Report& report);
void check_functions(ElementKind kind, Report& report);
void check_hiding(ElementKind kind, Report& report);
void check_bits(ElementKind kind, Report& report);
void check_float_mode(ElementKind kind, Report& report);

}  // namespace headway
