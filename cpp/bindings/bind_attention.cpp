#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../core/attention.hpp"
#include "../core/parallel.hpp"
#include "bindings.hpp"
#include "problems.hpp"

namespace headway {
namespace {

void attention_call(const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                    const std::optional<py::array>& lse, const std::string& kind, const std::string& out_kind,
                    std::optional<double> scale, bool causal, const std::vector<std::int64_t>& offsets,
                    const py::object& options) {
  AttentionProblem p = problem_of(q, k, kind, scale, offsets);
  expect(static_cast<std::int64_t>(offsets.size()) == p.batch, "offsets: one per batch entry");
  add_values(p, v);
  add_results(p, v.shape(3), out, lse, kind, out_kind);
  const Options kept(options, p, causal);
  run_released([&](const std::function<bool()>& interrupted) { attention(p, interrupted); });
}

// Packed sequences: (1, heads, total, width) views.
void varlen_call(const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                 const std::optional<py::array>& lse, const std::string& kind, const std::string& out_kind,
                 std::optional<double> scale, bool causal, const std::vector<std::int64_t>& offsets,
                 const py::object& options, const py::array_t<std::int64_t, py::array::c_style>& queries,
                 const py::array_t<std::int64_t, py::array::c_style>& keys) {
  AttentionProblem p = problem_of(q, k, kind, scale, offsets);
  expect(p.batch == 1, "q: packed sequences have no batch axis");
  add_values(p, v);
  add_results(p, v.shape(3), out, lse, kind, out_kind);
  add_sequences(p, queries, keys, offsets);
  const Options kept(options, p, causal);
  expect(p.mask.data == nullptr && p.key_counts == nullptr, "options: packed sequences take no mask and no lengths");
  run_released([&](const std::function<bool()>& interrupted) { attention(p, interrupted); });
}

ScoreStage stage_named(const std::string& name) {
  if (name == "scaled") return ScoreStage::kScaled;
  if (name == "capped") return ScoreStage::kCapped;
  if (name == "masked") return ScoreStage::kMasked;
  throw std::invalid_argument("stage: expected scaled, capped or masked, got '" + name + "'");
}

void scores_call(const py::array& q, const py::array& k, const py::array& out, const std::string& kind, std::optional<double> scale,
                 bool causal, const std::vector<std::int64_t>& offsets, const py::object& options, ScoreStage stage) {
  AttentionProblem p = problem_of(q, k, kind, scale, offsets);
  expect(static_cast<std::int64_t>(offsets.size()) == p.batch, "offsets: one per batch entry");
  p.wide_out = stage != ScoreStage::kWeights;
  p.out = view_of(out, 4, p.wide_out ? accumulation_size(p.kind) : element_size(p.kind), true, "out");
  expect(out.shape(0) == p.batch && out.shape(1) == p.num_heads && out.shape(2) == p.num_queries &&
             out.shape(3) == p.num_keys,
         "out: shape does not fit");
  const Options kept(options, p, causal);
  run_released([&](const std::function<bool()>& interrupted) { attention_scores(p, stage, interrupted); });
}

}  // namespace

void bind_attention(py::module_& m) {
  m.def("attention", &attention_call, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("lse"),
        py::arg("kind"), py::arg("out_kind"), py::arg("scale"), py::arg("causal"), py::arg("offsets"), py::arg("options"));
  m.def("attention_varlen", &varlen_call, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("lse"),
        py::arg("kind"), py::arg("out_kind"), py::arg("scale"), py::arg("causal"), py::arg("offsets"),
        py::arg("options"), py::arg("queries"), py::arg("keys"));
  m.def(
      "attention_weights",
      [](const py::array& q, const py::array& k, const py::array& out, const std::string& kind, std::optional<double> scale,
         bool causal, const std::vector<std::int64_t>& offsets, const py::object& options) {
        scores_call(q, k, out, kind, scale, causal, offsets, options, ScoreStage::kWeights);
      },
      py::arg("q"), py::arg("k"), py::arg("out"), py::arg("kind"), py::arg("scale"), py::arg("causal"),
      py::arg("offsets"), py::arg("options"));
  m.def(
      "attention_scores",
      [](const py::array& q, const py::array& k, const py::array& out, const std::string& kind, std::optional<double> scale,
         bool causal, const std::vector<std::int64_t>& offsets, const py::object& options, const std::string& stage) {
        scores_call(q, k, out, kind, scale, causal, offsets, options, stage_named(stage));
      },
      py::arg("q"), py::arg("k"), py::arg("out"), py::arg("kind"), py::arg("scale"), py::arg("causal"),
      py::arg("offsets"), py::arg("options"), py::arg("stage"));
}

}  // namespace headway
