# One object library per ISA whose probe compiles: kernels_<name>. Sets HEADWAY_ISAS to the names, scalar among them.
# Adding an ISA: a vec_<name>.hpp, an isa_<name>.cpp, a probe, and a line here (see cpp/README.md).
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)

set(HEADWAY_ISAS scalar)
set(HEADWAY_FLAGS_scalar "")
set(HEADWAY_FLAGS_neon "")
set(HEADWAY_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(HEADWAY_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl ${HEADWAY_FLAGS_avx2})
set(HEADWAY_FLAGS_avx512bf16 -mavx512bf16 ${HEADWAY_FLAGS_avx512})
set(HEADWAY_FLAGS_amx -mamx-tile -mamx-bf16 ${HEADWAY_FLAGS_avx512bf16})
# What an ISA builds upon must be there too.
set(HEADWAY_BASE_neon scalar)
set(HEADWAY_BASE_avx2 scalar)
set(HEADWAY_BASE_avx512 avx2)
set(HEADWAY_BASE_avx512bf16 avx512)
set(HEADWAY_BASE_amx avx512bf16)

foreach(isa IN ITEMS neon avx2 avx512 avx512bf16 amx)
  file(READ ${CMAKE_CURRENT_LIST_DIR}/probes/${isa}.cpp probe)
  string(REPLACE ";" " " CMAKE_REQUIRED_FLAGS "${HEADWAY_FLAGS_${isa}}")
  check_cxx_source_compiles("${probe}\nint main() { return 0; }" HEADWAY_HAS_${isa})
  unset(CMAKE_REQUIRED_FLAGS)
  if(HEADWAY_HAS_${isa} AND HEADWAY_BASE_${isa} IN_LIST HEADWAY_ISAS)
    list(APPEND HEADWAY_ISAS ${isa})
  endif()
endforeach()

set(HEADWAY_KERNEL_OPTIMIZATION -O3 CACHE STRING "Optimization of the kernels; with less of it, and with sanitizers, they compile sooner")
mark_as_advanced(HEADWAY_KERNEL_OPTIMIZATION)
# Functions and loops begin with a cache line: the speed of a kernel does not hang on the code before it.
set(HEADWAY_PLACEMENT "")
foreach(part IN ITEMS functions loops)
  check_cxx_compiler_flag(-falign-${part}=64 HEADWAY_ALIGNS_${part})
  if(HEADWAY_ALIGNS_${part})
    list(APPEND HEADWAY_PLACEMENT -falign-${part}=64)
  endif()
endforeach()
foreach(isa IN LISTS HEADWAY_ISAS)
  add_library(kernels_${isa} OBJECT ${CMAKE_CURRENT_LIST_DIR}/isa_${isa}.cpp)
  target_include_directories(kernels_${isa} PRIVATE ${CMAKE_CURRENT_LIST_DIR})
  target_compile_features(kernels_${isa} PRIVATE cxx_std_20)
  target_compile_options(kernels_${isa} PRIVATE ${HEADWAY_FLAGS_${isa}} ${HEADWAY_WARNINGS}
    ${HEADWAY_KERNEL_OPTIMIZATION} ${HEADWAY_PLACEMENT} -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti -fno-lto)
  set_target_properties(kernels_${isa} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
    INTERPROCEDURAL_OPTIMIZATION OFF)
endforeach()
