#include "tasks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

namespace headway {

void check_widths(const AttentionProblem& problem) {
  constexpr std::int64_t kMaxWidth = std::int64_t{1} << 40;  // far beyond any memory
  if (problem.head_dim > kMaxWidth || problem.value_dim > kMaxWidth) throw std::bad_alloc();
}

void* offset(const TensorView& view, std::size_t size, std::int64_t batch, std::int64_t head, std::int64_t token) {
  const std::ptrdiff_t elements = batch * view.batch_stride + head * view.head_stride + token * view.token_stride;
  return static_cast<char*>(view.data) + elements * static_cast<std::ptrdiff_t>(size);
}

namespace {

// The weights of query heads from `head` on. A weight is dropped with the probability rounded to a multiple of 2^-32, to
// nearest, ties to even; never all of them.
Dropout dropout_of(const AttentionProblem& p, std::int64_t batch, std::int64_t head) {
  if (p.dropout == 0) return Dropout{};
  constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
  return Dropout{
      .drops = true,
      .threshold = static_cast<std::uint32_t>(std::min(std::nearbyint(p.dropout * 0x1p32), double{kMost})),
      .seed_low = static_cast<std::uint32_t>(p.seed),
      .seed_high = static_cast<std::uint32_t>(p.seed >> 32),
      .batch = static_cast<std::uint32_t>(batch),
      .head = static_cast<std::uint32_t>(head),
      .scale = 1 / (1 - p.dropout),
  };
}

ScoreOptions options_of(const AttentionProblem& p, std::int64_t batch, std::int64_t head) {
  const MaskView& mask = p.mask;
  const std::ptrdiff_t at = batch * mask.batch_stride + head * mask.head_stride;
  return ScoreOptions{
      .softcap = p.softcap,
      .slopes = p.slopes != nullptr ? p.slopes + batch * p.num_heads + head : nullptr,
      .sinks = p.sinks != nullptr ? p.sinks + head : nullptr,
      .mask = mask.data != nullptr
                  ? static_cast<const char*>(mask.data) + at * static_cast<std::ptrdiff_t>(element_size(mask.kind))
                  : nullptr,
      .mask_kind = mask.kind,
      .mask_token_stride = mask.token_stride,
      .mask_head_stride = mask.head_stride,
      .mask_key_stride = mask.key_stride,
      .dropout = dropout_of(p, batch, head),
  };
}

KeyPages pages_of(const AttentionProblem& p, std::int64_t batch, std::int64_t kv_head) {
  const PagesView& pages = p.pages;
  const auto scales = [&](const TensorView& view) {
    return view.data != nullptr ? static_cast<const float*>(offset(view, sizeof(float), 0, kv_head, 0)) : nullptr;
  };
  return KeyPages{
      .table = pages.table != nullptr ? pages.table + batch * pages.pages_per_entry : nullptr,
      .count = pages.pages_per_entry,
      .size = pages.page_size,
      .k_stride = p.k.batch_stride,
      .v_stride = p.v.batch_stride,
      .k_scales = scales(pages.k_scales),
      .v_scales = scales(pages.v_scales),
      .k_scale_stride = pages.k_scales.batch_stride,
      .v_scale_stride = pages.v_scales.batch_stride,
      .k_scale_token_stride = pages.k_scales.token_stride,
      .v_scale_token_stride = pages.v_scales.token_stride,
  };
}

}  // namespace

AttentionTask task_of(const AttentionProblem& p, const TaskPlace& place, void* workspace) {
  const std::size_t size = element_size(p.kind), key_size = element_size(p.key_kind);
  const std::size_t out_size = p.wide_out ? accumulation_size(p.kind) : size;
  const std::int64_t group = p.num_heads / p.num_kv_heads, head = place.kv_head * group;
  const Sequence& s = place.sequence;
  const std::int64_t first_page = p.pages.table != nullptr ? 0 : place.batch;
  return AttentionTask{
      .q = offset(p.q, size, place.batch, head, s.first_query),
      .k = offset(p.k, key_size, first_page, place.kv_head, s.first_key),
      .v = offset(p.v, key_size, first_page, place.kv_head, s.first_key),
      .out = offset(p.out, out_size, place.batch, head, s.first_query),
      .q_token_stride = p.q.token_stride,
      .q_head_stride = p.q.head_stride,
      .k_token_stride = p.k.token_stride,
      .v_token_stride = p.v.token_stride,
      .out_token_stride = p.out.token_stride,
      .out_head_stride = p.out.head_stride,
      .group = group,
      .head_dim = p.head_dim,
      .value_dim = p.value_dim,
      .num_keys = s.num_keys,
      .first_row = place.first_row,
      .num_rows = place.num_rows,
      .first_position = p.positions[place.batch],
      .left = p.left,
      .right = p.right,
      // Computed here, in a task, so that the caller's rounding mode does not matter.
      .scale = p.scale ? *p.scale : 1 / std::sqrt(static_cast<double>(p.head_dim)),
      .options = options_of(p, place.batch, head),
      .pages = pages_of(p, place.batch, place.kv_head),
      // Rows that lie apart are not foreseen by the CPU either.
      .cold = place.cold || p.k.token_stride != p.head_dim || p.v.token_stride != p.value_dim,
      .keys_read = s.num_keys,
      .next = nullptr,
      .next_key = 0,
      .wide_out = p.wide_out,
      .workspace = workspace,
      .kept_mask = nullptr,
      .mask_is_kept = false,
  };
}

}  // namespace headway
