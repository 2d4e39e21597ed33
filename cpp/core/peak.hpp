// What the machine can do at most: multiply-adds in registers, and reading memory. The denominators of every speed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "../kernels/kernel_table.hpp"

namespace headway {

// GFLOP/s of `threads` threads that multiply and add numbers of this kind alone, in the ISA in use, over about
// `seconds` seconds: the best of short bursts. Nothing where the ISA has no multiply-add for the kind.
std::optional<double> burst_peak(double seconds, int threads, ElementKind kind,
                                 const std::function<bool()>& interrupted);

// Threads read in blocks of this size, handed out in ascending order.
inline constexpr std::int64_t kReadBlockBytes = std::int64_t{1} << 20;

// GB/s at which `threads` threads sum these blocks over about `seconds` seconds: the best pass over them. Blocks that
// exceed the caches give the memory's rate.
double read_bandwidth(double seconds, int threads, const std::uint64_t* words, std::int64_t num_blocks,
                      const std::function<bool()>& interrupted);

}  // namespace headway
