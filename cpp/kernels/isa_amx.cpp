// The kernels of amx: bfloat16, and the backward pass of float32 and float16; avx512bf16 serves for the rest.
#include "backward_pairs.hpp"
#include "backward_parts.hpp"
#include "peak_pairs.hpp"
#include "projection_tile.hpp"

namespace headway {

extern const KernelTable kAmxTable = {
    .name = "amx",
    .base = &kAvx512Bf16Table,
    .kinds = {{}, {}, {}, pair_kernels<TilePairs>()},
    .backward = {part_backward<float>(), {}, part_backward<Half>(), pair_backward()},
    .projections = {{}, {}, {}, tile_projection()},
    .rotations = {},
    .bursts = {nullptr, nullptr, nullptr, tile_burst},
};

}  // namespace headway
