// The everyday call, taken at once: contiguous (batch, heads, tokens, width) arrays of NumPy's own float types that fit
// each other. Whatever is different in the least goes to the Python checks, which convert or explain.
#include <array>
#include <vector>

#include "../core/attention.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace headway {
namespace {

constexpr int kWanted = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;

// The array behind an object, or nullptr where it is no plain one.
const py::detail::PyArray_Proxy* plain_array(PyObject* object) {
  if (Py_TYPE(object) != py::detail::npy_api::get().PyArray_Type_) return nullptr;
  const auto* array = py::detail::array_proxy(object);
  if (array->nd != 4 || (array->flags & kWanted) != kWanted) return nullptr;
  for (int axis = 0; axis < 4; ++axis) {
    if (array->dimensions[axis] == 0) return nullptr;
  }
  return array;
}

TensorView contiguous_view(void* data, std::int64_t heads, std::int64_t tokens, std::int64_t width) {
  return {data, heads * tokens * width, tokens * width, width};
}

// The result, or None where the call is not the everyday one.
py::object attention_plain(const py::handle& q_object, const py::handle& k_object, const py::handle& v_object,
                           const py::handle& causal) {
  // Never destroyed: the interpreter is gone before the library's statics are.
  static const auto& types = *new std::array{py::dtype("float32"), py::dtype("float64"), py::dtype("float16")};
  const auto* q = plain_array(q_object.ptr());
  const auto* k = plain_array(k_object.ptr());
  const auto* v = plain_array(v_object.ptr());
  if (q == nullptr || k == nullptr || v == nullptr || q->descr != k->descr || q->descr != v->descr) return py::none();
  if (causal.ptr() != Py_True && causal.ptr() != Py_False) return py::none();
  std::size_t type = 0;
  while (type < types.size() && types[type].ptr() != q->descr) ++type;
  if (type == types.size()) return py::none();
  const auto *nq = q->dimensions, *nk = k->dimensions, *nv = v->dimensions;
  if (nk[0] != nq[0] || nv[0] != nq[0] || nv[1] != nk[1] || nv[2] != nk[2] || nk[3] != nq[3] || nq[1] % nk[1] != 0) {
    return py::none();
  }
  AttentionProblem p{};
  p.kind = static_cast<ElementKind>(type);
  p.batch = nq[0];
  p.num_heads = nq[1];
  p.num_queries = nq[2];
  p.head_dim = nq[3];
  p.num_kv_heads = nk[1];
  p.num_keys = nk[2];
  p.value_dim = nv[3];
  p.right = causal.ptr() == Py_True ? 0 : kNoLimit;
  py::array out(types[type], {nq[0], nq[1], nq[2], nv[3]});
  p.q = contiguous_view(q->data, nq[1], nq[2], nq[3]);
  p.k = contiguous_view(k->data, nk[1], nk[2], nk[3]);
  p.v = contiguous_view(v->data, nv[1], nv[2], nv[3]);
  p.out = contiguous_view(out.mutable_data(), nq[1], nq[2], nv[3]);
  const std::vector<std::int64_t> positions(static_cast<std::size_t>(p.batch), p.num_keys - p.num_queries);
  p.positions = positions.data();
  run_released([&](const std::function<bool()>& interrupted) { attention(p, interrupted); });
  return out;
}

}  // namespace

void bind_plain(py::module_& m) {
  m.def("attention_plain", &attention_plain, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("causal"));
}

}  // namespace headway
