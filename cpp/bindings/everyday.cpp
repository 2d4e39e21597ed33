#include "everyday.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

namespace headway {
namespace {

using Descriptor = std::atomic<PyObject*>;

constexpr py::ssize_t kAlwaysThere = py::ssize_t{1} << 30;  // bytes, as in available.py
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 20;  // slopes or sinks; of more, the checks say if there is no memory
constexpr std::int64_t kMostExact = std::int64_t{1} << 53;    // up to here float64 has every whole number

// Is this the dtype that is called bfloat16? Asked in Python, once for each descriptor.
bool is_named_bfloat16(PyObject* descriptor) {
  try {
    const auto type = py::reinterpret_borrow<py::dtype>(descriptor);
    return type.itemsize() == 2 && type.attr("name").cast<std::string>() == "bfloat16" && type.attr("isnative").cast<bool>();
  } catch (const std::exception&) {
    return false;  // the checks will say what is wrong with it
  }
}

// window: a number of keys, or (left, right), -1: no limit.
bool read_window(AttentionProblem& p, PyObject* window) {
  if (const auto keys = whole_number(window)) {
    if (*keys < 1) return false;
    p.left = std::min(*keys - 1, kNoLimit);
    return true;
  }
  if (!PyTuple_CheckExact(window) || PyTuple_GET_SIZE(window) != 2) return false;
  const auto left = whole_number(PyTuple_GET_ITEM(window, 0)), right = whole_number(PyTuple_GET_ITEM(window, 1));
  if (!left || !right || *left < -1 || *right < -1) return false;
  if (*left != -1) p.left = std::min(*left, kNoLimit);
  if (*right != -1) p.right = std::min(p.right, std::min(*right, kNoLimit));  // 0 where causal
  return true;
}

bool read_softcap(AttentionProblem& p, PyObject* softcap) {
  if (const auto number = whole_number(softcap)) {
    if (*number > kMostExact) return false;  // the caller's rounding mode would count
    p.softcap = static_cast<double>(*number);
  } else if (PyFloat_CheckExact(softcap)) {
    p.softcap = PyFloat_AS_DOUBLE(softcap);
  } else {
    return false;
  }
  return std::isfinite(p.softcap) && p.softcap >= 0;
}

// (heads) or, if `by_batch`, (batch, heads) numbers of 32 or 64 bits -> out, for each batch entry if so. They are finite in the
// type that the problem accumulates in, or the lowest may be -inf.
bool read_numbers(const AttentionProblem& p, PyObject* object, bool by_batch, bool minus_infinity, std::vector<double>& out) {
  const auto* array = exact_array(object);
  if (array == nullptr) return false;
  const auto kind = kind_of(array->descr);
  if (kind != ElementKind::kFloat32 && kind != ElementKind::kFloat64) return false;
  if (p.batch * p.num_heads > kMostNumbers) return false;
  const int axes = array->nd;
  if (axes != 1 && !(by_batch && axes == 2)) return false;
  if (array->dimensions[axes - 1] != p.num_heads || (axes == 2 && array->dimensions[0] != p.batch)) return false;
  out.reserve(static_cast<std::size_t>((by_batch ? p.batch : 1) * p.num_heads));
  for (std::int64_t b = 0; b < (by_batch ? p.batch : 1); ++b) {
    for (std::int64_t h = 0; h < p.num_heads; ++h) {
      const char* at = array->data + h * array->strides[axes - 1] + (axes == 2 ? b * array->strides[0] : 0);
      float narrow;
      double number;
      if (kind == ElementKind::kFloat32) {
        std::memcpy(&narrow, at, sizeof(narrow));
        number = narrow;
      } else {
        std::memcpy(&number, at, sizeof(number));
      }
      const double wide = p.kind == ElementKind::kFloat64 ? number : static_cast<double>(static_cast<float>(number));
      if (!std::isfinite(wide) && !(minus_infinity && wide < 0)) return false;
      out.push_back(number);
    }
  }
  return true;
}

const py::dtype& boolean() {
  static const auto& dtype = *new py::dtype("bool");  // never destroyed, see kind_of
  return dtype;
}

// A mask of four axes, each as long as the scores' or 1, whose elements lie whole and aligned.
bool read_mask(AttentionProblem& p, PyObject* object) {
  const auto* array = exact_array(object);
  if (array == nullptr || array->nd != 4) return false;
  const auto kind = array->descr == boolean().ptr() ? std::optional<ElementKind>() : kind_of(array->descr);
  if (!kind && array->descr != boolean().ptr()) return false;
  p.mask.kind = kind ? static_cast<MaskKind>(*kind) : MaskKind::kBool;
  const auto size = static_cast<std::int64_t>(element_size(p.mask.kind));
  const std::array<std::int64_t, 4> wanted = {p.batch, p.num_heads, p.num_queries, p.num_keys};
  std::array<std::int64_t, 4> strides;  // in bytes, 0 where broadcast
  auto odd = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(array->data));
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (array->dimensions[axis] != wanted[axis] && array->dimensions[axis] != 1) return false;
    strides[axis] = array->dimensions[axis] > 1 ? array->strides[axis] : 0;
    odd |= strides[axis];
  }
  if ((odd & (size - 1)) != 0) return false;
  p.mask.data = array->data;
  p.mask.batch_stride = strides[0] / size;
  p.mask.head_stride = strides[1] / size;
  p.mask.token_stride = strides[2] / size;
  p.mask.key_stride = strides[3] / size;
  return true;
}

}  // namespace

