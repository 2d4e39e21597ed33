#include "arrays.hpp"

#include <functional>
#include <stdexcept>

#include "../core/parallel.hpp"

namespace headway {

ElementKind kind_named(const std::string& name) {
  if (name == "float32") return ElementKind::kFloat32;
  if (name == "float64") return ElementKind::kFloat64;
  if (name == "float16") return ElementKind::kFloat16;
  if (name == "bfloat16") return ElementKind::kBFloat16;
  throw std::invalid_argument("kind: expected float32, float64, float16 or bfloat16, got '" + name + "'");
}

TensorView view_of(const py::array& array, int axes, std::size_t item_size, bool writeable, const char* name) {
  const auto fail = [&](const char* why) { throw std::invalid_argument(std::string(name) + ": " + why); };
  const auto size = static_cast<py::ssize_t>(item_size);
  if (array.ndim() != axes) fail("expected an array of another rank");
  if (array.itemsize() != size) fail("expected another item size");
  if (writeable && !array.writeable()) fail("expected a writeable array");
  const auto address = reinterpret_cast<std::uintptr_t>(array.data());
  if (array.size() > 0 && address % item_size != 0) fail("expected an aligned array");
  TensorView view;
  view.data = const_cast<void*>(array.data());
  if (array.size() == 0) return view;  // nothing is read, and the strides mean nothing
  for (int axis = 0; axis < axes; ++axis) {
    if (array.shape(axis) > 1 && array.strides(axis) % size != 0) fail("expected strides of whole items");
  }
  if (axes == 4 && array.shape(3) > 1 && array.strides(3) != size) fail("expected a contiguous last axis");
  // Nor does the stride of an axis of length 1.
  const auto stride = [&](int axis) { return array.shape(axis) > 1 ? array.strides(axis) / size : 0; };
  view.batch_stride = stride(0);
  view.head_stride = stride(1);
  view.token_stride = stride(2);
  return view;
}

void run_released(const std::function<void(const std::function<bool()>&)>& body) {
  bool raised = false;
  const std::function<bool()> interrupted = [&] {
    const py::gil_scoped_acquire locked;
    raised = raised || PyErr_CheckSignals() != 0;
    return raised;
  };
  try {
    const py::gil_scoped_release released;
    body(interrupted);
  } catch (const Interrupted&) {
    // The signal handler's exception is set in this thread.
  }
  if (raised) throw py::error_already_set();
}

}  // namespace headway
