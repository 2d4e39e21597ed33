#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "../core/cpu_features.hpp"
#include "../core/dispatch.hpp"
#include "../core/parallel.hpp"
#include "../core/peak.hpp"
#include "../core/scratch.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace headway {
namespace {

namespace py = pybind11;

std::map<std::string, std::string> build_info() {
  std::map<std::string, std::string> info;
#if defined(__clang__)
  info["compiler"] = "Clang " __clang_version__;
#elif defined(__GNUC__)
  info["compiler"] = "GCC " __VERSION__;
#else
  info["compiler"] = "unknown";
#endif
  info["parallel"] = parallel_runtime();
  return info;
}

std::optional<double> peak_call(double seconds, int threads, const std::string& kind) {
  expect(threads >= 1 && threads <= kMaxThreads, "threads: out of range");
  const ElementKind element = kind_named(kind);
  std::optional<double> peak;
  run_released([&](const std::function<bool()>& interrupted) { peak = burst_peak(seconds, threads, element, interrupted); });
  return peak;
}

double read_bandwidth_call(double seconds, int threads, const py::array& words) {
  expect(threads >= 1 && threads <= kMaxThreads, "threads: out of range");
  check_memory(words, sizeof(std::uint64_t), true, false, "words");
  const std::int64_t num_blocks = words.nbytes() / kReadBlockBytes;
  expect(words.ndim() == 1 && num_blocks >= 1, "words: one axis and one block at least");
  const auto* data = static_cast<const std::uint64_t*>(words.data());
  double rate = 0;
  run_released([&](const std::function<bool()>& interrupted) {
    rate = read_bandwidth(seconds, threads, data, num_blocks, interrupted);
  });
  return rate;
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("set_isa", &set_isa, py::arg("name"));
  m.def("available_isas", &available_isas);
  m.def("compiled_isas", &compiled_isas);
  m.def("set_num_threads", &set_num_threads, py::arg("n"));
  m.def("get_num_threads", &num_threads);
  m.def("enter_usual_float_mode", &enter_usual_float_mode);
  m.def("leave_usual_float_mode", &leave_usual_float_mode, py::arg("callers"));
  m.def("container_quota", &container_quota, py::arg("root"));
  m.def("usable_cpus", &usable_cpus, py::arg("root"));
  m.def("threads_source", &threads_source);
  m.def("release_memory", &release_memory);
  m.def("build_info", &build_info);
  m.def("peak", &peak_call, py::arg("seconds"), py::arg("threads"), py::arg("kind"));
  m.def("read_bandwidth", &read_bandwidth_call, py::arg("seconds"), py::arg("threads"), py::arg("words"));
}

}  // namespace headway
