// What a call has most often, read without Python: dtypes by the address of their descriptor, options as plain numbers and
// arrays. What is different in the least is left to the Python checks, which convert or explain.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "arrays.hpp"

namespace headway {

// The kind behind a dtype, by its address alone: whether two dtypes of one name are the same is for the checks to say.
std::optional<ElementKind> kind_of(PyObject* descriptor);

// Makes the dtypes that are known by their address, once and before there can be other threads.
void know_dtypes();

// The array behind an object, or nullptr where it is none, or of a class derived from NumPy's.
const py::detail::PyArray_Proxy* exact_array(PyObject* object);

// The array behind an object, or nullptr where it is no such array of four axes.
const py::detail::PyArray_Proxy* plain_array(PyObject* object);

// A (batch, heads, tokens, width) array as the core sees it.
struct Operand {
  std::int64_t batch, heads, tokens, width;
  TensorView view;
};

// Four axes in memory; extents and strides as NumPy has them, strides counted in units of so many bytes. Nothing where it
// is empty, or is not readable where it lies: then it has to be copied.
template <class Int>
std::optional<Operand> operand(void* data, const Int* extents, const Int* steps, std::int64_t unit, std::size_t item_size, bool tokens_first) {
  const auto size = static_cast<std::int64_t>(item_size);
  std::array<std::int64_t, 4> strides;  // in bytes; 0 where they mean nothing
  std::int64_t odd = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data));
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (extents[axis] <= 0) return std::nullopt;
    strides[axis] = extents[axis] > 1 ? steps[axis] * unit : 0;
    odd |= strides[axis];
  }
  if ((odd & (size - 1)) != 0 || (extents[3] > 1 && strides[3] != size)) return std::nullopt;
  const std::size_t heads = tokens_first ? 2 : 1, tokens = tokens_first ? 1 : 2;
  return Operand{extents[0], extents[heads], extents[tokens], extents[3],
                 {data, strides[0] / size, strides[heads] / size, strides[tokens] / size}};
}

inline std::optional<Operand> operand(const py::detail::PyArray_Proxy& array, std::size_t item_size, bool tokens_first) {
  return operand(array.data, array.dimensions, array.strides, 1, item_size, tokens_first);
}

// An int, and no bool; nothing where it is something else, or too large.
std::optional<std::int64_t> whole_number(PyObject* object);

// A new C-contiguous array. A large one begins with a cache line: its rows then lie in as few lines as they fill, and threads
// that write neighbouring rows share none. NumPy's own begin 16 bytes behind a line. The base of such an array holds its bytes.
py::array new_array(const py::dtype& dtype, const std::vector<py::ssize_t>& shape);

// A new array; nothing where there is no memory for it, or where the Python checks ask how much there is.
std::optional<py::array> new_result(PyObject* descriptor, const std::array<std::int64_t, 4>& shape);

// The view of a result of (batch, heads, tokens, width), or with tokens first, that is C-contiguous.
TensorView view_of_result(py::array& out, std::int64_t heads, std::int64_t tokens, std::int64_t width, bool tokens_first);

// The options of a call; keeps alive what the problem then points at, but the mask's memory.
class EverydayOptions {
 public:
  // False where one of them, None or given, is for the checks; the problem has its operands and its causal rule by then.
  bool read(AttentionProblem& p, const py::handle& mask, const py::handle& window, const py::handle& softcap,
            const py::handle& slopes, const py::handle& sinks);

 private:
  std::vector<double> slopes_, sinks_;
};

}  // namespace headway
