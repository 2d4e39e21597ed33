// One function per topic, called by module.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace headway {

void bind_attention(pybind11::module_& m);
void bind_backward(pybind11::module_& m);
void bind_cache(pybind11::module_& m);
void bind_everyday_cache(pybind11::module_& m);
void bind_plain(pybind11::module_& m);
void bind_projection(pybind11::module_& m);
void bind_quantize(pybind11::module_& m);
void bind_rotary(pybind11::module_& m);
void bind_runtime(pybind11::module_& m);

}  // namespace headway
