#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../core/attention.hpp"
#include "../core/parallel.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace headway {
namespace {

// What acts on the scores, out of the options object of headway.options; it keeps what the problem points at alive.
class Options {
 public:
  Options(const py::handle& options, AttentionProblem& p, bool causal) {
    p.right = causal ? 0 : kNoLimit;
    if (options.is_none()) return;
    p.left = std::min(options.attr("left").cast<std::int64_t>(), kNoLimit);
    p.right = std::min(options.attr("right").cast<std::int64_t>(), kNoLimit);
    expect(p.left >= 0 && p.right >= 0 && (!causal || p.right == 0), "left, right: 0 or more, right 0 where causal");
    p.softcap = options.attr("softcap").cast<double>();
    if (const py::object lengths = options.attr("lengths"); !lengths.is_none()) {
      lengths_ = lengths.cast<std::vector<std::int64_t>>();
      expect(static_cast<std::int64_t>(lengths_.size()) == p.batch, "lengths: one per batch entry");
      for (const auto n : lengths_) expect(n >= 0 && n <= p.num_keys, "lengths: 0 .. num_keys");
      p.key_counts = lengths_.data();
    }
    p.slopes = numbers(options.attr("slopes"), slopes_, p.batch * p.num_heads, "slopes");
    p.sinks = numbers(options.attr("sinks"), sinks_, p.num_heads, "sinks");
    if (const py::object mask = options.attr("mask"); !mask.is_none()) read_mask(mask, options, p);
  }

 private:
  const double* numbers(const py::object& object, py::array& keep, std::int64_t count, const char* name) {
    if (object.is_none()) return nullptr;
    keep = object.cast<py::array>();
    check_memory(keep, sizeof(double), true, false, name);
    expect(keep.dtype().kind() == 'f' && keep.size() == count && (keep.flags() & py::array::c_style) != 0,
           "slopes, sinks: contiguous float64 numbers, one per head");
    return static_cast<const double*>(keep.data());
  }

  void read_mask(const py::object& object, const py::handle& options, AttentionProblem& p) {
    mask_ = object.cast<py::array>();
    const auto kind = options.attr("mask_kind").cast<std::string>();
    p.mask.kind = kind == "bool" ? MaskKind::kBool : static_cast<MaskKind>(kind_named(kind));
    check_memory(mask_, element_size(p.mask.kind), false, false, "mask");
    expect(mask_.ndim() == 4 && mask_.shape(0) == p.batch && mask_.shape(1) == p.num_heads &&
               mask_.shape(2) == p.num_queries && mask_.shape(3) == p.num_keys,
           "mask: shape does not fit");
    p.mask.data = mask_.data();
    p.mask.batch_stride = stride_of(mask_, 0);
    p.mask.head_stride = stride_of(mask_, 1);
    p.mask.token_stride = stride_of(mask_, 2);
    p.mask.key_stride = stride_of(mask_, 3);
  }

  std::vector<std::int64_t> lengths_;
  py::array slopes_, sinks_, mask_;
};

// The problem without values and output.
AttentionProblem problem_of(const py::array& q, const py::array& k, const std::string& kind, std::optional<double> scale,
                            const std::vector<std::int64_t>& positions) {
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
  expect(k.shape(0) == p.batch && k.shape(3) == p.head_dim, "k: shape does not fit q");
  expect(p.num_heads == 0 || (p.num_kv_heads > 0 && p.num_heads % p.num_kv_heads == 0), "k: heads do not fit q");
  expect(p.head_dim >= 1, "q: head_dim below 1");
  return p;
}

void add_results(AttentionProblem& p, const py::array& v, const py::array& out, const std::optional<py::array>& lse,
                 const std::string& kind, const std::string& out_kind) {
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
}

void attention_call(const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                    const std::optional<py::array>& lse, const std::string& kind, const std::string& out_kind,
                    std::optional<double> scale, bool causal, const std::vector<std::int64_t>& offsets,
                    const py::object& options) {
  AttentionProblem p = problem_of(q, k, kind, scale, offsets);
  expect(static_cast<std::int64_t>(offsets.size()) == p.batch, "offsets: one per batch entry");
  add_results(p, v, out, lse, kind, out_kind);
  const Options kept(options, p, causal);
  run_released([&](const std::function<bool()>& interrupted) { attention(p, interrupted); });
}

// The entries of cumulative lengths, which must fit `total`; longest <- the longest entry.
const std::int64_t* begins_of(const py::array_t<std::int64_t, py::array::c_style>& array, std::int64_t total,
                              std::int64_t& longest) {
  expect(array.ndim() == 1 && array.size() >= 1, "cumulative lengths: expected one axis");
  const std::int64_t* begins = array.data();
  expect(begins[0] == 0 && begins[array.size() - 1] == total, "cumulative lengths: expected 0 .. total");
  longest = 0;
  for (py::ssize_t i = 1; i < array.size(); ++i) {
    expect(begins[i] >= begins[i - 1], "cumulative lengths: falling");
    longest = std::max(longest, begins[i] - begins[i - 1]);
  }
  return begins;
}

// Packed sequences: (1, heads, total, width) views.
void varlen_call(const py::array& q, const py::array& k, const py::array& v, const py::array& out,
                 const std::optional<py::array>& lse, const std::string& kind, const std::string& out_kind,
                 std::optional<double> scale, bool causal, const std::vector<std::int64_t>& offsets,
                 const py::object& options, const py::array_t<std::int64_t, py::array::c_style>& queries,
                 const py::array_t<std::int64_t, py::array::c_style>& keys) {
  AttentionProblem p = problem_of(q, k, kind, scale, offsets);
  expect(p.batch == 1, "q: packed sequences have no batch axis");
  add_results(p, v, out, lse, kind, out_kind);
  p.query_begins = begins_of(queries, q.shape(2), p.num_queries);
  p.key_begins = begins_of(keys, k.shape(2), p.num_keys);
  p.batch = queries.size() - 1;
  expect(keys.size() == queries.size() && static_cast<std::int64_t>(offsets.size()) == p.batch,
         "offsets, cumulative lengths: one per sequence");
  for (TensorView* view : {&p.q, &p.k, &p.v, &p.out, &p.lse}) view->batch_stride = 0;
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
