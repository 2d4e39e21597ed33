#include <pybind11/stl.h>

#include <map>
#include <string>

#include "../core/dispatch.hpp"
#include "../core/parallel.hpp"
#include "../core/scratch.hpp"
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

}  // namespace

void bind_runtime(py::module_& m) {
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("set_isa", &set_isa, py::arg("name"));
  m.def("available_isas", &available_isas);
  m.def("compiled_isas", &compiled_isas);
  m.def("set_num_threads", &set_num_threads, py::arg("n"));
  m.def("get_num_threads", &num_threads);
  m.def("threads_source", &threads_source);
  m.def("release_memory", &release_memory);
  m.def("build_info", &build_info);
}

}  // namespace headway
