#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "../core/projection.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace headway {
namespace {

// A weight that is packed when it is used, together with the arrays it is packed from.
class BoundProjection {
 public:
  BoundProjection(const py::array& weight, const std::optional<py::array>& bias, const std::string& kind)
      : weight_(weight), bias_(bias), kind_(kind_named(kind)), d_in_(checked_size(0)), d_out_(checked_size(1)),
        projection_(kind_, weight.data(), bias ? bias->data() : nullptr, d_in_, d_out_) {
    check_memory(weight, element_size(kind_), true, false, "weight");
    expect(d_in_ == 1 || stride_of(weight, 0) == d_out_, "weight: not contiguous");
    if (!bias) return;
    expect(bias->ndim() == 1 && bias->shape(0) == d_out_, "bias: shape does not fit weight");
    check_memory(*bias, element_size(kind_), true, false, "bias");
  }

  void multiply(const py::array& x, const py::array& out, const std::string& out_kind) {
    ProjectionRows rows{};
    const ElementKind to = kind_named(out_kind);
    rows.wide_out = to != kind_;
    expect(!rows.wide_out || (to == ElementKind::kFloat32 && element_size(kind_) == 2),
           "out_kind: the weight's, or float32 for 16-bit weights");
    const int axes = static_cast<int>(x.ndim());
    expect(axes >= 1 && x.shape(axes - 1) == d_in_, "x: shape does not fit weight");
    expect(out.ndim() == axes && out.shape(axes - 1) == d_out_, "out: shape does not fit");
    check_memory(x, element_size(kind_), true, false, "x");
    check_memory(out, element_size(to), true, true, "out");
    for (int axis = 0; axis < axes - 1; ++axis) {
      expect(out.shape(axis) == x.shape(axis), "out: shape does not fit x");
      rows.axes.push_back({x.shape(axis), stride_of(x, axis), stride_of(out, axis)});
    }
    rows.x = x.data();
    rows.out = const_cast<void*>(out.data());
    run_released([&](const std::function<bool()>& interrupted) { projection_.multiply(rows, interrupted); });
  }

 private:
  std::int64_t checked_size(int axis) const {
    expect(weight_.ndim() == 2 && weight_.size() > 0, "weight: expected a matrix");
    return weight_.shape(axis);
  }

  py::array weight_;
  std::optional<py::array> bias_;
  ElementKind kind_;
  std::int64_t d_in_, d_out_;
  Projection projection_;
};

}  // namespace

void bind_projection(py::module_& m) {
  // The metaclass of any Python class: pybind11's own would stand in the way of a checked stub.
  py::class_<BoundProjection>(m, "Projection", py::metaclass(reinterpret_cast<PyObject*>(&PyType_Type)))
      .def(py::init<const py::array&, const std::optional<py::array>&, const std::string&>(), py::arg("weight"),
           py::arg("bias"), py::arg("kind"))
      .def("multiply", &BoundProjection::multiply, py::arg("x"), py::arg("out"), py::arg("out_kind"));
}

}  // namespace headway
