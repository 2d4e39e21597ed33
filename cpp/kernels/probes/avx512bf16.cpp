// Compiles where the compiler knows avx512bf16: avx512 + BF16.
#include <immintrin.h>

__m512 probe(__m512 sum, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(sum, a, b); }
