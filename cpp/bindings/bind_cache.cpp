#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "../core/attention.hpp"
#include "../core/scratch.hpp"
#include "bindings.hpp"
#include "problems.hpp"

namespace headway {
namespace {

// Keys or values in pages: (num_pages, num_kv_heads, page_size, width).
TensorView pages_view(const py::array& pages, const AttentionProblem& p, const py::array& like, const char* name) {
  const TensorView view = view_of(pages, 4, element_size(p.key_kind), false, name);
  for (int axis = 0; axis < 3; ++axis) {
    expect(pages.shape(axis) == like.shape(axis), "keys, values: expected the same pages, heads and slots");
  }
  return view;
}

TensorView scales_view(const std::optional<py::array>& scales, const py::array& like, const char* name) {
  expect(scales.has_value(), "key_scales, value_scales: int8 needs them");
  const TensorView view = view_of(*scales, 3, sizeof(float), false, name);
  for (int axis = 0; axis < 3; ++axis) expect(scales->shape(axis) == like.shape(axis), "scales: shape does not fit");
  return view;
}

void cached_call(const py::array& q, const py::array& out, const std::optional<py::array>& lse, const std::string& kind,
                 const std::string& out_kind, std::optional<double> scale, bool causal,
                 const std::vector<std::int64_t>& offsets, const py::object& options, const py::array& keys,
                 const py::array& values, const std::string& cache_kind, const std::optional<py::array>& key_scales,
                 const std::optional<py::array>& value_scales,
                 const py::array_t<std::int64_t, py::array::c_style>& table, std::int64_t num_keys) {
  AttentionProblem p = queries_of(q, kind, scale, offsets);
  p.key_kind = cache_kind_named(cache_kind);
  const bool quantised = element_size(p.key_kind) == 1;
  expect(quantised ? p.kind == ElementKind::kFloat32 : p.key_kind == p.kind, "cache_kind: does not fit kind");
  p.k = pages_view(keys, p, keys, "keys");
  p.v = pages_view(values, p, keys, "values");
  if (p.key_kind == ElementKind::kInt8) {
    p.pages.k_scales = scales_view(key_scales, keys, "key_scales");
    p.pages.v_scales = scales_view(value_scales, keys, "value_scales");
  }
  p.num_kv_heads = keys.shape(1);
  p.num_keys = num_keys;
  expect(keys.shape(3) == p.head_dim, "keys: expected head_dim columns");
  expect(p.num_heads == 0 || (p.num_kv_heads > 0 && p.num_heads % p.num_kv_heads == 0), "keys: heads do not fit q");
  expect(static_cast<std::int64_t>(offsets.size()) == p.batch, "offsets: one per batch entry");
  expect(num_keys >= 0 && num_keys < kNoLimit, "num_keys: out of range");

  expect(table.ndim() == 2 && table.shape(0) == p.batch, "table: expected (batch, pages)");
  p.pages.table = table.data();
  p.pages.pages_per_entry = table.shape(1);
  p.pages.page_size = keys.shape(2);
  expect(num_keys == 0 || (table.shape(1) >= 1 && p.pages.page_size >= 1), "table: no room for keys");
  const std::int64_t* end = table.data() + table.size();
  expect(std::all_of(table.data(), end, [&](std::int64_t page) { return page >= 0 && page < keys.shape(0); }),
         "table: expected pages 0 .. num_pages - 1");

  add_results(p, values.shape(3), out, lse, kind, out_kind);
  const Options kept(options, p, causal);
  expect(p.key_counts != nullptr, "options: expected lengths");
  run_released([&](const std::function<bool()>& interrupted) { attention(p, interrupted); });
}

// Zeros, on huge pages where the system gives them.
py::array_t<std::uint8_t> allocate_call(std::int64_t nbytes) {
  expect(nbytes >= 0, "nbytes: 0 or more");
  struct Owned {
    std::byte* data;
    std::size_t size;
  };
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(nbytes, 1));
  auto* owned = new Owned{nullptr, size};
  const py::capsule owner(owned, [](void* p) {
    auto* memory = static_cast<Owned*>(p);
    if (memory->data != nullptr) deallocate(memory->data, memory->size);
    delete memory;
  });
  owned->data = allocate(size);
  std::memset(owned->data, 0, size);
  return py::array_t<std::uint8_t>(nbytes, reinterpret_cast<const std::uint8_t*>(owned->data), owner);
}

}  // namespace

void bind_cache(py::module_& m) {
  m.def("attention_cached", &cached_call, py::arg("q"), py::arg("out"), py::arg("lse"), py::arg("kind"),
        py::arg("out_kind"), py::arg("scale"), py::arg("causal"), py::arg("offsets"), py::arg("options"), py::arg("keys"),
        py::arg("values"), py::arg("cache_kind"), py::arg("key_scales"), py::arg("value_scales"), py::arg("table"),
        py::arg("num_keys"));
  m.def("allocate", &allocate_call, py::arg("nbytes"));
}

}  // namespace headway
