// What the core finds on this CPU against what the compiler's run-time library finds, one line per ISA.
#include "../core/cpu_features.hpp"

#include <cstdio>

int main() {
  int failures = 0;
  [[maybe_unused]] const auto check = [&](const char* isa, bool wanted) {
    const bool found = headway::cpu_runs(isa);
    std::printf("%s: %s\n", isa, found ? "yes" : "no");
    if (found == wanted) return;
    std::printf("%s: the compiler's library says otherwise\n", isa);
    ++failures;
  };
  check("scalar", true);
  check("no such", false);
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
#if defined(__clang__)
  const bool f16c = true;  // whose name it does not know; every CPU with AVX2 has it
#else
  const bool f16c = __builtin_cpu_supports("f16c");
#endif
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  check("avx2", avx2);
  check("avx512", avx512);
  check("avx512bf16", bf16);
  if (headway::cpu_runs("amx") && !bf16) ++failures;
  if (headway::cpu_gains_from("avx512bf16") != (__builtin_cpu_is("amd") != 0)) ++failures;
#endif
  return failures == 0 ? 0 : 1;
}
