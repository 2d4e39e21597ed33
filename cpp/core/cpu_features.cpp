#include "cpu_features.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#endif

namespace headway {
namespace {

#if defined(__linux__)

int affinity_count() {
  // A mask of fixed size fails on machines with more CPUs than it holds: grow it until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<unsigned>(cpus));
    if (set == nullptr) return 0;
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<unsigned>(cpus));
    const int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return 0;
}

// The quota in CPUs of one control group folder, 0 where there is none. Version 2 has "cpu.max" with "quota period"
// or "max period", version 1 has two files.
double quota_in(const std::string& folder) {
  double quota = 0, period = 0;
  if (std::ifstream file(folder + "/cpu.max"); file) {
    std::string first;
    if (file >> first >> period && first != "max") {
      std::istringstream(first) >> quota;
    }
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The smallest quota of this process's control group and its parents, 0 where there is none.
double container_quota() {
  double smallest = 0;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::string root = version2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controllers;
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      const double quota = quota_in(root + (path == "/" ? "" : path));
      if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return smallest;
}

#endif

// Whether the CPU has AMX-BF16 and the system lets this process use its tile registers, which must be asked for.
[[maybe_unused]] bool has_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  static const bool granted = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & kBf16) == 0 || (edx & kTile) == 0) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

}  // namespace

bool cpu_runs(std::string_view isa) {
  if (isa == "scalar") return true;
#if defined(__x86_64__) || defined(__i386__)
  // The compiler's run-time library also asks the operating system whether it saves the wide registers.
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == "avx2") return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (isa == "avx512") return avx512;
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (isa == "avx512bf16") return bf16;
  if (isa == "amx") return bf16 && has_tiles();
#endif
  return false;
}

bool cpu_gains_from([[maybe_unused]] std::string_view isa) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  if (isa == "avx512bf16") return __builtin_cpu_is("amd") != 0;
#endif
  return true;
}

int usable_cpus() {
  int count = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  if (const int allowed = affinity_count(); allowed > 0) count = allowed;
  if (const double quota = container_quota(); quota > 0) {
    count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  }
#endif
  return std::max(count, 1);
}

}  // namespace headway
