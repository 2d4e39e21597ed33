// The kernels of avx2: the one source, compiled with the flags that isa.cmake gives this file.
#include "vec_avx2.hpp"

#include "table.hpp"

namespace headway {

extern const KernelTable kAvx2Table = table_of("avx2");

}  // namespace headway
