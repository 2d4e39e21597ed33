// Compiles where the compiler's target is a 64-bit ARM CPU, lowest byte first: Advanced SIMD is part of all of them.
#if !defined(__aarch64__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "not a 64-bit ARM CPU"
#endif
#include <arm_neon.h>

float32x4_t probe(float32x4_t a, float32x4_t b, uint16x4_t half) {
  return vfmaq_f32(vcvt_f32_f16(vreinterpret_f16_u16(half)), vrndmq_f32(a), b);
}
