#include "bindings.hpp"

PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
  m.doc() = "The C++ core of headway. Its arguments are checked by the Python functions that call it.";
  headway::bind_attention(m);
  headway::bind_backward(m);
  headway::bind_cache(m);
  headway::bind_everyday_cache(m);
  headway::bind_plain(m);
  headway::bind_projection(m);
  headway::bind_quantize(m);
  headway::bind_rotary(m);
  headway::bind_runtime(m);
}
