// The everyday call, taken at once: arrays of four axes in either layout that fit each other, of one floating-point type,
// readable where they lie, with or without options, see everyday.hpp. Whatever is different in the least goes to the Python
// checks, which convert or explain.
// Memory of another library may come by its address: a view of a tensor takes longer than a tiny call.
#include <pybind11/stl.h>

#include <array>
#include <vector>

#include "../core/attention.hpp"
#include "bindings.hpp"
#include "everyday.hpp"

namespace headway {
namespace {

// A tuple of so many integers.
template <std::size_t kCount>
bool integers(PyObject* tuple, std::array<std::int64_t, kCount>& out) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != static_cast<Py_ssize_t>(kCount)) return false;
  for (std::size_t i = 0; i < kCount; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)));
    if (out[i] == -1 && PyErr_Occurred()) throw py::error_already_set();
  }
  return true;
}

// Memory of (batch, heads, tokens, width) at an address; strides count elements.
std::optional<Operand> operand_at(std::uintptr_t address, PyObject* shape, PyObject* strides, std::size_t item_size) {
  std::array<std::int64_t, 4> extents, steps;
  if (address == 0 || !integers(shape, extents) || !integers(strides, steps)) return std::nullopt;
  return operand(reinterpret_cast<void*>(address), extents.data(), steps.data(), static_cast<std::int64_t>(item_size), item_size, false);
}

// The problem of operands that fit each other, its results and positions left open.
std::optional<AttentionProblem> problem_of(ElementKind kind, const std::optional<Operand>& q, const std::optional<Operand>& k,
                                           const std::optional<Operand>& v, bool causal) {
  if (!q || !k || !v || k->batch != q->batch || v->batch != q->batch || v->heads != k->heads || v->tokens != k->tokens ||
      k->width != q->width || q->heads % k->heads != 0) {
    return std::nullopt;
  }
  AttentionProblem p{};
  p.kind = p.key_kind = kind;
  p.batch = q->batch;
  p.num_heads = q->heads;
  p.num_queries = q->tokens;
  p.head_dim = q->width;
  p.num_kv_heads = k->heads;
  p.num_keys = k->tokens;
  p.value_dim = v->width;
  p.right = causal ? 0 : kNoLimit;
  p.q = q->view;
  p.k = k->view;
  p.v = v->view;
  return p;
}

// Query 0 of each entry stands at `position`.
void run(AttentionProblem& p, std::int64_t position) {
  const std::vector<std::int64_t> positions(static_cast<std::size_t>(p.batch), position);
  p.positions = positions.data();
  run_released([&](const std::function<bool()>& interrupted) { attention(p, interrupted); });
}

// The result, or None where the call is not the everyday one.
py::object attention_plain(const py::handle& q_object, const py::handle& k_object, const py::handle& v_object,
                           const py::handle& causal, bool tokens_first, const py::handle& mask, const py::handle& window,
                           const py::handle& softcap, const py::handle& slopes, const py::handle& sinks) {
  const auto* q_array = plain_array(q_object.ptr());
  const auto* k_array = plain_array(k_object.ptr());
  const auto* v_array = plain_array(v_object.ptr());
  if (q_array == nullptr || k_array == nullptr || v_array == nullptr) return py::none();
  if (q_array->descr != k_array->descr || q_array->descr != v_array->descr) return py::none();
  if (causal.ptr() != Py_True && causal.ptr() != Py_False) return py::none();
  const std::optional<ElementKind> kind = kind_of(q_array->descr);
  if (!kind) return py::none();
  const std::size_t item_size = element_size(*kind);
  std::optional<AttentionProblem> problem =
      problem_of(*kind, operand(*q_array, item_size, tokens_first), operand(*k_array, item_size, tokens_first),
                 operand(*v_array, item_size, tokens_first), causal.ptr() == Py_True);
  if (!problem) return py::none();
  AttentionProblem& p = *problem;
  EverydayOptions options;
  if (!options.read(p, mask, window, softcap, slopes, sinks)) return py::none();
  const std::int64_t heads = p.num_heads, tokens = p.num_queries, width = p.value_dim;
  std::optional<py::array> out = new_result(
      q_array->descr, {p.batch, tokens_first ? tokens : heads, tokens_first ? heads : tokens, width});
  if (!out) return py::none();
  p.out = view_of_result(*out, heads, tokens, width, tokens_first);
  run(p, p.num_keys - p.num_queries);
  return std::move(*out);
}

// (address, shape, strides) of operands, (address, strides) of results; query 0 stands at key 0. False where the core does
// not take them as they are: then nothing was done.
bool attention_at(const py::tuple& q, const py::tuple& k, const py::tuple& v, const py::tuple& out, const py::object& lse,
                  const std::string& kind_name, bool causal, std::optional<double> scale) {
  const ElementKind kind = kind_named(kind_name);
  const auto taken = [&](const py::tuple& x) -> std::optional<Operand> {
    if (x.size() != 3) return std::nullopt;
    return operand_at(x[0].cast<std::uintptr_t>(), x[1].ptr(), x[2].ptr(), element_size(kind));
  };
  std::optional<AttentionProblem> problem = problem_of(kind, taken(q), taken(k), taken(v), causal);
  if (!problem) return false;
  AttentionProblem& p = *problem;
  std::array<std::int64_t, 4> steps;
  if (out.size() != 2 || !integers(out[1].ptr(), steps) || (p.value_dim > 1 && steps[3] != 1)) return false;
  p.out = {reinterpret_cast<void*>(out[0].cast<std::uintptr_t>()), steps[0], steps[1], steps[2]};
  if (!lse.is_none()) {
    const auto rows = lse.cast<py::tuple>();
    std::array<std::int64_t, 3> places;
    if (rows.size() != 2 || !integers(rows[1].ptr(), places)) return false;
    p.lse = {reinterpret_cast<void*>(rows[0].cast<std::uintptr_t>()), places[0], places[1], places[2]};
  }
  p.scale = scale;
  run(p, 0);
  return true;
}

}  // namespace

void bind_plain(py::module_& m) {
  know_dtypes();
  m.def("new_array", [](const std::vector<py::ssize_t>& shape, const py::object& dtype) { return new_array(py::dtype::from_args(dtype), shape); },
        py::arg("shape"), py::arg("dtype"));
  m.def("attention_at", &attention_at, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("lse"), py::arg("kind"),
        py::arg("causal"), py::arg("scale"));
  m.def("attention_plain", &attention_plain, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("causal"),
        py::arg("tokens_first"), py::arg("mask") = py::none(), py::arg("window") = py::none(), py::arg("softcap") = py::none(),
        py::arg("alibi_slopes") = py::none(), py::arg("sinks") = py::none());
}

}  // namespace headway
