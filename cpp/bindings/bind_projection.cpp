#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "../core/projection.hpp"
#include "../core/weight_gradient.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace headway {
namespace {

// A weight that is packed when it is used, together with the arrays it is packed from.
class BoundProjection {
 public:
  BoundProjection(const py::array& weight, const std::optional<py::array>& bias, const std::string& kind)
      : weight_(weight), bias_(bias), kind_(kind_named(kind)), d_in_(checked_size(0)), d_out_(checked_size(1)),
        projection_(kind_, weight.data(), is_turned(), bias ? bias->data() : nullptr, d_in_, d_out_) {
    check_memory(weight, element_size(kind_), false, false, "weight");
    expect(has_strides(d_out_, 1) || has_strides(1, d_in_), "weight: not contiguous");
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

  bool has_strides(std::ptrdiff_t row, std::ptrdiff_t column) const {
    return (d_in_ == 1 || stride_of(weight_, 0) == row) && (d_out_ == 1 || stride_of(weight_, 1) == column);
  }

  // Is the weight the transpose of a contiguous matrix?
  bool is_turned() const { return !has_strides(d_out_, 1); }

  py::array weight_;
  std::optional<py::array> bias_;
  ElementKind kind_;
  std::int64_t d_in_, d_out_;
  Projection projection_;
};

// weight (d_in, d_out) = x (tokens, d_in) transposed . grad (tokens, d_out), bias (d_out) = the sum of grad over its rows.
void bound_weight_gradient(const py::array& x, const py::array& grad, const py::array& weight,
                           const std::optional<py::array>& bias, const std::string& kind) {
  WeightGradient problem{};
  problem.kind = kind_named(kind);
  expect(x.ndim() == 2 && grad.ndim() == 2 && x.shape(0) == grad.shape(0), "grad: shape does not fit x");
  expect(weight.ndim() == 2 && weight.shape(0) == x.shape(1) && weight.shape(1) == grad.shape(1) && weight.size() > 0,
         "weight: shape does not fit x and grad");
  const std::size_t size = element_size(problem.kind);
  check_memory(x, size, true, false, "x");
  check_memory(grad, size, true, false, "grad");
  check_memory(weight, size, true, true, "weight");
  if (bias) {
    expect(bias->ndim() == 1 && bias->shape(0) == grad.shape(1), "bias: shape does not fit grad");
    check_memory(*bias, size, true, true, "bias");
    problem.bias = const_cast<void*>(bias->data());
  }
  problem.num_tokens = x.shape(0);
  problem.d_in = x.shape(1);
  problem.d_out = grad.shape(1);
  problem.x = x.data();
  problem.grad = grad.data();
  problem.weight = const_cast<void*>(weight.data());
  problem.x_stride = stride_of(x, 0);
  problem.grad_stride = stride_of(grad, 0);
  problem.weight_stride = stride_of(weight, 0);
  run_released([&](const std::function<bool()>& interrupted) { weight_gradient(problem, interrupted); });
}

}  // namespace

void bind_projection(py::module_& m) {
  // The metaclass of any Python class: pybind11's own would stand in the way of a checked stub.
  py::class_<BoundProjection>(m, "Projection", py::metaclass(reinterpret_cast<PyObject*>(&PyType_Type)))
      .def(py::init<const py::array&, const std::optional<py::array>&, const std::string&>(), py::arg("weight"),
           py::arg("bias"), py::arg("kind"))
      .def("multiply", &BoundProjection::multiply, py::arg("x"), py::arg("out"), py::arg("out_kind"));
  m.def("weight_gradient", &bound_weight_gradient, py::arg("x"), py::arg("grad"), py::arg("weight"), py::arg("bias"),
        py::arg("kind"));
}

}  // namespace headway
