// Compiles where the compiler knows avx2: AVX2 + FMA + F16C.
#include <immintrin.h>

__m256 probe(__m256 a, __m256 b, __m128i half) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(a), 1);
  return _mm256_fmadd_ps(_mm256_castsi256_ps(shifted), b, _mm256_cvtph_ps(half));
}
