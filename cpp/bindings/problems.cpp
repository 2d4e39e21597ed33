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

void add_results(AttentionProblem& p, std::int64_t value_dim, const py::array& out, const std::optional<py::array>& lse,
                 const std::string& kind, const std::string& out_kind) {
  p.wide_out = out_kind != kind;
  expect(!p.wide_out || (kind_named(out_kind) == ElementKind::kFloat32 && element_size(p.kind) == 2),
         "out_kind: the input's, or float32 for 16-bit inputs");
  p.value_dim = value_dim;
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

}  // namespace headway
