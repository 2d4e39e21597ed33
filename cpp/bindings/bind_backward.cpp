#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <optional>
#include <vector>

#include "../core/backward.hpp"
#include "bindings.hpp"
#include "problems.hpp"

namespace headway {
namespace {

using Offsets = py::array_t<std::int64_t, py::array::c_style>;

// A (batch, heads, tokens, width) view of results or inputs, its shape checked.
TensorView checked(const py::array& array, std::size_t size, bool writeable, const char* name, std::int64_t batch, std::int64_t heads,
                   std::int64_t tokens, std::int64_t width) {
  const TensorView view = view_of(array, 4, size, writeable, name);
  expect(array.shape(0) == batch && array.shape(1) == heads && array.shape(2) == tokens && array.shape(3) == width,
         "backward: a shape does not fit");
  return view;
}

// What all calls share, without options.
BackwardProblem backward_of(const py::array& grad_out, const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                            const py::array& lse, const std::optional<py::array>& grad_lse, const std::string& kind,
                            const std::string& out_kind, std::optional<double> scale, const std::vector<std::int64_t>& offsets) {
  BackwardProblem b{};
  AttentionProblem& p = b.forward = problem_of(q, k, kind, scale, offsets);
  add_values(p, v);
  add_results(p, v.shape(3), out, lse, kind, out_kind, false);
  const std::size_t wide = accumulation_size(p.kind);
  b.grad_out = checked(grad_out, p.wide_out ? wide : element_size(p.kind), false, "grad_out", p.batch, p.num_heads, p.num_queries, p.value_dim);
  if (grad_lse) {
    b.grad_lse = view_of(*grad_lse, 3, wide, false, "grad_lse");
    expect(grad_lse->shape(0) == p.batch && grad_lse->shape(1) == p.num_heads && grad_lse->shape(2) == p.num_queries,
           "grad_lse: shape does not fit");
  }
  return b;
}

void add_gradients(BackwardProblem& b, const py::array& dq, const py::array& dk, const py::array& dv, const std::optional<py::array>& dsinks) {
  const AttentionProblem& p = b.forward;
  const std::size_t size = element_size(p.kind);
  b.dq = checked(dq, size, true, "dq", p.batch, p.num_heads, p.num_queries, p.head_dim);
  b.dk = checked(dk, size, true, "dk", p.batch, p.num_kv_heads, p.num_keys, p.head_dim);
  b.dv = checked(dv, size, true, "dv", p.batch, p.num_kv_heads, p.num_keys, p.value_dim);
  if (dsinks) {
    check_memory(*dsinks, sizeof(double), true, true, "dsinks");
    expect(dsinks->ndim() == 1 && dsinks->size() == p.num_heads, "dsinks: one per head");
    b.dsinks = static_cast<double*>(const_cast<void*>(dsinks->data()));
  }
}

void check_sinks(const BackwardProblem& b) {
  expect(b.dsinks == nullptr || b.forward.sinks != nullptr, "dsinks: there are no sinks");
}

void backward_call(const py::array& grad_out, const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                   const py::array& lse, const std::optional<py::array>& grad_lse, const py::array& dq, const py::array& dk,
                   const py::array& dv, const std::optional<py::array>& dsinks, const std::string& kind, const std::string& out_kind,
                   std::optional<double> scale, bool causal, const std::vector<std::int64_t>& offsets, const py::object& options) {
  BackwardProblem b = backward_of(grad_out, q, k, v, out, lse, grad_lse, kind, out_kind, scale, offsets);
  expect(static_cast<std::int64_t>(offsets.size()) == b.forward.batch, "offsets: one per batch entry");
  add_gradients(b, dq, dk, dv, dsinks);
  const Options kept(options, b.forward, causal);
  check_sinks(b);
  run_released([&](const std::function<bool()>& interrupted) { attention_backward(b, interrupted); });
}

void varlen_call(const py::array& grad_out, const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                 const py::array& lse, const std::optional<py::array>& grad_lse, const py::array& dq, const py::array& dk,
                 const py::array& dv, const std::optional<py::array>& dsinks, const std::string& kind, const std::string& out_kind,
                 std::optional<double> scale, bool causal, const std::vector<std::int64_t>& offsets, const py::object& options,
                 const Offsets& queries, const Offsets& keys) {
  BackwardProblem b = backward_of(grad_out, q, k, v, out, lse, grad_lse, kind, out_kind, scale, offsets);
  AttentionProblem& p = b.forward;
  expect(p.batch == 1, "q: packed sequences have no batch axis");
  add_gradients(b, dq, dk, dv, dsinks);
  add_sequences(p, queries, keys, offsets);
  for (TensorView* view : {&b.grad_out, &b.grad_lse, &b.dq, &b.dk, &b.dv}) view->batch_stride = 0;
  const Options kept(options, p, causal);
  expect(p.mask.data == nullptr && p.key_counts == nullptr, "options: packed sequences take no mask and no lengths");
  check_sinks(b);
  run_released([&](const std::function<bool()>& interrupted) { attention_backward(b, interrupted); });
}

void scores_call(const py::array& grad_out, const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                 const py::array& lse, const std::optional<py::array>& grad_lse, const py::array& grad_scores, const std::string& kind,
                 const std::string& out_kind, std::optional<double> scale, bool causal, const std::vector<std::int64_t>& offsets,
                 const py::object& options) {
  BackwardProblem b = backward_of(grad_out, q, k, v, out, lse, grad_lse, kind, out_kind, scale, offsets);
  const AttentionProblem& p = b.forward;
  expect(static_cast<std::int64_t>(offsets.size()) == p.batch, "offsets: one per batch entry");
  b.scores = checked(grad_scores, accumulation_size(p.kind), true, "grad_scores", p.batch, p.num_heads, p.num_queries, p.num_keys);
  const Options kept(options, b.forward, causal);
  run_released([&](const std::function<bool()>& interrupted) { score_gradients(b, interrupted); });
}

}  // namespace

void bind_backward(py::module_& m) {
  m.def("attention_backward", &backward_call, py::arg("grad_out"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"),
        py::arg("lse"), py::arg("grad_lse"), py::arg("dq"), py::arg("dk"), py::arg("dv"), py::arg("dsinks"), py::arg("kind"),
        py::arg("out_kind"), py::arg("scale"), py::arg("causal"), py::arg("offsets"), py::arg("options"));
  m.def("attention_varlen_backward", &varlen_call, py::arg("grad_out"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"),
        py::arg("lse"), py::arg("grad_lse"), py::arg("dq"), py::arg("dk"), py::arg("dv"), py::arg("dsinks"), py::arg("kind"),
        py::arg("out_kind"), py::arg("scale"), py::arg("causal"), py::arg("offsets"), py::arg("options"), py::arg("queries"),
        py::arg("keys"));
  m.def("attention_score_gradients", &scores_call, py::arg("grad_out"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"),
        py::arg("lse"), py::arg("grad_lse"), py::arg("grad_scores"), py::arg("kind"), py::arg("out_kind"), py::arg("scale"),
        py::arg("causal"), py::arg("offsets"), py::arg("options"));
}

}  // namespace headway
