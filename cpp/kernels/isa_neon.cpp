// The kernels of neon: the one source, compiled with the flags that isa.cmake gives this file.
#include "vec_neon.hpp"

#include "table.hpp"

namespace headway {

extern const KernelTable kNeonTable = table_of("neon");

}  // namespace headway
