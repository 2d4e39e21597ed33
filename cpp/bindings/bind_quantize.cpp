#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "../core/quantize.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace headway {
namespace {

// With scales: to int8; without: to e4m3fn.
void quantize_call(const py::array& x, const std::string& kind, const py::array& out,
                   const std::optional<py::array>& scales) {
  QuantizeProblem p{};
  p.kind = kind_named(kind);
  expect(p.kind != ElementKind::kFloat64, "kind: expected float32, float16 or bfloat16");
  p.x = view_of(x, 4, element_size(p.kind), false, "x");
  p.out = view_of(out, 4, 1, true, "out");
  p.batch = x.shape(0);
  p.num_heads = x.shape(1);
  p.num_tokens = x.shape(2);
  p.width = x.shape(3);
  for (int axis = 0; axis < 4; ++axis) expect(out.shape(axis) == x.shape(axis), "out: shape does not fit x");
  if (scales) {
    p.scales = view_of(*scales, 3, sizeof(float), true, "scales");
    for (int axis = 0; axis < 3; ++axis) expect(scales->shape(axis) == x.shape(axis), "scales: shape does not fit x");
  }
  if (x.size() == 0) return;
  run_released([&](const std::function<bool()>& interrupted) { quantize(p, interrupted); });
}

}  // namespace

void bind_quantize(py::module_& m) {
  m.def("quantize", &quantize_call, py::arg("x"), py::arg("kind"), py::arg("out"), py::arg("scales"));
}

}  // namespace headway
