#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "../core/rotary.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace headway {
namespace {

void rotary_call(const py::array& x, const py::array& out, const std::string& kind, const std::string& out_kind,
                 const std::optional<py::array>& positions, std::int64_t first_position, const py::array& frequencies,
                 double factor, bool interleaved) {
  RotaryProblem p{};
  p.kind = kind_named(kind);
  const ElementKind to = kind_named(out_kind);
  p.wide_out = to != p.kind;
  expect(!p.wide_out || (to == ElementKind::kFloat32 && element_size(p.kind) == 2),
         "out_kind: that of x, or float32 for 16-bit numbers");
  p.x = view_of(x, 4, element_size(p.kind), false, "x");
  p.out = view_of(out, 4, element_size(to), true, "out");
  for (int axis = 0; axis < 4; ++axis) expect(out.shape(axis) == x.shape(axis), "out: shape does not fit x");
  p.batch = x.shape(0);
  p.num_heads = x.shape(1);
  p.num_tokens = x.shape(2);
  p.head_dim = x.shape(3);
  check_memory(frequencies, sizeof(double), true, false, "frequencies");
  expect(frequencies.ndim() == 1 && frequencies.shape(0) >= 1 && 2 * frequencies.shape(0) <= p.head_dim,
         "frequencies: one for each pair");
  p.num_pairs = frequencies.shape(0);
  p.frequencies = static_cast<const double*>(frequencies.data());
  p.factor = factor;
  p.interleaved = interleaved;
  p.first_position = first_position;
  if (positions) {
    check_memory(*positions, sizeof(std::int64_t), false, false, "positions");
    const int axes = static_cast<int>(positions->ndim());
    expect((axes == 1 || (axes == 2 && positions->shape(0) == p.batch)) && positions->shape(axes - 1) == p.num_tokens,
           "positions: shape does not fit x");
    p.positions = static_cast<const std::int64_t*>(positions->data());
    p.position_batch_stride = axes == 2 ? stride_of(*positions, 0) : 0;
    p.position_token_stride = stride_of(*positions, axes - 1);
  } else {
    std::int64_t end = 0;
    expect(!__builtin_add_overflow(first_position, p.num_tokens, &end), "first_position: too large");
  }
  run_released([&](const std::function<bool()>& interrupted) { rotary_embedding(p, interrupted); });
}

}  // namespace

void bind_rotary(py::module_& m) {
  m.def("rotary_embedding", &rotary_call, py::arg("x"), py::arg("out"), py::arg("kind"), py::arg("out_kind"),
        py::arg("positions"), py::arg("first_position"), py::arg("frequencies"), py::arg("factor"),
        py::arg("interleaved"));
}

}  // namespace headway
