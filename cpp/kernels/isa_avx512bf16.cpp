// The kernels of avx512bf16: bfloat16 alone; avx512 serves for the rest.
#include "peak_pairs.hpp"
#include "projection_pairs.hpp"

namespace headway {

extern const KernelTable kAvx512Bf16Table = {
    .name = "avx512bf16",
    .base = &kAvx512Table,
    .kinds = {{}, {}, {}, pair_kernels<DotPairs>()},
    .backward = {},
    .projections = {{}, {}, {}, pair_projection()},
    .rotations = {},
    .bursts = {nullptr, nullptr, nullptr, dot_burst},
};

}  // namespace headway
