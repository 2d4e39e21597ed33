// NumPy arrays -> views of the core. The face has checked them; here only what memory safety needs is checked again.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>

#include "../core/problem.hpp"

namespace headway {

namespace py = pybind11;

ElementKind kind_named(const std::string& name);
// Of a cache's format: the 8-bit ones, too.
ElementKind cache_kind_named(const std::string& name);

// Throws std::invalid_argument(text) unless the condition holds.
void expect(bool condition, const char* text);

// Throws std::invalid_argument where the core cannot use the array: item size, strides, address, or a read-only
// output. `wide`: its last axis is contiguous.
void check_memory(const py::array& array, std::size_t item_size, bool wide, bool writeable, const char* name);

// The stride of an axis in elements; 0 where it means nothing, for the axis has one element.
std::ptrdiff_t stride_of(const py::array& array, int axis);

// The view of an array of 3 axes (no width) or 4 axes (its last one contiguous), checked as above.
TensorView view_of(const py::array& array, int axes, std::size_t item_size, bool writeable, const char* name);

// Runs `body` without the interpreter lock; it gets a function that says whether a signal handler raised, in which
// case the Python exception is passed on.
void run_released(const std::function<void(const std::function<bool()>&)>& body);

}  // namespace headway
