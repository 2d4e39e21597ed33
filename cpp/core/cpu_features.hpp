// What this machine offers: instruction sets and usable CPUs.
#pragma once

#include <string>
#include <string_view>

namespace headway {

// Whether this CPU and its operating system run the code compiled for the ISA of that name.
bool cpu_runs(std::string_view isa);

// Whether this CPU is better off with the ISA than without it. VDPBF16PS, all that avx512bf16 brings, does twice the work
// of a float32 multiply-add on AMD's CPUs, half of it on Intel's: measured, see cpp/README.md.
bool cpu_gains_from(std::string_view isa);

// CPUs that this process may use: its affinity mask, and the CPU quota of its container rounded up; at least 1.
int usable_cpus(const std::string& root = {});

// The smallest CPU quota of this process's control group and its parents (versions 1 and 2), 0 where there is none. The
// files are read below the folder `root`: "" but for tests.
double container_quota(const std::string& root);

}  // namespace headway
