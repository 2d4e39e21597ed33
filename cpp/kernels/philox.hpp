// Philox4x32-10, a counter-based generator: 128 bits of counter and 64 bits of key -> four words of 32 random bits.
// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), section 3.3.
//
// For dropout the counter is (key / 4, position of the query, head, batch entry) and the four words are those of four
// neighbouring keys, so that a word depends on nothing but what it is for. Lanes are queries; plain loops over them, which
// the compiler turns into vectors.
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

// kRounds rounds on one counter. A round multiplies the first and the third word; the halves of the products change places
// with the other two words, which join the upper halves and the key.
template <int kRounds>
[[gnu::always_inline]] inline void philox_rounds(std::uint32_t (&c)[4], std::uint32_t key0, std::uint32_t key1) {
  if constexpr (kRounds > 0) {
    const std::uint32_t first = high_half(kPhiloxMultipliers[0], c[0]) ^ c[3] ^ key1;
    const std::uint32_t third = high_half(kPhiloxMultipliers[1], c[2]) ^ c[1] ^ key0;
    c[3] = kPhiloxMultipliers[0] * c[0];
    c[1] = kPhiloxMultipliers[1] * c[2];
    c[2] = first;
    c[0] = third;
    philox_rounds<kRounds - 1>(c, key0 + kPhiloxSteps[0], key1 + kPhiloxSteps[1]);
  }
}

// What kLanes rows have for themselves after two rounds. Of the first two rounds' products two depend on the row alone, two
// on the key alone, so that eight rounds are left for each draw.
template <int kLanes>
struct DrawLanes {
  alignas(64) std::uint32_t first[kLanes], third[kLanes], fourth[kLanes];

  // Row `lane`: its position among the keys and its head, counted from the group's first.
  void set(int lane, const Dropout& dropout, std::int64_t position, std::int64_t head) {
    const std::uint32_t query_head = dropout.head + static_cast<std::uint32_t>(head);
    const std::uint32_t once =
        high_half(kPhiloxMultipliers[1], query_head) ^ static_cast<std::uint32_t>(position) ^ dropout.seed_low;
    first[lane] = (kPhiloxMultipliers[1] * query_head) ^ (dropout.seed_low + kPhiloxSteps[0]);
    third[lane] = high_half(kPhiloxMultipliers[0], once) ^ (dropout.seed_high + kPhiloxSteps[1]);
    fourth[lane] = kPhiloxMultipliers[0] * once;
  }
};

// Calls take(i, lane, word) with the words of the keys `key` .. key + 3, key a multiple of four: for key + i and the lane's
// row. The weight counts where the word is not below the dropout's threshold.
template <int kLanes, class Take>
[[gnu::always_inline]] inline void draw(const DrawLanes<kLanes>& lanes, const Dropout& dropout, std::int64_t key,
                                        const Take& take) {
  const auto group = static_cast<std::uint32_t>(key / kKeysPerDraw);
  const std::uint32_t once = high_half(kPhiloxMultipliers[0], group) ^ dropout.batch ^ dropout.seed_high;
  const std::uint32_t upper = high_half(kPhiloxMultipliers[1], once), lower = kPhiloxMultipliers[1] * once;
  const std::uint32_t product = kPhiloxMultipliers[0] * group;
  const std::uint32_t key0 = dropout.seed_low + 2 * kPhiloxSteps[0], key1 = dropout.seed_high + 2 * kPhiloxSteps[1];
  for (int lane = 0; lane < kLanes; ++lane) {
    std::uint32_t c[] = {lanes.first[lane] ^ upper, lower, lanes.third[lane] ^ product, lanes.fourth[lane]};
    philox_rounds<8>(c, key0, key1);
    take(0, lane, c[0]);
    take(1, lane, c[1]);
    take(2, lane, c[2]);
    take(3, lane, c[3]);
  }
}

// factors[i][lane]: 0 where the weight of key + i is dropped, else 1.
template <class Real, int kLanes>
[[gnu::always_inline]] inline void draw_factors(const DrawLanes<kLanes>& lanes, const Dropout& dropout, std::int64_t key,
                                                Real (&factors)[kKeysPerDraw][kLanes]) {
  const std::uint32_t threshold = dropout.threshold;
  draw(lanes, dropout, key, [&](int i, int lane, std::uint32_t word) __attribute__((always_inline)) {
    factors[i][lane] = word < threshold ? Real{0} : Real{1};
  });
}

}  // namespace
}  // namespace headway
