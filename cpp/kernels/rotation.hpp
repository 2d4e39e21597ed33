// Rotary embedding of rows by given cosines and sines. No sum here is fused, so that all ISAs give the same bits.
#pragma once

#include "kernel_table.hpp"

namespace headway {
namespace {

// Numbers i .. i + n - 1 of the first half with those of the second half, num_pairs further on.
template <class S, class Element, class Out>
inline void rotate_halves(const Element* x, Out* out, const typename S::Real* cosines, const typename S::Real* sines,
                          std::int64_t num_pairs, std::int64_t i, int n) {
  const auto a = S::load_elements(x + i, n), b = S::load_elements(x + num_pairs + i, n);
  const auto cosine = S::load_elements(cosines + i, n), sine = S::load_elements(sines + i, n);
  S::store_elements(out + i, S::sub(S::mul(a, cosine), S::mul(b, sine)), n);
  S::store_elements(out + num_pairs + i, S::add(S::mul(b, cosine), S::mul(a, sine)), n);
}

// Numbers i .. i + n - 1 with their neighbours; the sine of the first of a pair has its sign turned already.
template <class S, class Element, class Out>
inline void rotate_neighbours(const Element* x, Out* out, const typename S::Real* cosines,
                              const typename S::Real* sines, std::int64_t i, int n) {
  const auto a = S::load_elements(x + i, n);
  const auto cosine = S::load_elements(cosines + i, n), sine = S::load_elements(sines + i, n);
  S::store_elements(out + i, S::add(S::mul(a, cosine), S::mul(S::swap_pairs(a), sine)), n);
}

// x (num_rows, width) -> out (num_rows, width), the same cosines and sines for every row. Each vector is stored after
// what it comes from was loaded, and nothing else is read from there: out may be x.
template <class S, class Element, class Out>
void rotate_rows(const RotationTask& task) {
  const auto* cosines = static_cast<const typename S::Real*>(task.cosines);
  const auto* sines = static_cast<const typename S::Real*>(task.sines);
  const std::int64_t pairs = task.num_pairs, rotated = 2 * pairs;
  for (std::int64_t row = 0; row < task.num_rows; ++row) {
    const auto* x = static_cast<const Element*>(task.x) + row * task.x_stride;
    auto* out = static_cast<Out*>(task.out) + row * task.out_stride;
    std::int64_t i = 0;
    if (task.interleaved) {
      for (; i + S::kLanes <= rotated; i += S::kLanes) rotate_neighbours<S>(x, out, cosines, sines, i, S::kLanes);
      if (i < rotated) rotate_neighbours<S>(x, out, cosines, sines, i, static_cast<int>(rotated - i));
    } else {
      for (; i + S::kLanes <= pairs; i += S::kLanes) rotate_halves<S>(x, out, cosines, sines, pairs, i, S::kLanes);
      if (i < pairs) rotate_halves<S>(x, out, cosines, sines, pairs, i, static_cast<int>(pairs - i));
    }
    if (task.x == task.out) continue;
    for (i = rotated; i < task.width; ++i) {
      if constexpr (sizeof(Element) == sizeof(Out)) {
        out[i] = x[i];
      } else {
        out[i] = widen(x[i]);
      }
    }
  }
}

template <class S, class Element>
void rotate(const RotationTask& task) {
  if constexpr (sizeof(Element) != sizeof(typename S::Real)) {
    if (task.wide_out) return rotate_rows<S, Element, typename S::Real>(task);
  }
  rotate_rows<S, Element, Element>(task);
}

}  // namespace
}  // namespace headway
