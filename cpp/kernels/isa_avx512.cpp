// The kernels of avx512: the one source, compiled with the flags that isa.cmake gives this file.
#include "vec_avx512.hpp"

#include "table.hpp"

namespace headway {

extern const KernelTable kAvx512Table = table_of("avx512");

}  // namespace headway
