// Compiles where the compiler knows avx512: AVX-512 F + BW + DQ + VL.
#include <immintrin.h>

__m512 probe(__m512 a, const short* p) {
  const __m256i half = _mm256_maskz_loadu_epi16(0x7, p);
  return _mm512_add_ps(_mm512_reduce_ps(a, 1), _mm512_cvtph_ps(half));
}
