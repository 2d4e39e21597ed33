// Few rows in pairs, by VDPBF16PS, see pairs_few.hpp. The scores change sides, too: keys are turned into lanes, pairs of
// their numbers as words of 32 bits.
//
//   scores (rows, keys)     = queries (rows, pairs) . K^T (pairs, keys in lanes)
//   context (rows, columns) += weights (rows, pairs of keys) . values (pairs of keys, columns in lanes)
#pragma once

#include "pair_weights.hpp"
#include "pairs_few.hpp"

namespace headway {
namespace {

struct FewDotPairs : FewPairs {
  // Rows of whole pairs at even places are read where they lie.
  static bool reads(const BFloat16* keys, std::ptrdiff_t stride, std::int64_t head_dim) {
    return head_dim % 2 == 0 && stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(keys) % 4 == 0;
  }

  // sum + the products of two pairs of bfloat16 numbers in each lane.
  static __m512 multiply(__m512 a, __m512 b, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  // Scores (16 keys, 16 lanes) of the keys from `key` on, into args.scores, which begins with key `begin`.
  template <int kPanelRows>
  [[gnu::noinline]] static void score_keys(const PairArgs& args, std::int64_t begin, std::int64_t key) {
    const std::ptrdiff_t stride = args.block->key_stride / 2;  // in words
    const auto* keys = reinterpret_cast<const float*>(args.block->keys + key * args.block->key_stride);
    const float* queries = args.panel->queries;  // (words, 16 lanes)
    Fetch& fetch = workspace_of<VecF32>(*args.task).fetch;
    const std::int64_t words = args.block->depth / 2;
    __m512 acc[kPanelRows];
#pragma GCC unroll 8
    for (int g = 0; g < kPanelRows; ++g) acc[g] = VecF32::zero();
    const auto add = [&](std::int64_t word, int width) __attribute__((always_inline)) {
      __m512 r[kSide];
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) {
        r[i] = VecF32::load_elements(keys + i * stride + word, width);
        fetch.line();
      }
      VecF32::transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) {
        if (i >= width) break;
#pragma GCC unroll 8
        for (int g = 0; g < kPanelRows; ++g) acc[g] = multiply(r[i], VecF32::set1(queries[(word + i) * kSide + g]), acc[g]);
      }
    };
    std::int64_t word = 0;
    for (; word + kSide <= words; word += kSide) add(word, kSide);
    if (word < words) add(word, static_cast<int>(words - word));
    __m512 out[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) out[i] = i < kPanelRows ? acc[i < kPanelRows ? i : 0] : VecF32::zero();
    VecF32::transpose(out);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) VecF32::store(args.scores + (key - begin + i) * kSide, out[i]);
  }

  // Scores of the kKeysPerJudgement keys from `begin` on, as far as some row sees them.
  static void scores(const PairArgs& args, std::int64_t begin) {
    const std::int64_t most = begin + kKeysPerJudgement, end = args.ends[0] < most ? args.ends[0] : most;
    with_few_rows<VecF32>(args.panel->num_rows, [&](auto rows) {
      for (std::int64_t key = begin; key < end; key += kSide) score_keys<decltype(rows)::value>(args, begin, key);
    });
  }

  // Columns [d, d + 16 * kVecs) of the context; false where a sum is not finite.
  template <int kPanelRows, int kVecs>
  [[gnu::noinline]] static bool add_columns(const float* weights, const Values& of, std::int64_t value_dim, std::int64_t d,
                                            const float* before, float* context, Fetch& fetch) {
    __m512 acc[kPanelRows][kVecs];
#pragma GCC unroll 8
    for (int g = 0; g < kPanelRows; ++g) {
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) {
        acc[g][c] = before != nullptr ? VecF32::load(before + g * value_dim + d + c * kSide) : VecF32::zero();
      }
    }
    const auto add = [&](std::int64_t key, bool two) __attribute__((always_inline)) {
      const BFloat16 *even = of.values + key * of.stride + d, *odd = even + of.stride;
      __m512 values[kVecs];
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; c += 2) {
        const __m512i a = _mm512_loadu_si512(even + c * kSide);
        const __m512i b = two ? _mm512_loadu_si512(odd + c * kSide) : _mm512_setzero_si512();
        fetch.line();
        fetch.line();
        values[c] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(a, b));
        values[c + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(a, b));
      }
#pragma GCC unroll 8
      for (int g = 0; g < kPanelRows; ++g) {
        const __m512 weight = VecF32::set1(weights[key / 2 * kSide + g]);
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) acc[g][c] = multiply(values[c], weight, acc[g][c]);
      }
    };
    std::int64_t key = of.begin;
    for (; key < of.end && key + 2 <= of.count; key += 2) add(key, true);
    if (key < of.end) add(key, false);  // a last odd key has zeros beside it
    auto test = VecF32::zero();  // x * 0 is 0 for finite numbers, else NaN
#pragma GCC unroll 8
    for (int g = 0; g < kPanelRows; ++g) {
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) {
        test = VecF32::fma(acc[g][c], VecF32::zero(), test);
        VecF32::store(context + g * value_dim + d + c * kSide, acc[g][c]);
      }
    }
    return !VecF32::any(VecF32::not_less(test, VecF32::set1(1)));
  }

  // The columns from d on, kVecs vectors of them at a time, then fewer.
  template <int kPanelRows, int kVecs>
  static bool add_from(const float* weights, const Values& of, std::int64_t value_dim, std::int64_t d, const float* before,
                       float* context, Fetch& fetch) {
    for (; d + kVecs * kSide <= value_dim; d += kVecs * kSide) {
      if (!add_columns<kPanelRows, kVecs>(weights, of, value_dim, d, before, context, fetch)) return false;
    }
    if constexpr (kVecs > 2) return add_from<kPanelRows, kVecs / 2>(weights, of, value_dim, d, before, context, fetch);
    return true;
  }

  // context (rows, value_dim) of the keys, added to `before` unless that is null. weights: pairs of them, (pairs, 16 lanes).
  // False where a value, or a sum, is not finite.
  static bool add(const float* weights, std::int64_t rows, const Values& of, std::int64_t value_dim, const float* before,
                  float* context, Fetch& fetch) {
    bool finite = false;
    with_few_rows<VecF32>(rows, [&](auto n) {
      constexpr int kPanelRows = decltype(n)::value, kVecs = kPanelRows == 8 ? 2 : kPanelRows == 4 ? 4 : 8;
      finite = add_from<kPanelRows, kVecs>(weights, of, value_dim, 0, before, context, fetch);
    });
    return finite;
  }
};

}  // namespace
}  // namespace headway
