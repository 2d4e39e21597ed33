#include "cpu_features.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#define HEADWAY_X86 1
#if defined(_WIN32)
#include <intrin.h>
#else
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

#endif

}  // namespace

double container_quota([[maybe_unused]] const std::string& root) {
  double smallest = 0;
#if defined(__linux__)
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::string mount = root + (version2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controllers);
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      const double quota = quota_in(mount + (path == "/" ? "" : path));
      if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
#endif
  return smallest;
}

namespace {

#if defined(HEADWAY_X86)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All 0 for a leaf that this CPU does not have. Asked of the CPU itself: what GCC and Clang ask by
// __builtin_cpu_supports lies in libraries that clang-cl does not link.
Registers cpuid(unsigned leaf, unsigned sub = 0) {
  Registers r;
#if defined(_WIN32)
  int words[4] = {};
  __cpuidex(words, 0, 0);
  if (static_cast<unsigned>(words[0]) < leaf) return r;
  __cpuidex(words, static_cast<int>(leaf), static_cast<int>(sub));
  r = {static_cast<unsigned>(words[0]), static_cast<unsigned>(words[1]), static_cast<unsigned>(words[2]),
       static_cast<unsigned>(words[3])};
#else
  if (!__get_cpuid_count(leaf, sub, &r.eax, &r.ebx, &r.ecx, &r.edx)) return Registers{};
#endif
  return r;
}

constexpr bool has(unsigned word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((word >> bit & 1u) == 0) return false;
  }
  return true;
}

// Which registers the operating system saves: XCR0, 0 where it saves none of the wide ones.
unsigned saved_registers() {
  if (!has(cpuid(1).ecx, {27})) return 0;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
#if defined(__APPLE__)
  // macOS says so only once a thread has used AVX-512.
  if (has(low, {1, 2})) low |= 7u << 5;
#endif
  return low;
}

struct X86Features {
  bool avx2, avx512, bf16, tiles, amd;
};

X86Features ask_cpu() {
  const Registers basic = cpuid(1), more = cpuid(7);
  const unsigned saved = saved_registers();
  X86Features f{};
  f.avx2 = has(saved, {1, 2}) && has(basic.ecx, {12, 28, 29}) && has(more.ebx, {5});  // FMA, AVX, F16C; AVX2
  f.avx512 = f.avx2 && has(saved, {5, 6, 7}) && has(more.ebx, {16, 17, 30, 31});      // F, DQ, BW, VL
  f.bf16 = f.avx512 && more.eax >= 1 && has(cpuid(7, 1).eax, {5});
  f.tiles = f.bf16 && has(more.edx, {22, 24});  // AMX-BF16, AMX-TILE
  const Registers vendor = cpuid(0);            // "AuthenticAMD", in the order ebx, edx, ecx
  f.amd = vendor.ebx == 0x68747541u && vendor.edx == 0x69746e65u && vendor.ecx == 0x444d4163u;
  return f;
}

const X86Features& x86() {
  static const X86Features features = ask_cpu();
  return features;
}

// Whether the system lets this process use the tile registers, which must be asked for.
bool tiles_granted() {
#if defined(__linux__) && defined(__x86_64__)
  static const bool granted = [] {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

#endif  // HEADWAY_X86

}  // namespace

bool cpu_runs(std::string_view isa) {
  if (isa == "scalar") return true;
#if defined(__aarch64__) || defined(_M_ARM64)
  if (isa == "neon") return true;  // part of every 64-bit ARM CPU, as the compiler's own code assumes
#endif
#if defined(HEADWAY_X86)
  if (isa == "avx2") return x86().avx2;
  if (isa == "avx512") return x86().avx512;
  if (isa == "avx512bf16") return x86().bf16;
  if (isa == "amx") return x86().tiles && tiles_granted();
#endif
  return false;
}

bool cpu_gains_from([[maybe_unused]] std::string_view isa) {
#if defined(HEADWAY_X86)
  if (isa == "avx512bf16") return x86().amd;
#endif
  return true;
}

int usable_cpus([[maybe_unused]] const std::string& root) {
  int count = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  if (const int allowed = affinity_count(); allowed > 0) count = allowed;
  if (const double quota = container_quota(root); quota > 0) {
    count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  }
#endif
  return std::max(count, 1);
}

}  // namespace headway
