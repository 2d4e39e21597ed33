#include "problems.hpp"

#include <pybind11/stl.h>

#include <algorithm>

namespace headway {

Options::Options(const py::handle& options, AttentionProblem& p, bool causal) {
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
  p.dropout = options.attr("dropout").cast<double>();
  p.seed = options.attr("seed").cast<std::uint64_t>();
  expect(p.dropout >= 0 && p.dropout < 1, "dropout: 0 or more, less than 1");
  if (const py::object mask = options.attr("mask"); !mask.is_none()) read_mask(mask, options, p);
}

const double* Options::numbers(const py::object& object, py::array& keep, std::int64_t count, const char* name) {
  if (object.is_none()) return nullptr;
  keep = object.cast<py::array>();
  check_memory(keep, sizeof(double), true, false, name);
  expect(keep.dtype().kind() == 'f' && keep.size() == count && (keep.flags() & py::array::c_style) != 0,
         "slopes, sinks: contiguous float64 numbers, one per head");
  return static_cast<const double*>(keep.data());
}

void Options::read_mask(const py::object& object, const py::handle& options, AttentionProblem& p) {
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

AttentionProblem queries_of(const py::array& q, const std::string& kind, std::optional<double> scale,
                            const std::vector<std::int64_t>& positions) {
  AttentionProblem p{};
  p.kind = p.key_kind = kind_named(kind);
  p.q = view_of(q, 4, element_size(p.kind), false, "q");
  p.batch = q.shape(0);
  p.num_heads = q.shape(1);
  p.num_queries = q.shape(2);
  p.head_dim = q.shape(3);
  p.positions = positions.data();
  p.scale = scale;
  expect(p.head_dim >= 1, "q: head_dim below 1");
  return p;
}

AttentionProblem problem_of(const py::array& q, const py::array& k, const std::string& kind, std::optional<double> scale,
                            const std::vector<std::int64_t>& positions) {
  AttentionProblem p = queries_of(q, kind, scale, positions);
  p.k = view_of(k, 4, element_size(p.kind), false, "k");
  p.num_kv_heads = k.shape(1);
  p.num_keys = k.shape(2);
  expect(k.shape(0) == p.batch && k.shape(3) == p.head_dim, "k: shape does not fit q");
  expect(p.num_heads == 0 || (p.num_kv_heads > 0 && p.num_heads % p.num_kv_heads == 0), "k: heads do not fit q");
  return p;
}

void add_values(AttentionProblem& p, const py::array& v) {
  p.v = view_of(v, 4, element_size(p.kind), false, "v");
  expect(v.shape(0) == p.batch && v.shape(1) == p.num_kv_heads && v.shape(2) == p.num_keys, "v: shape does not fit k");
}

namespace {

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

}  // namespace

void add_sequences(AttentionProblem& p, const py::array_t<std::int64_t, py::array::c_style>& queries,
                   const py::array_t<std::int64_t, py::array::c_style>& keys, const std::vector<std::int64_t>& offsets) {
  p.query_begins = begins_of(queries, p.num_queries, p.num_queries);
  p.key_begins = begins_of(keys, p.num_keys, p.num_keys);
  p.batch = queries.size() - 1;
  expect(keys.size() == queries.size() && static_cast<std::int64_t>(offsets.size()) == p.batch,
         "offsets, cumulative lengths: one per sequence");
  for (TensorView* view : {&p.q, &p.k, &p.v, &p.out, &p.lse}) view->batch_stride = 0;
}

void add_results(AttentionProblem& p, std::int64_t value_dim, const py::array& out, const std::optional<py::array>& lse,
                 const std::string& kind, const std::string& out_kind, bool writeable) {
  p.wide_out = out_kind != kind;
  expect(!p.wide_out || (kind_named(out_kind) == ElementKind::kFloat32 && element_size(p.kind) == 2),
         "out_kind: the input's, or float32 for 16-bit inputs");
  p.value_dim = value_dim;
  p.out = view_of(out, 4, p.wide_out ? accumulation_size(p.kind) : element_size(p.kind), writeable, "out");
  expect(out.shape(0) == p.batch && out.shape(1) == p.num_heads && out.shape(2) == p.num_queries &&
             out.shape(3) == p.value_dim,
         "out: shape does not fit");
  if (lse) {
    p.lse = view_of(*lse, 3, accumulation_size(p.kind), writeable, "lse");
    expect(lse->shape(0) == p.batch && lse->shape(1) == p.num_heads && lse->shape(2) == p.num_queries,
           "lse: shape does not fit");
  }
}

}  // namespace headway