// The kind behind a dtype, by its address alone: whether two dtypes of one name are the same is for the checks to say.
// bfloat16 comes from a package, or several: there is room for a few, each kept alive so that no other takes its address.
std::optional<ElementKind> kind_of(PyObject* descriptor) {
  // Never destroyed: the interpreter is gone before the library's statics are.
  static const auto& own = *new std::array{py::dtype("float32"), py::dtype("float64"), py::dtype("float16")};
  static std::array<Descriptor, 4> bfloat16{};
  for (std::size_t type = 0; type < own.size(); ++type) {
    if (own[type].ptr() == descriptor) return static_cast<ElementKind>(type);
  }
  for (Descriptor& place : bfloat16) {
    PyObject* known = place.load(std::memory_order_acquire);
    if (known == descriptor) return ElementKind::kBFloat16;
    if (known != nullptr) continue;
    if (!is_named_bfloat16(descriptor)) return std::nullopt;
    Py_INCREF(descriptor);
    if (!place.compare_exchange_strong(known, descriptor)) Py_DECREF(descriptor);  // another thread's; known next time
    return ElementKind::kBFloat16;
  }
  return std::nullopt;
}

void know_dtypes() {
  kind_of(boolean().ptr());
}

const py::detail::PyArray_Proxy* exact_array(PyObject* object) {
  if (Py_TYPE(object) != py::detail::npy_api::get().PyArray_Type_) return nullptr;
  return py::detail::array_proxy(object);
}

const py::detail::PyArray_Proxy* plain_array(PyObject* object) {
  const auto* array = exact_array(object);
  return array != nullptr && array->nd == 4 ? array : nullptr;
}

std::optional<std::int64_t> whole_number(PyObject* object) {
  if (!PyLong_CheckExact(object)) return std::nullopt;
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow != 0) return std::nullopt;
  return number;
}

py::array new_array(const py::dtype& dtype, const std::vector<py::ssize_t>& shape) {
  constexpr py::ssize_t kLarge = py::ssize_t{1} << 14, kMost = py::ssize_t{1} << 60, kLine = 64;  // bytes
  auto size = static_cast<double>(dtype.itemsize());
  for (const py::ssize_t extent : shape) size *= static_cast<double>(extent);
  if (size < kLarge || size > kMost) return py::array(dtype, shape);  // NumPy says what is wrong with the largest
  const py::array memory(py::dtype::of<std::uint8_t>(), static_cast<py::ssize_t>(size) + kLine);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return py::array(dtype, shape, static_cast<const std::uint8_t*>(memory.data()) + (kLine - address % kLine) % kLine, memory);
}

std::optional<py::array> new_result(PyObject* descriptor, const std::array<std::int64_t, 4>& shape) {
  try {
    py::array result = new_array(py::reinterpret_borrow<py::dtype>(descriptor), {shape.begin(), shape.end()});
    if (result.nbytes() > kAlwaysThere) return std::nullopt;
    return result;
  } catch (const py::error_already_set&) {
    return std::nullopt;
  }
}

TensorView view_of_result(py::array& out, std::int64_t heads, std::int64_t tokens, std::int64_t width, bool tokens_first) {
  return {out.mutable_data(), heads * tokens * width, tokens_first ? width : tokens * width, tokens_first ? heads * width : width};
}

bool EverydayOptions::read(AttentionProblem& p, const py::handle& mask, const py::handle& window, const py::handle& softcap,
                           const py::handle& slopes, const py::handle& sinks) {
  if (!window.is_none() && !read_window(p, window.ptr())) return false;
  if (!softcap.is_none() && !read_softcap(p, softcap.ptr())) return false;
  if (!slopes.is_none()) {
    if (!read_numbers(p, slopes.ptr(), true, false, slopes_)) return false;
    p.slopes = slopes_.data();
  }
  if (!sinks.is_none()) {
    if (!read_numbers(p, sinks.ptr(), false, true, sinks_)) return false;
    p.sinks = sinks_.data();
  }
  return mask.is_none() || read_mask(p, mask.ptr());
}

}  // namespace headway
