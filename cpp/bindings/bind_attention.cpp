#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "../core/attention.hpp"
#include "../core/parallel.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace headway {
namespace {

// The problem without values and output.
AttentionProblem problem_of(const py::array& q, const py::array& k, const std::string& kind, std::optional<double> scale,
                            bool causal, const std::vector<std::int64_t>& positions) {
  AttentionProblem p{};
  p.kind = kind_named(kind);
  p.q = view_of(q, 4, element_size(p.kind), false, "q");
  p.k = view_of(k, 4, element_size(p.kind), false, "k");
  p.batch = q.shape(0);
  p.num_heads = q.shape(1);
  p.num_queries = q.shape(2);
  p.head_dim = q.shape(3);
  p.num_kv_heads = k.shape(1);
  p.num_keys = k.shape(2);
  p.positions = positions.data();
  p.scale = scale;
  p.causal = causal;
  expect(k.shape(0) == p.batch && k.shape(3) == p.head_dim, "k: shape does not fit q");
  expect(p.num_heads == 0 || (p.num_kv_heads > 0 && p.num_heads % p.num_kv_heads == 0), "k: heads do not fit q");
  expect(p.head_dim >= 1, "q: head_dim below 1");
  expect(static_cast<std::int64_t>(positions.size()) == p.batch, "offsets: one per batch entry");
  return p;
}

void attention_call(const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                    const std::optional<py::array>& lse, const std::string& kind, const std::string& out_kind,
                    std::optional<double> scale, bool causal, const std::vector<std::int64_t>& offsets) {
  AttentionProblem p = problem_of(q, k, kind, scale, causal, offsets);
  p.wide_out = out_kind != kind;
  expect(!p.wide_out || (kind_named(out_kind) == ElementKind::kFloat32 && element_size(p.kind) == 2),
         "out_kind: the input's, or float32 for 16-bit inputs");
  p.v = view_of(v, 4, element_size(p.kind), false, "v");
  p.value_dim = v.shape(3);
  expect(v.shape(0) == p.batch && v.shape(1) == p.num_kv_heads && v.shape(2) == p.num_keys, "v: shape does not fit k");
  p.out = view_of(out, 4, p.wide_out ? accumulation_size(p.kind) : element_size(p.kind), true, "out");
  expect(out.shape(0) == p.batch && out.shape(1) == p.num_heads && out.shape(2) == p.num_queries &&
             out.shape(3) == p.value_dim,
         "out: shape does not fit");
  if (lse) {
    p.lse = view_of(*lse, 3, accumulation_size(p.kind), true, "lse");
    expect(lse->shape(0) == p.batch && lse->shape(1) == p.num_heads && lse->shape(2) == p.num_queries,
           "lse: shape does not fit");
  }
  run_released([&](const std::function<bool()>& interrupted) { attention(p, interrupted); });
}

void scores_call(const py::array& q, const py::array& k, const py::array& out, const std::string& kind, std::optional<double> scale,
                 bool causal, const std::vector<std::int64_t>& offsets, ScoreStage stage) {
  AttentionProblem p = problem_of(q, k, kind, scale, causal, offsets);
  p.wide_out = stage != ScoreStage::kWeights;
  p.out = view_of(out, 4, p.wide_out ? accumulation_size(p.kind) : element_size(p.kind), true, "out");
  expect(out.shape(0) == p.batch && out.shape(1) == p.num_heads && out.shape(2) == p.num_queries &&
             out.shape(3) == p.num_keys,
         "out: shape does not fit");
  run_released([&](const std::function<bool()>& interrupted) { attention_scores(p, stage, interrupted); });
}

}  // namespace

void bind_attention(py::module_& m) {
  m.def("attention", &attention_call, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("lse"),
        py::arg("kind"), py::arg("out_kind"), py::arg("scale"), py::arg("causal"), py::arg("offsets"));
  m.def(
      "attention_weights",
      [](const py::array& q, const py::array& k, const py::array& out, const std::string& kind, std::optional<double> scale,
         bool causal, const std::vector<std::int64_t>& offsets) {
        scores_call(q, k, out, kind, scale, causal, offsets, ScoreStage::kWeights);
      },
      py::arg("q"), py::arg("k"), py::arg("out"), py::arg("kind"), py::arg("scale"), py::arg("causal"),
      py::arg("offsets"));
  m.def(
      "attention_scores",
      [](const py::array& q, const py::array& k, const py::array& out, const std::string& kind, std::optional<double> scale,
         bool causal, const std::vector<std::int64_t>& offsets, bool masked) {
        scores_call(q, k, out, kind, scale, causal, offsets, masked ? ScoreStage::kMasked : ScoreStage::kScaled);
      },
      py::arg("q"), py::arg("k"), py::arg("out"), py::arg("kind"), py::arg("scale"), py::arg("causal"),
      py::arg("offsets"), py::arg("masked"));
}

}  // namespace headway
