// Philox4x32-10, a counter-based generator: 128 bits of counter and 64 bits of key -> four words of 32 random bits.
// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), section 3.3.
//
// For dropout the counter is (key / 4, position of the query, head, batch entry) and the four words are those of four
// neighbouring keys, so that a word depends on nothing but what it is for. Lanes are queries. While the words are made each
// has 64 bits of a register, of which the lower half counts, since the products take the lower halves: 32-bit lanes come
// in two halves, the even ones and the odd ones.
#pragma once

#include "kernel_table.hpp"

namespace headway {
namespace {

inline constexpr int kKeysPerDraw = 4;
inline constexpr std::uint32_t kPhiloxMultipliers[] = {0xD2511F53u, 0xCD9E8D57u};
inline constexpr std::uint32_t kPhiloxSteps[] = {0x9E3779B9u, 0xBB67AE85u};  // of the key, from round to round

[[gnu::always_inline]] inline std::uint32_t high_half(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(std::uint64_t{a} * b >> 32);
}

// kRounds rounds on counters. A round multiplies the first and the third word; the halves of the products change places
// with the other two words, which join the upper halves and the key.
template <int kRounds>
[[gnu::always_inline]] inline void philox_rounds(WideWords (&c)[4], std::uint32_t key0, std::uint32_t key1) {
  if constexpr (kRounds > 0) {
    const WideWords product0 = multiply_low(c[0], WideWords{} + std::uint64_t{kPhiloxMultipliers[0]});
    const WideWords product2 = multiply_low(c[2], WideWords{} + std::uint64_t{kPhiloxMultipliers[1]});
    c[0] = (product2 >> 32) ^ c[1] ^ (WideWords{} + std::uint64_t{key0});
    c[1] = product2;
    c[2] = (product0 >> 32) ^ c[3] ^ (WideWords{} + std::uint64_t{key1});
    c[3] = product0;
    philox_rounds<kRounds - 1>(c, key0 + kPhiloxSteps[0], key1 + kPhiloxSteps[1]);
  }
}

// What S::kLanes rows have for themselves after two rounds. Of the first two rounds' products two depend on the row alone,
// two on the key alone, so that eight rounds are left for each draw.
template <class S>
struct DrawLanes {
  static constexpr int kPerHalf = sizeof(WideWords) / sizeof(std::uint64_t), kHalves = S::kLanes / kPerHalf;
  alignas(64) std::uint64_t first[S::kLanes], third[S::kLanes], fourth[S::kLanes];  // half by half

  // Row `lane`: its position among the keys and its head, counted from the group's first.
  void set(int lane, const Dropout& dropout, std::int64_t position, std::int64_t head) {
    const std::uint32_t query_head = dropout.head + static_cast<std::uint32_t>(head);
    const std::uint32_t once =
        high_half(kPhiloxMultipliers[1], query_head) ^ static_cast<std::uint32_t>(position) ^ dropout.seed_low;
    const int at = lane % kHalves * kPerHalf + lane / kHalves;
    first[at] = (kPhiloxMultipliers[1] * query_head) ^ (dropout.seed_low + kPhiloxSteps[0]);
    third[at] = high_half(kPhiloxMultipliers[0], once) ^ (dropout.seed_high + kPhiloxSteps[1]);
    fourth[at] = kPhiloxMultipliers[0] * once;
  }
  static WideWords half(const std::uint64_t (&numbers)[S::kLanes], int i) {
    WideWords words;
    __builtin_memcpy(&words, numbers + i * kPerHalf, sizeof words);
    return words;
  }
};

// Words in lanes as wide as the numbers that they are for, and the bits of a 1.
template <class Real> struct LaneWords;
template <> struct LaneWords<float> {
  typedef std::uint32_t Words __attribute__((vector_size(sizeof(WideWords))));
  static constexpr std::uint32_t kOne = 0x3f800000;
};
template <> struct LaneWords<double> {
  typedef std::uint64_t Words __attribute__((vector_size(sizeof(WideWords))));
  static constexpr std::uint64_t kOne = 0x3ff0000000000000;
};

// The words of the keys `key` .. key + 3, key a multiple of four: words[i] are those of key + i and the lanes' rows. The
// weight counts where the word is not below the dropout's threshold.
template <class S>
[[gnu::always_inline]] inline void draw_words(const DrawLanes<S>& lanes, const Dropout& dropout, std::int64_t key,
                                              typename LaneWords<typename S::Real>::Words (&words)[kKeysPerDraw]) {
  using Lanes = DrawLanes<S>;
  using Words = typename LaneWords<typename S::Real>::Words;
  const auto group = static_cast<std::uint32_t>(key / kKeysPerDraw);
  const std::uint32_t once = high_half(kPhiloxMultipliers[0], group) ^ dropout.batch ^ dropout.seed_high;
  const std::uint64_t upper = high_half(kPhiloxMultipliers[1], once), lower = kPhiloxMultipliers[1] * once;
  const std::uint64_t product = kPhiloxMultipliers[0] * group;
  const std::uint32_t key0 = dropout.seed_low + 2 * kPhiloxSteps[0], key1 = dropout.seed_high + 2 * kPhiloxSteps[1];
  WideWords c[Lanes::kHalves][4];
#pragma GCC unroll 2
  for (int i = 0; i < Lanes::kHalves; ++i) {
    c[i][0] = Lanes::half(lanes.first, i) ^ (WideWords{} + upper);
    c[i][1] = WideWords{} + lower;
    c[i][2] = Lanes::half(lanes.third, i) ^ (WideWords{} + product);
    c[i][3] = Lanes::half(lanes.fourth, i);
    philox_rounds<8>(c[i], key0, key1);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kKeysPerDraw; ++i) {
    WideWords joined = c[0][i] & 0xffffffff;
    if constexpr (Lanes::kHalves == 2) joined |= c[1][i] << 32;
    words[i] = reinterpret_cast<Words>(joined);
  }
}

// factors[i]: 0 where the weight of key + i is dropped, else 1.
template <class S>
[[gnu::always_inline]] inline void draw_factors(const DrawLanes<S>& lanes, const Dropout& dropout, std::int64_t key,
                                                typename S::Vec (&factors)[kKeysPerDraw]) {
  using Types = LaneWords<typename S::Real>;
  typename Types::Words words[kKeysPerDraw];
  draw_words<S>(lanes, dropout, key, words);
#pragma GCC unroll 4
  for (int i = 0; i < kKeysPerDraw; ++i) {
    factors[i] = reinterpret_cast<typename S::Vec>((words[i] >= dropout.threshold) & Types::kOne);
  }
}

}  // namespace
}  // namespace headway
