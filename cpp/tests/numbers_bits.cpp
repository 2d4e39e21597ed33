// The numeric executable's checks of bits: what a row may not see, what keeps it company, and the caller's mode.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "../core/parallel.hpp"
#include "numbers.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headway {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void poison(std::vector<char>& rows, ElementKind kind, std::int64_t row, std::int64_t width, double x) {
  for (std::int64_t d = 0; d < width; ++d) write(rows.data(), kind, row * width + d, x);
}

bool same_rows(const OneHead& a, const OneHead& b, std::int64_t rows) {
  const auto count = [&](std::int64_t width, std::size_t size) { return static_cast<std::size_t>(rows * width) * size; };
  return std::memcmp(a.out.data(), b.out.data(), count(a.p.value_dim, element_size(a.p.kind))) == 0 &&
         std::memcmp(a.lse.data(), b.lse.data(), count(1, accumulation_size(a.p.kind))) == 0;
}

// Soft cap, slopes, a window and a sink, together.
constexpr double kSlope = 0.0625, kSink = 0.5;
void add_options(AttentionProblem& p) {
  p.softcap = 3;
  p.slopes = &kSlope;
  p.sinks = &kSink;
  p.left = 33;
}

}  // namespace

// What a row may not see leaves its bits alone; what it sees makes it NaN; a row that sees nothing is 0.
void check_hiding(ElementKind kind, Report& report) {
  for (const std::int64_t tokens : {1, 9, 40, 150}) {
    for (const bool options : {false, true}) {
      OneHead clean(kind, tokens, tokens, 5, 6);
      if (options) add_options(clean.p);
      attention(clean.p, kNever);
      for (const double bad : {kNan, std::numeric_limits<double>::infinity()}) {
        const std::int64_t first = tokens / 2;
        OneHead poisoned(kind, tokens, tokens, 5, 6);
        if (options) add_options(poisoned.p);
        for (std::int64_t row = first; row < tokens; ++row) {
          poison(poisoned.k, kind, row, 5, bad);
          poison(poisoned.v, kind, row, 6, bad);
        }
        attention(poisoned.p, kNever);
        report.check(same_rows(clean, poisoned, first), "rows before what is not finite", kind, bad);
        if (!std::isnan(bad)) continue;  // an infinite score may be -inf, and have weight 0
        std::int64_t finite = 0;
        for (std::int64_t i = first * 6; i < tokens * 6; ++i) finite += std::isfinite(read(poisoned.out.data(), kind, i));
        report.check(finite == 0, "rows that see what is not finite", kind, static_cast<double>(finite));
      }
    }
    // A mask hides one key from every row; its numbers may be anything.
    std::vector<char> mask(static_cast<std::size_t>(tokens), 1);
    mask[static_cast<std::size_t>(tokens / 3)] = 0;
    OneHead clean(kind, tokens, tokens, 5, 6), poisoned(kind, tokens, tokens, 5, 6);
    poison(poisoned.k, kind, tokens / 3, 5, kNan);
    poison(poisoned.v, kind, tokens / 3, 6, kNan);
    for (OneHead* one : {&clean, &poisoned}) {
      one->p.mask = {mask.data(), MaskKind::kBool, 0, 0, 0, 1};
      attention(one->p, kNever);
    }
    report.check(same_rows(clean, poisoned, tokens), "a key hidden by a mask", kind);
    if (tokens == 1) {
      const ElementKind wide = kind == ElementKind::kFloat64 ? kind : ElementKind::kFloat32;
      const bool empty = read(clean.out.data(), kind, 0) == 0 && std::isinf(read(clean.lse.data(), wide, 0));
      report.check(empty, "a row that sees nothing", kind);
    }
  }
  // Equal keys have equal weights at every magnitude: the context is the middle of the values 1 and 2.
  for (const double scale : {1.0, 1e4, 1e30}) {
    OneHead equal(kind, 1, 2, 3, 1);
    for (std::int64_t row = 0; row < 2; ++row) poison(equal.k, kind, row, 3, 0.75), write(equal.v.data(), kind, row, 1 + static_cast<double>(row));
    equal.p.scale = scale;
    attention(equal.p, kNever);
    report.check(read(equal.out.data(), kind, 0) == 1.5, "equal keys", kind, read(equal.out.data(), kind, 0));
  }
}

// A row has the same bits in one call and in chunks, decoded alone, and with two threads.
void check_bits(ElementKind kind, Report& report) {
  constexpr std::int64_t kTokens = 71;
  for (const bool options : {false, true}) {
    OneHead whole(kind, kTokens, kTokens, 19, 13), shared(kind, kTokens, kTokens, 19, 13);
    for (OneHead* one : {&whole, &shared}) {
      if (options) add_options(one->p);
      set_num_threads(one == &whole ? 1 : 2);
      attention(one->p, kNever);
    }
    set_num_threads(1);
    report.check(same_rows(whole, shared, kTokens), "two threads", kind);
    for (const std::int64_t chunk : {1, 2, 3, 17, 64}) {
      OneHead pieces(kind, kTokens, kTokens, 19, 13);
      if (options) add_options(pieces.p);
      for (std::int64_t row = 0; row < kTokens; row += chunk) {
        AttentionProblem p = pieces.p;
        const auto at = [&](const TensorView& view, std::size_t size) {
          return static_cast<char*>(view.data) + static_cast<std::size_t>(row * view.token_stride) * size;
        };
        p.num_queries = std::min(chunk, kTokens - row);
        p.num_keys = row + p.num_queries;
        p.positions = &row;
        p.q.data = at(p.q, element_size(kind));
        p.out.data = at(p.out, element_size(kind));
        p.lse.data = at(p.lse, accumulation_size(kind));
        attention(p, kNever);
      }
      report.check(same_rows(whole, pieces, kTokens), "chunks", kind, static_cast<double>(chunk));
    }
  }
}

// The caller rounds toward 0 and takes subnormal numbers for 0: the results do not, and the mode is as it was.
void check_float_mode([[maybe_unused]] ElementKind kind, [[maybe_unused]] Report& report) {
#if defined(__x86_64__) || defined(__aarch64__)
  OneHead usual(kind, 9, 9, 5, 6), strange(kind, 9, 9, 5, 6);
  const double tiny = kind == ElementKind::kFloat16 ? 0x1p-24 : kind == ElementKind::kFloat64 ? 0x1p-1060 : 0x1p-130;
  for (OneHead* one : {&usual, &strange}) {
    for (std::int64_t i = 0; i < 9; ++i) write(one->v.data(), kind, i * 6, tiny * static_cast<double>(i % 3 + 1));
  }
  attention(usual.p, kNever);
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr(), wanted = before | 0xe040;
  _mm_setcsr(wanted);
  attention(strange.p, kNever);
  const bool kept = ((_mm_getcsr() ^ wanted) & 0xffc0) == 0;
  _mm_setcsr(before);
#else
  std::uint64_t before, after;
  asm volatile("mrs %0, fpcr" : "=r"(before));
  const std::uint64_t wanted = before | 0x1c00000;  // FZ, and RMode = toward 0
  asm volatile("msr fpcr, %0" : : "r"(wanted));
  attention(strange.p, kNever);
  asm volatile("mrs %0, fpcr" : "=r"(after));
  asm volatile("msr fpcr, %0" : : "r"(before));
  const bool kept = after == wanted;
#endif
  report.check(kept, "the caller's floating-point mode", kind);
  report.check(same_rows(usual, strange, 9), "bits in a strange floating-point mode", kind);
#endif
}

}  // namespace headway
