// The options' cases of the guard-page executable: q, k, v, mask and results each between unreadable pages, with masks of
// every kind and layout, windows, soft cap, slopes, sinks, dropout, lengths and packed sequences, alone and together.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "../core/attention.hpp"
#include "../core/dispatch.hpp"
#include "guarded.hpp"
#include "plain_loops.hpp"

namespace headway {
namespace {

// Which axes a mask has, batch entries apart. The others have stride 0.
enum class MaskAxes { kNone, kAll, kHeads, kQueries, kKeys, kQueriesAndKeys, kOneElement, kTransposed, kReversed };

struct Case {
  std::int64_t batch = 1, heads = 2, kv_heads = 1, queries = 5, keys = 67, head_dim = 9, value_dim = 5;
  std::int64_t left = kNoLimit, right = 0, ahead = 0;  // ahead: from aligned ends to where query 0 stands
  double softcap = 0, dropout = 0;
  bool slopes = false, sinks = false, lengths = false, packed = false;
  bool apart = false;  // rows of k and v 16 KiB apart, which the kernels copy
  MaskAxes mask = MaskAxes::kNone;
  MaskKind mask_kind = MaskKind::kBool;
};

// The elements that a mask of these axes has, its strides, and where its first one lies among them.
std::int64_t lay_out_mask(const Case& c, MaskView& mask, std::int64_t& first) {
  mask.kind = c.mask_kind;
  first = 0;
  switch (c.mask) {
    case MaskAxes::kNone: return 0;
    case MaskAxes::kOneElement: return 1;
    case MaskAxes::kHeads: mask.head_stride = 1; return c.heads;
    case MaskAxes::kQueries: mask.token_stride = 1; return c.queries;
    case MaskAxes::kKeys: mask.batch_stride = c.keys; mask.key_stride = 1; return c.batch * c.keys;
    case MaskAxes::kQueriesAndKeys: mask.token_stride = c.keys; mask.key_stride = 1; return c.queries * c.keys;
    case MaskAxes::kTransposed: mask.token_stride = 1; mask.key_stride = c.queries; return c.queries * c.keys;
    case MaskAxes::kReversed:
      mask.token_stride = -c.keys;
      mask.key_stride = -1;
      first = c.queries * c.keys - 1;
      return c.queries * c.keys;
    case MaskAxes::kAll: break;
  }
  mask.key_stride = 1;
  mask.token_stride = c.keys;
  mask.head_stride = c.queries * c.keys;
  mask.batch_stride = c.heads * c.queries * c.keys;
  return c.batch * c.heads * c.queries * c.keys;
}

// Some runs of elements, as long as a block of keys or shorter, hide; the others show, or add a number.
void fill_mask(char* p, MaskKind kind, std::int64_t count) {
  if (kind != MaskKind::kBool) fill(p, static_cast<ElementKind>(kind), count, 4);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool hidden = count > 1 && (i % 7 == 3 || i / 37 % 5 == 1 || i / 160 % 3 == 1);
    if (kind == MaskKind::kBool) {
      p[i] = hidden ? 0 : static_cast<char>(1 + i % 2 * 254);  // any byte but 0 shows
    } else if (hidden) {
      write(p, static_cast<ElementKind>(kind), i, -kInfinity);
    }
  }
}

bool run(const Case& c, ElementKind kind, bool at_end) {
  const std::size_t size = element_size(kind), wide = accumulation_size(kind);
  const ElementKind wide_kind = wide == 8 ? ElementKind::kFloat64 : ElementKind::kFloat32;
  // Packed: an empty entry, one without keys, and two of other lengths than the longest, which is the first.
  const std::int64_t batch = c.packed ? 5 : c.batch;
  const std::vector<std::int64_t> query_begins{0, c.queries, c.queries, c.queries + 2, 2 * c.queries + 1, 2 * c.queries + 2};
  const std::vector<std::int64_t> key_begins{0, c.keys, c.keys + 3, c.keys + 3, c.keys + 4, 2 * c.keys + 3};
  const std::int64_t q_tokens = c.packed ? query_begins.back() : c.batch * c.queries;
  const std::int64_t k_tokens = c.packed ? key_begins.back() : c.batch * c.keys;
  const auto bytes = [](std::int64_t count, std::size_t each) { return static_cast<std::size_t>(count) * each; };
  const std::int64_t rows = c.heads * q_tokens, k_rows = c.kv_heads * k_tokens;
  const auto far = static_cast<std::int64_t>(16384 / size);
  const std::int64_t k_step = c.apart ? far : c.head_dim, v_step = c.apart ? far : c.value_dim;
  const std::int64_t k_count = (k_rows - 1) * k_step + c.head_dim, v_count = (k_rows - 1) * v_step + c.value_dim;
  const Guarded q(bytes(rows * c.head_dim, size), at_end), k(bytes(k_count, size), at_end), v(bytes(v_count, size), at_end);
  const Guarded out(bytes(rows * c.value_dim, size), at_end);
  const Guarded lse(bytes(rows, wide), at_end), weights(bytes(rows * c.keys, size), at_end);
  const Guarded scores(bytes(rows * c.keys, wide), at_end);
  fill(q.data(), kind, rows * c.head_dim, 1);
  fill(k.data(), kind, k_count, 2);
  fill(v.data(), kind, v_count, 3);

  AttentionProblem p{};
  p.kind = p.key_kind = kind;
  p.batch = batch;
  p.num_heads = c.heads;
  p.num_kv_heads = c.kv_heads;
  p.num_queries = c.queries;
  p.num_keys = c.keys;
  p.head_dim = c.head_dim;
  p.value_dim = c.value_dim;
  // (batch, heads, tokens, width), or packed (tokens, heads, width), rows `step` apart.
  const auto view = [&](const Guarded& memory, std::int64_t heads, std::int64_t tokens, std::int64_t step) {
    return c.packed ? TensorView{memory.data(), 0, step, heads * step}
                    : TensorView{memory.data(), heads * tokens * step, tokens * step, step};
  };
  p.q = view(q, c.heads, c.queries, c.head_dim);
  p.k = view(k, c.kv_heads, c.keys, k_step);
  p.v = view(v, c.kv_heads, c.keys, v_step);
  p.out = view(out, c.heads, c.queries, c.value_dim);
  p.lse = view(lse, c.heads, c.queries, 1);
  p.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  p.left = c.left;
  p.right = c.right;
  p.softcap = c.softcap;
  p.dropout = c.dropout;
  p.seed = 0x123456789abcdef;
  if (c.packed) {
    p.query_begins = query_begins.data();
    p.key_begins = key_begins.data();
  }
  std::vector<std::int64_t> counts, positions;
  std::vector<double> slopes, sinks;
  for (std::int64_t b = 0; b < batch; ++b) {
    counts.push_back(std::max<std::int64_t>(0, c.keys - 3 - 40 * b));
    for (std::int64_t h = 0; h < c.heads; ++h) slopes.push_back(b % 2 == 0 && h == 0 ? 0.5 : 0.0625);
  }
  for (std::int64_t h = 0; h < c.heads; ++h) sinks.push_back(h % 2 == 0 ? 0.75 : -kInfinity);
  if (c.lengths) p.key_counts = counts.data();
  if (c.slopes) p.slopes = slopes.data();
  if (c.sinks) p.sinks = sinks.data();
  for (std::int64_t b = 0; b < batch; ++b) {
    const Entry entry = entry_of(p, b);
    positions.push_back(entry.num_keys - entry.num_queries + c.ahead);
    if (!c.lengths) continue;
    for (std::int64_t row = 0; row < c.kv_heads * c.keys; ++row) {  // NaN in what does not count
      if (row % c.keys < entry.num_keys) continue;
      const std::int64_t at = b * c.kv_heads * c.keys + row;
      for (std::int64_t d = 0; d < c.head_dim; ++d) write(k.data(), kind, at * k_step + d, kInfinity - kInfinity);
      for (std::int64_t d = 0; d < c.value_dim; ++d) write(v.data(), kind, at * v_step + d, kInfinity - kInfinity);
    }
  }
  p.positions = positions.data();
  std::int64_t first = 0;
  const std::int64_t mask_count = lay_out_mask(c, p.mask, first);
  const std::size_t mask_size = element_size(c.mask_kind);
  const Guarded mask(bytes(mask_count, mask_size), at_end);
  fill_mask(mask.data(), c.mask_kind, mask_count);
  if (mask_count > 0) p.mask.data = mask.data() + bytes(first, mask_size);

  const auto never = [] { return false; };
  attention(p, never);
  const double error = context_error(p), gradient = gradient_error(p, at_end);
  double score_error = 0, weight_error = 0;
  if (!c.packed) {
    p.out = view(weights, c.heads, c.queries, c.keys);
    attention_scores(p, ScoreStage::kWeights, never);
    weight_error = matrix_error(p, kind, true);
    p.out.data = scores.data();
    p.wide_out = true;
    attention_scores(p, ScoreStage::kMasked, never);
    score_error = matrix_error(p, wide_kind, false);
  }
  if (error <= tolerance(kind) && weight_error <= tolerance(kind) && score_error <= tolerance(wide_kind) &&
      gradient <= 1) return true;
  const auto number = [](auto n) { return static_cast<int>(n); };
  std::printf("FAILED options %s kind %d queries %d keys %d left %g right %g ahead %d cap %g dropout %g slopes %d sinks %d lengths %d "
              "packed %d apart %d mask %d of kind %d: errors %g, weights %g, scores %g, gradients %g\n", kernels().name, number(kind),
              number(c.queries), number(c.keys), static_cast<double>(c.left), static_cast<double>(c.right),
              number(c.ahead), c.softcap, c.dropout, c.slopes, c.sinks, c.lengths, c.packed, c.apart, number(c.mask),
              number(c.mask_kind), error, weight_error, score_error, gradient);
  return false;
}

}  // namespace

