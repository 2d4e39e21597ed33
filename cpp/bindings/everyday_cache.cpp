// The everyday call of a cache: queries as its numbers are, or of 32 bits for 8-bit ones, and options as everyday.hpp reads
// them. Whatever is different in the least, rings included, goes to the Python checks, which convert or explain.
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../core/attention.hpp"
#include "bindings.hpp"
#include "everyday.hpp"

namespace headway {
namespace {

// What a cache hands over: its format, and keys, values and their scales in pages.
struct Parts {
  ElementKind kind;
  const py::detail::PyArray_Proxy *keys, *values;
  TensorView key_scales, value_scales;
};

// (pages, heads, slots) numbers beside such pages of keys.
bool read_scales(PyObject* object, const py::detail::PyArray_Proxy& keys, TensorView& out) {
  const auto* array = exact_array(object);
  if (array == nullptr || array->nd != 3 || kind_of(array->descr) != ElementKind::kFloat32) return false;
  constexpr std::ptrdiff_t kSize = sizeof(float);
  if (reinterpret_cast<std::uintptr_t>(array->data) % kSize != 0) return false;
  for (int axis = 0; axis < 3; ++axis) {
    if (array->dimensions[axis] != keys.dimensions[axis] || array->strides[axis] % kSize != 0) return false;
  }
  out = {array->data, array->strides[0] / kSize, array->strides[1] / kSize, array->strides[2] / kSize};
  return true;
}

// (name of the format, keys, values, key_scales or None, value_scales or None).
std::optional<Parts> read_parts(const py::tuple& given) {
  if (given.size() != 5) return std::nullopt;
  Parts parts{cache_kind_named(given[0].cast<std::string>()), plain_array(given[1].ptr()), plain_array(given[2].ptr()), {}, {}};
  if (parts.keys == nullptr || parts.values == nullptr) return std::nullopt;
  const bool scaled = parts.kind == ElementKind::kInt8;
  if (scaled && !read_scales(given[3].ptr(), *parts.keys, parts.key_scales)) return std::nullopt;
  if (scaled && !read_scales(given[4].ptr(), *parts.keys, parts.value_scales)) return std::nullopt;
  return parts;
}

// Do keys and values hold numbers of the format that is named, and do queries of this kind and dtype go with them?
bool go_together(const Parts& parts, ElementKind kind, PyObject* descriptor) {
  if (element_size(parts.kind) > 1) {
    return parts.kind == kind && parts.keys->descr == descriptor && parts.values->descr == descriptor;
  }
  const auto bytes = [](PyObject* dtype) { return py::reinterpret_borrow<py::dtype>(dtype).itemsize(); };
  return kind == ElementKind::kFloat32 && bytes(parts.keys->descr) == 1 && bytes(parts.values->descr) == 1;
}

// A list of one length for each batch entry.
bool read_lengths(PyObject* list, std::int64_t batch, std::vector<std::int64_t>& out) {
  if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) != batch) return false;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto length = whole_number(PyList_GET_ITEM(list, b));
    if (!length || *length < 0 || *length >= kNoLimit) return false;
    out.push_back(*length);
  }
  return true;
}

// The result, or None where the call is not the everyday one. table: (B, n) int64, C-contiguous, as in attention_cached.
py::object attend_plain(const py::handle& q_object, const py::tuple& given, const py::array_t<std::int64_t, py::array::c_style>& table,
                        const py::handle& lengths, const py::handle& causal, bool tokens_first, const py::handle& mask,
                        const py::handle& window, const py::handle& softcap, const py::handle& slopes, const py::handle& sinks) {
  const auto* q_array = plain_array(q_object.ptr());
  if (q_array == nullptr || (causal.ptr() != Py_True && causal.ptr() != Py_False)) return py::none();
  const std::optional<ElementKind> kind = kind_of(q_array->descr);
  const std::optional<Parts> parts = read_parts(given);
  if (!kind || !parts || !go_together(*parts, *kind, q_array->descr)) return py::none();
  const auto q = operand(*q_array, element_size(*kind), tokens_first);
  const auto k = operand(*parts->keys, element_size(parts->kind), false), v = operand(*parts->values, element_size(parts->kind), false);
  if (!q || !k || !v || k->width != q->width || q->heads % k->heads != 0 || v->batch != k->batch || v->heads != k->heads ||
      v->tokens != k->tokens) {
    return py::none();
  }
  AttentionProblem p{};
  p.kind = *kind;
  p.key_kind = parts->kind;
  p.batch = q->batch;
  p.num_heads = q->heads;
  p.num_queries = q->tokens;
  p.head_dim = q->width;
  p.num_kv_heads = k->heads;
  p.value_dim = v->width;
  p.right = causal.ptr() == Py_True ? 0 : kNoLimit;
  p.q = q->view;
  p.k = k->view;
  p.v = v->view;

  std::vector<std::int64_t> counts;
  if (!read_lengths(lengths.ptr(), p.batch, counts)) return py::none();
  p.key_counts = counts.data();
  p.num_keys = *std::max_element(counts.begin(), counts.end());
  if (p.num_keys == 0 || table.ndim() != 2 || table.shape(0) != p.batch || table.shape(1) < 1) return py::none();
  const auto stored = [&](std::int64_t page) { return page >= 0 && page < k->batch; };
  if (!std::all_of(table.data(), table.data() + table.size(), stored)) return py::none();
  if ((p.num_keys - 1) / k->tokens >= table.shape(1)) return py::none();  // more than the pages hold: a ring
  p.pages.table = table.data();
  p.pages.pages_per_entry = table.shape(1);
  p.pages.page_size = k->tokens;
  p.pages.k_scales = parts->key_scales;
  p.pages.v_scales = parts->value_scales;

  EverydayOptions options;
  if (!options.read(p, mask, window, softcap, slopes, sinks)) return py::none();
  const std::int64_t heads = p.num_heads, tokens = p.num_queries;
  std::optional<py::array> out =
      new_result(q_array->descr, {p.batch, tokens_first ? tokens : heads, tokens_first ? heads : tokens, p.value_dim});
  if (!out) return py::none();
  p.out = view_of_result(*out, heads, tokens, p.value_dim, tokens_first);
  std::vector<std::int64_t> positions;
  for (const std::int64_t count : counts) positions.push_back(count - tokens);
  p.positions = positions.data();
  run_released([&](const std::function<bool()>& interrupted) { attention(p, interrupted); });
  return std::move(*out);
}

}  // namespace

void bind_everyday_cache(py::module_& m) {
  m.def("attend_plain", &attend_plain, py::arg("q"), py::arg("parts"), py::arg("table"), py::arg("lengths"), py::arg("causal"),
        py::arg("tokens_first"), py::arg("mask"), py::arg("window"), py::arg("softcap"), py::arg("alibi_slopes"), py::arg("sinks"));
}

}  // namespace headway
