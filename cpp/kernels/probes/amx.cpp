// Compiles where compiler and assembler know amx: avx512bf16 + AMX-TILE + AMX-BF16.
void probe() { asm volatile("tdpbf16ps %%tmm2, %%tmm1, %%tmm0" : : : "memory"); }