void run_options(ElementKind kind, bool at_end, Tally& tally) {
  struct Size { std::int64_t queries, keys; };
  constexpr Size kSizes[] = {{1, 1}, {1, 150}, {5, 67}, {19, 131}, {70, 140}, {3, 1301}};
  constexpr MaskAxes kAxes[] = {MaskAxes::kAll,  MaskAxes::kHeads,          MaskAxes::kQueries,
                                MaskAxes::kKeys, MaskAxes::kQueriesAndKeys, MaskAxes::kOneElement,
                                MaskAxes::kTransposed, MaskAxes::kReversed};
  constexpr MaskKind kKinds[] = {MaskKind::kBool, MaskKind::kFloat32, MaskKind::kFloat64, MaskKind::kFloat16,
                                 MaskKind::kBFloat16};
  const auto check = [&](Case c) { tally.count([&] { return run(c, kind, at_end); }); };
  for (const auto& [queries, keys] : kSizes) {
    Case plain;
    plain.queries = queries;
    plain.keys = keys;
    const auto with = [&](auto change) {
      Case c = plain;
      change(c);
      check(c);
    };
    for (const auto axes : kAxes) {
      for (const auto mask_kind : kKinds) {
        with([&](Case& c) { c.mask = axes, c.mask_kind = mask_kind; });
        with([&](Case& c) { c.mask = axes, c.mask_kind = mask_kind, c.right = kNoLimit, c.batch = 2, c.head_dim = 16; });
        if (queries <= 5) with([&](Case& c) { c.mask = axes, c.mask_kind = mask_kind, c.head_dim = c.value_dim = 64; });
      }
    }
    for (const std::int64_t left : {0, 3, 40, 200}) {
      for (const std::int64_t right : {std::int64_t{0}, std::int64_t{2}, kNoLimit}) {
        for (const std::int64_t ahead : {0, -4, 30}) with([&](Case& c) { c.left = left, c.right = right, c.ahead = ahead; });
      }
    }
    with([&](Case& c) { c.softcap = 2; });
    with([&](Case& c) { c.sinks = true; });
    with([&](Case& c) { c.dropout = 0.4; });
    with([&](Case& c) { c.dropout = 0.4, c.batch = 2, c.kv_heads = 2, c.ahead = -3, c.left = 60, c.value_dim = 18; });
    with([&](Case& c) { c.lengths = true, c.batch = 3; });
    if (keys < 200) {
      with([&](Case& c) { c.apart = true; });
      with([&](Case& c) { c.apart = true, c.left = 20, c.mask = MaskAxes::kAll, c.value_dim = 18; });
    }
    for (const std::int64_t right : {std::int64_t{0}, kNoLimit}) {
      for (const std::int64_t ahead : {0, -4, 30}) with([&](Case& c) { c.slopes = true, c.right = right, c.ahead = ahead; });
    }
    for (const bool all : {false, true}) {  // with all other options, and without
      const auto add = [&](Case& c) {
        if (all) c.left = 50, c.softcap = 3, c.dropout = 0.25, c.slopes = c.sinks = true;
      };
      with([&](Case& c) { add(c), c.packed = true; });
      with([&](Case& c) { add(c), c.packed = true, c.kv_heads = 2, c.value_dim = 18; });
      if (!all) continue;
      for (const auto mask_kind : kKinds) {
        with([&](Case& c) { add(c), c.mask = MaskAxes::kAll, c.mask_kind = mask_kind, c.lengths = true, c.batch = 2; });
        with([&](Case& c) { add(c), c.mask = MaskAxes::kKeys, c.mask_kind = mask_kind, c.lengths = true, c.batch = 2; });
      }
    }
  }
}

}  // namespace headway
