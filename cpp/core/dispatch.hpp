// Which ISA's kernels run: the best one this CPU has, unless HEADWAY_ISA or set_isa says otherwise.
#pragma once

#include <string>
#include <vector>

#include "../kernels/kernel_table.hpp"

namespace headway {

// The kernels in use. Reads HEADWAY_ISA when first called; throws std::invalid_argument that lists the good names
// where it holds another.
const KernelTable& kernels();

// A table's kernels for one kind of element: its own, or those of the table it builds upon.
const KindKernels& attention_kernels(const KernelTable& table, ElementKind kind);
const KindKernels& score_kernels(const KernelTable& table, ElementKind kind);  // with store_scores
const BackwardKernels& backward_kernels(const KernelTable& table, ElementKind kind, bool exact);
const ProjectionKernels& projection_kernels(const KernelTable& table, ElementKind kind);
using Rotation = void (*)(const RotationTask& task);
Rotation rotation_kernel(const KernelTable& table, ElementKind kind);

// Throws std::invalid_argument that lists the good names.
void set_isa(const std::string& name);

std::vector<std::string> available_isas();  // built, and run by this CPU; best first
std::vector<std::string> compiled_isas();   // best first

}  // namespace headway
