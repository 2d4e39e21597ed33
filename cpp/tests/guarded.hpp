// What the cases of the guard-page executable share: memory between unreadable pages, and numbers of every kind.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../core/problem.hpp"
#include "../kernels/elements.hpp"

namespace headway {

// Memory between two unreadable pages, placed against the one or the other.
class Guarded {
 public:
  Guarded(std::size_t bytes, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t body = (bytes + page - 1) / page * page;
    size_ = body + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    // Of no bytes there is nothing to open; emulators refuse to.
    if (base_ == MAP_FAILED || (body > 0 && mprotect(base_ + page, body, PROT_READ | PROT_WRITE) != 0)) {
      std::perror("mmap");
      std::abort();
    }
    data_ = base_ + page + (at_end ? body - bytes : 0);
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  char* data() const { return data_; }

 private:
  char* base_;
  char* data_;
  std::size_t size_;
};

inline double read(const char* p, ElementKind kind, std::int64_t i) {
  switch (kind) {
    case ElementKind::kFloat64: return reinterpret_cast<const double*>(p)[i];
    case ElementKind::kFloat32: return static_cast<double>(reinterpret_cast<const float*>(p)[i]);
    case ElementKind::kFloat16: return static_cast<double>(widen(reinterpret_cast<const Half*>(p)[i]));
    case ElementKind::kBFloat16: return static_cast<double>(widen(reinterpret_cast<const BFloat16*>(p)[i]));
    case ElementKind::kInt8: return reinterpret_cast<const std::int8_t*>(p)[i];
    case ElementKind::kFloat8: return static_cast<double>(widen(reinterpret_cast<const Float8*>(p)[i]));
  }
  return 0;
}

inline void write(char* p, ElementKind kind, std::int64_t i, double x) {
  switch (kind) {
    case ElementKind::kFloat64: reinterpret_cast<double*>(p)[i] = x; break;
    case ElementKind::kFloat32: reinterpret_cast<float*>(p)[i] = static_cast<float>(x); break;
    case ElementKind::kFloat16: narrow(static_cast<float>(x), reinterpret_cast<Half*>(p)[i]); break;
    case ElementKind::kBFloat16: narrow(static_cast<float>(x), reinterpret_cast<BFloat16*>(p)[i]); break;
    case ElementKind::kInt8: reinterpret_cast<std::int8_t*>(p)[i] = static_cast<std::int8_t>(x * 16); break;
    case ElementKind::kFloat8: std::abort();  // nothing is written in it
  }
}

// Multiples of 1/16 below 1 in size: exact in every type. A plain generator, the same on every machine.
inline void fill(char* p, ElementKind kind, std::int64_t count, std::uint32_t seed) {
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    write(p, kind, i, (static_cast<double>(state >> 27) - 15.5) / 16);
  }
}

// Allowed to results of size 1, of sums over a few hundred numbers.
inline double tolerance(ElementKind kind) {
  switch (kind) {
    case ElementKind::kFloat64: return 1e-13;
    case ElementKind::kFloat32: return 4e-6;
    case ElementKind::kFloat16: return 1e-3;
    case ElementKind::kBFloat16: return 8e-3;
    case ElementKind::kInt8:
    case ElementKind::kFloat8: break;  // the results are float32
  }
  return 0;
}

// Runs cases, every nth one of them, and counts the good and the bad.
struct Tally {
  int every = 1, seen = 0, passed = 0, failed = 0;

  template <class Case>
  void count(const Case& good) {
    if (seen++ % every == 0) ++(good() ? passed : failed);
  }
};

// Every size of the projection with this kind, memory against its end or its beginning, with the ISA in use.
void run_projections(ElementKind kind, bool at_end, Tally& tally);

// Every width of the rotary embedding, likewise.
void run_rotations(ElementKind kind, bool at_end, Tally& tally);

// Every option of the attention, likewise.
void run_options(ElementKind kind, bool at_end, Tally& tally);

// The gradients of a problem whose out and lse are filled: the largest error, as a share of what is allowed.
double gradient_error(const AttentionProblem& p, bool at_end);

// Caches of every kind that goes with these queries, likewise.
void run_caches(ElementKind kind, bool at_end, Tally& tally);

// Numbers of this kind made into 8 bits, likewise; no ISA has a part in it.
void run_quantize(ElementKind kind, bool at_end, Tally& tally);

}  // namespace headway
