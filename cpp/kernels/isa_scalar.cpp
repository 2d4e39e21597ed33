// The kernels of scalar: the one source, compiled with the flags that isa.cmake gives this file.
#include "vec_scalar.hpp"

#include "table.hpp"

namespace headway {

extern const KernelTable kScalarTable = table_of("scalar");

}  // namespace headway
