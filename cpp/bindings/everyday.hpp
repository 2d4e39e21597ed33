// What a call has most often, read without Python: dtypes by the address of their descriptor, options as plain numbers and
// arrays. What is different in the least is left to the Python checks, which convert or explain.
#pragma once

#include <optional>
#include <vector>

#include "arrays.hpp"

namespace headway {

// The kind behind a dtype, by its address alone: whether two dtypes of one name are the same is for the checks to say.
std::optional<ElementKind> kind_of(PyObject* descriptor);

// The array behind an object, or nullptr where it is none, or of a class derived from NumPy's.
const py::detail::PyArray_Proxy* exact_array(PyObject* object);

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
