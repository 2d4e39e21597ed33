#include "arrays.hpp"

#include <chrono>
#include <exception>
#include <functional>
#include <stdexcept>
#include <thread>

#include "../core/parallel.hpp"

namespace headway {

ElementKind kind_named(const std::string& name) {
  if (name == "float32") return ElementKind::kFloat32;
  if (name == "float64") return ElementKind::kFloat64;
  if (name == "float16") return ElementKind::kFloat16;
  if (name == "bfloat16") return ElementKind::kBFloat16;
  throw std::invalid_argument("kind: expected float32, float64, float16 or bfloat16, got '" + name + "'");
}

ElementKind cache_kind_named(const std::string& name) {
  if (name == "int8") return ElementKind::kInt8;
  if (name == "fp8_e4m3") return ElementKind::kFloat8;
  return kind_named(name);
}

void expect(bool condition, const char* text) {
  if (!condition) throw std::invalid_argument(text);
}

void check_memory(const py::array& array, std::size_t item_size, bool wide, bool writeable, const char* name) {
  const auto fail = [&](const char* why) { throw std::invalid_argument(std::string(name) + ": " + why); };
  const auto size = static_cast<py::ssize_t>(item_size);
  if (array.itemsize() != size) fail("expected another item size");
  if (writeable && !array.writeable()) fail("expected a writeable array");
  if (array.size() == 0) return;  // nothing is read, and the strides mean nothing
  if (reinterpret_cast<std::uintptr_t>(array.data()) % item_size != 0) fail("expected an aligned array");
  const py::ssize_t axes = array.ndim();
  for (py::ssize_t axis = 0; axis < axes; ++axis) {
    if (array.shape(axis) > 1 && array.strides(axis) % size != 0) fail("expected strides of whole items");
  }
  if (wide && array.shape(axes - 1) > 1 && array.strides(axes - 1) != size) fail("expected a contiguous last axis");
}

std::ptrdiff_t stride_of(const py::array& array, int axis) {
  return array.shape(axis) > 1 ? array.strides(axis) / array.itemsize() : 0;
}

TensorView view_of(const py::array& array, int axes, std::size_t item_size, bool writeable, const char* name) {
  if (array.ndim() != axes) throw std::invalid_argument(std::string(name) + ": expected an array of another rank");
  check_memory(array, item_size, axes == 4, writeable, name);
  TensorView view;
  view.data = const_cast<void*>(array.data());
  if (array.size() == 0) return view;
  view.batch_stride = stride_of(array, 0);
  view.head_stride = stride_of(array, 1);
  view.token_stride = stride_of(array, 2);
  return view;
}

void run_released(const std::function<void(const std::function<bool()>&)>& body) {
  bool raised = false;
  const bool main_thread = on_main_thread();  // no other thread runs signal handlers
  const std::function<bool()> interrupted = [&] {
    if (!main_thread) return false;
    const py::gil_scoped_acquire locked;
    raised = raised || PyErr_CheckSignals() != 0;
    return raised;
  };
  std::exception_ptr failure;
  PyThreadState* state = PyEval_SaveThread();
  try {
    body(interrupted);
  } catch (const Interrupted&) {
    // The signal handler's exception is set in this thread.
  } catch (...) {
    failure = std::current_exception();
  }
  // Where the interpreter has ended meanwhile, taking the lock ends a daemon thread by unwinding its stack, up through
  // frames that own Python objects. It waits here for the process to end instead.
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  if (raised) throw py::error_already_set();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace headway
