// AMX: C (16, 16) += A (16 rows, 16 pairs) . B (16 pairs, 16 lanes), in tile registers of 16 rows of 64 bytes: float32
// sums in C, pairs of bfloat16 numbers in A and B.
#pragma once

#include "tile.hpp"

namespace headway {
namespace {

inline constexpr std::ptrdiff_t kWord = 4;  // bytes of a pair, and of a sum

// Tile registers have no type of their own: the compiler keeps these in order and knows that memory is involved.
template <int kTile>
[[gnu::always_inline]] inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void tile_load(const void* p, std::ptrdiff_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void tile_store(void* p, std::ptrdiff_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kC, int kA, int kB>
[[gnu::always_inline]] inline void tile_multiply() {  // C += A . B
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB) : "memory");
}

// All tiles 16 rows of 64 bytes, for as long as it lives; afterwards the thread has no tiles to save and restore.
struct TileSession {
  TileSession() {
    alignas(64) struct {
      std::uint8_t palette, start_row, reserved[14];
      std::uint16_t row_bytes[16];
      std::uint8_t rows[16];
    } shape{};
    shape.palette = 1;
    for (int i = 0; i < 8; ++i) {
      shape.row_bytes[i] = 64;
      shape.rows[i] = 16;
    }
    asm volatile("ldtilecfg %0" : : "m"(shape) : "memory");
  }
  ~TileSession() { asm volatile("tilerelease" : : : "memory"); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

// Calls body(Constant<kFirst>) ... body(Constant<kEnd - 1>): tile registers are named by constants.
template <int kFirst, int kEnd, class Body>
[[gnu::always_inline]] inline void for_tiles(const Body& body) {
  if constexpr (kFirst < kEnd) {
    body(Constant<kFirst>{});
    for_tiles<kFirst + 1, kEnd>(body);
  }
}

}  // namespace
}  // namespace headway
