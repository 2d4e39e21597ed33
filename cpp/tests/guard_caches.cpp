// The caches' cases of the guard-page executable: q, keys, values, scales, page tables, mask and results each between
// unreadable pages, for every kind of keys, pages of many sizes, and rings. Memory ends with the last key that counts,
// and all that no row sees is NaN. The results are compared with plain loops over the same keys in one piece.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "../core/attention.hpp"
#include "../core/dispatch.hpp"
#include "../core/parallel.hpp"
#include "guarded.hpp"
#include "plain_loops.hpp"

namespace headway {
namespace {

struct Case {
  std::int64_t heads = 2, kv_heads = 1, queries = 1, keys = 67, head_dim = 9, value_dim = 18;
  std::int64_t page_size = 16;
  std::int64_t ring = 0;  // pages of an entry, used over and over; 0: as many as its keys need
  std::int64_t left = kNoLimit, right = 0;
  std::int64_t shorter = 5;  // by so many keys is the second entry shorter
  bool backwards = false;    // the first key in the last page
  bool token_major = false;  // pages of (slots, heads, width), else (heads, slots, width)
  bool apart = false;        // rows 16 KiB apart
  bool options = false;      // soft cap, slopes, sinks and a mask
};

constexpr std::int64_t kBatch = 3;  // the second entry is shorter, the third has no keys

// What both entries with keys, and keys and values, have in common: the number of a row is where it lies.
class Layout {
 public:
  explicit Layout(const Case& c) : case_(c), counts_{c.keys, std::max<std::int64_t>(1, c.keys - c.shorter), 0} {
    per_entry_ = c.ring > 0 ? c.ring : (c.keys + c.page_size - 1) / c.page_size;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t j = 0; j < counts_[b]; ++j) rows_ = std::max(rows_, row(b, c.kv_heads - 1, j) + 1);
    }
  }

  std::int64_t count(std::int64_t b) const { return counts_[b]; }
  const std::int64_t* counts() const { return counts_; }
  std::int64_t per_entry() const { return per_entry_; }
  std::int64_t num_rows() const { return rows_; }

  // Entries without keys own no pages: theirs are those of the first one.
  std::int64_t page(std::int64_t b, std::int64_t n) const {
    const std::int64_t at = counts_[b] > 0 ? b * per_entry_ + n : n;
    return case_.backwards ? 2 * per_entry_ - 1 - at : at;
  }

  // Calls each(entry, head, key, row) for what some query sees.
  template <class Each>
  void for_rows(const Each& each) const {
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const std::int64_t unseen = case_.left < kNoLimit ? counts_[b] - case_.queries - case_.left : 0;
      for (std::int64_t j = std::max<std::int64_t>(0, unseen); j < counts_[b]; ++j) {
        for (std::int64_t h = 0; h < case_.kv_heads; ++h) each(b, h, j, row(b, h, j));
      }
    }
  }

  // Rows `step` elements apart.
  TensorView view(char* data, std::int64_t step) const {
    const std::int64_t page = case_.kv_heads * case_.page_size * step;
    return case_.token_major ? TensorView{data, page, step, case_.kv_heads * step}
                             : TensorView{data, page, case_.page_size * step, step};
  }

 private:
  std::int64_t row(std::int64_t b, std::int64_t head, std::int64_t key) const {
    const std::int64_t size = case_.page_size, heads = case_.kv_heads;
    const std::int64_t at = page(b, key / size % per_entry_), slot = key % size;
    return case_.token_major ? (at * size + slot) * heads + head : (at * heads + head) * size + slot;
  }

  Case case_;
  std::int64_t counts_[kBatch];
  std::int64_t per_entry_, rows_ = 0;
};

std::size_t bytes(std::int64_t count, std::size_t each) { return static_cast<std::size_t>(count) * each; }

// Keys or values, in pages and in one piece.
class Rows {
 public:
  Rows(const Case& c, const Layout& layout, ElementKind kind, ElementKind plain_kind, std::int64_t width, bool at_end,
       std::uint32_t seed)
      : layout_(layout),
        step_(c.apart ? static_cast<std::int64_t>(16384 / element_size(kind)) : width),
        count_((layout.num_rows() - 1) * step_ + width),
        pages_(bytes(count_, element_size(kind)), at_end),
        scales_(bytes(layout.num_rows(), sizeof(float)), at_end),
        plain_(bytes(kBatch * c.kv_heads * c.keys * width, element_size(plain_kind))),
        plain_view_{plain_.data(), c.kv_heads * c.keys * width, c.keys * width, width} {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    auto* scales = reinterpret_cast<float*>(scales_.data());
    for (std::int64_t i = 0; i < layout.num_rows(); ++i) scales[i] = static_cast<float>(kNan);
    for (std::int64_t i = 0; i < count_; ++i) {
      if (kind == ElementKind::kInt8 || kind == ElementKind::kFloat8) {
        pages_.data()[i] = 0x7f;
      } else {
        write(pages_.data(), kind, i, kNan);
      }
    }
    std::vector<char> numbers(bytes(width, 8));
    layout.for_rows([&](std::int64_t b, std::int64_t h, std::int64_t key, std::int64_t row) {
      if (kind == ElementKind::kFloat8) {  // below 1 in size, subnormal numbers too
        std::uint32_t state = ++seed * 2654435761u;
        for (auto& x : numbers) x = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24 & 0xb7u);
      } else {
        fill(numbers.data(), kind, width, ++seed);
      }
      scales[row] = static_cast<float>(row % 5 + 1) * 0.013f;
      const auto size = static_cast<std::int64_t>(element_size(kind));
      std::copy_n(numbers.data(), width * size, pages_.data() + row * step_ * size);
      for (std::int64_t d = 0; d < width; ++d) {
        const double x = read(numbers.data(), kind, d);
        const double scaled = kind == ElementKind::kInt8 ? static_cast<double>(static_cast<float>(x) * scales[row]) : x;
        const std::int64_t at = b * plain_view_.batch_stride + h * plain_view_.head_stride + key * width + d;
        write(plain_.data(), plain_kind, at, scaled);
      }
    });
  }

  TensorView pages() const { return layout_.view(pages_.data(), step_); }
  TensorView scales() const { return layout_.view(scales_.data(), 1); }
  const TensorView& plain() const { return plain_view_; }  // (batch, heads, keys, width)

 private:
  const Layout& layout_;
  std::int64_t step_, count_;
  Guarded pages_, scales_;
  std::vector<char> plain_;
  TensorView plain_view_;
};

bool run(const Case& c, ElementKind kind, ElementKind key_kind, bool at_end) {
  const std::size_t size = element_size(kind), wide = accumulation_size(kind);
  const Layout layout(c);
  const Rows k(c, layout, key_kind, kind, c.head_dim, at_end, 100);
  const Rows v(c, layout, key_kind, kind, c.value_dim, at_end, 500);
  const Guarded table(bytes(kBatch * layout.per_entry(), 8), at_end);
  const std::int64_t rows = kBatch * c.heads * c.queries;
  const Guarded q(bytes(rows * c.head_dim, size), at_end), out(bytes(rows * c.value_dim, size), at_end);
  const Guarded lse(bytes(rows, wide), at_end), mask(bytes(c.queries * c.keys, 1), at_end);
  fill(q.data(), kind, rows * c.head_dim, 1);
  auto* pages = reinterpret_cast<std::int64_t*>(table.data());
  std::int64_t positions[kBatch];
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t n = 0; n < layout.per_entry(); ++n) *pages++ = layout.page(b, n);
    positions[b] = layout.count(b) - c.queries;
  }
  std::vector<double> slopes, sinks;
  for (std::int64_t i = 0; i < kBatch * c.heads; ++i) slopes.push_back(i % 3 == 0 ? 0.5 : 0.0625);
  for (std::int64_t h = 0; h < c.heads; ++h) sinks.push_back(h % 2 == 0 ? 0.75 : -kInfinity);
  for (std::int64_t i = 0; i < c.queries * c.keys; ++i) mask.data()[i] = i % 7 != 3 && i / 37 % 5 != 1;

  AttentionProblem p{};
  p.kind = kind;
  p.key_kind = key_kind;
  p.batch = kBatch;
  p.num_heads = c.heads;
  p.num_kv_heads = c.kv_heads;
  p.num_queries = c.queries;
  p.num_keys = c.keys;
  p.head_dim = c.head_dim;
  p.value_dim = c.value_dim;
  const auto view = [&](const Guarded& memory, std::int64_t width) {
    return TensorView{memory.data(), c.heads * c.queries * width, c.queries * width, width};
  };
  p.q = view(q, c.head_dim);
  p.k = k.pages();
  p.v = v.pages();
  p.out = view(out, c.value_dim);
  p.lse = view(lse, 1);
  p.positions = positions;
  p.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  p.left = c.left;
  p.right = c.right;
  p.key_counts = layout.counts();
  p.pages.table = reinterpret_cast<const std::int64_t*>(table.data());
  p.pages.pages_per_entry = layout.per_entry();
  p.pages.page_size = c.page_size;
  if (key_kind == ElementKind::kInt8) {
    p.pages.k_scales = k.scales();
    p.pages.v_scales = v.scales();
  }
  if (c.options) {
    p.softcap = 3;
    p.slopes = slopes.data();
    p.sinks = sinks.data();
    p.mask = {mask.data(), MaskKind::kBool, 0, 0, c.keys, 1};
  }
  attention(p, [] { return false; });

  AttentionProblem plain = p;
  plain.k = k.plain();
  plain.v = v.plain();
  const double error = context_error(plain);
  if (error <= tolerance(kind)) return true;
  const auto number = [](auto n) { return static_cast<int>(n); };
  std::printf("FAILED cache %s kind %d keys of kind %d heads %d:%d queries %d keys %d widths %d, %d page %d ring %d "
              "left %g right %g backwards %d token-major %d apart %d options %d: error %g\n",
              kernels().name, number(kind), number(key_kind), number(c.heads), number(c.kv_heads), number(c.queries),
              number(c.keys), number(c.head_dim), number(c.value_dim), number(c.page_size), number(c.ring),
              static_cast<double>(c.left), static_cast<double>(c.right), c.backwards, c.token_major, c.apart,
              c.options, error);
  return false;
}

}  // namespace

void run_caches(ElementKind kind, bool at_end, Tally& tally) {
  std::vector<ElementKind> key_kinds{kind};
  if (kind == ElementKind::kFloat32) key_kinds = {kind, ElementKind::kInt8, ElementKind::kFloat8};
  for (const auto key_kind : key_kinds) {
    const auto check = [&](const Case& c) { tally.count([&] { return run(c, kind, key_kind, at_end); }); };
    struct Size { std::int64_t queries, keys; };
    for (const std::int64_t page_size : {1, 7, 16, 128, 200}) {
      for (const auto& [queries, keys] : {Size{1, 1}, {1, 40}, {1, 131}, {2, 300}, {1, 1040}, {9, 67}, {70, 140}}) {
        Case plain;
        plain.queries = queries;
        plain.keys = keys;
        plain.page_size = page_size;
        bool backwards = page_size % 2 == 0;
        const auto with = [&](auto change) {
          Case c = plain;
          change(c);
          c.backwards = backwards = !backwards;
          check(c);
        };
        with([](Case&) {});
        with([](Case& c) { c.left = 20, c.head_dim = 33, c.value_dim = 5; });
        with([](Case& c) { c.right = kNoLimit, c.token_major = true, c.kv_heads = 2, c.heads = 4; });
        with([](Case& c) { c.options = true, c.value_dim = 40; });
        with([](Case& c) { c.options = true, c.left = 50, c.head_dim = 32, c.value_dim = 64; });
        if (keys < 150) with([](Case& c) { c.apart = true; });
      }
      // Rings: of one page, and of several; as few slots as the queries' window needs.
      for (const std::int64_t queries : {1, 3, 30}) {
        for (const std::int64_t ring : {1, 3}) {
          const std::int64_t slots = ring * page_size;
          if (slots < queries) continue;
          for (const std::int64_t keys : {slots + 1, 2 * slots, 5 * slots + 3}) {
            Case c;
            c.queries = queries;
            c.keys = std::max(keys, queries + 5);
            c.page_size = page_size;
            c.ring = ring;
            c.left = slots - queries;
            check(c);
            c.right = kNoLimit;
            c.options = c.backwards = true;
            check(c);
          }
        }
      }
    }
    // The spans of a task in several threads, entries side by side or far apart.
    set_num_threads(3);
    for (const std::int64_t left : {std::int64_t{700}, kNoLimit}) {
      Case c;
      c.heads = 6;
      c.queries = 2;
      c.keys = 4500;
      c.head_dim = c.value_dim = 32;
      c.left = left;
      check(c);
      c.shorter = 3300;
      c.options = true;
      check(c);
    }
    set_num_threads(1);
    // As many rows as one way of few rows takes, or fewer, or more; widths of vectors and of parts of them.
    for (const std::int64_t width : {1, 3, 4, 8, 15, 16, 17, 31, 32, 64, 70}) {
      for (const std::int64_t heads : {1, 2, 3, 4, 7, 8, 9}) {
        Case c;
        c.heads = heads;
        c.keys = 40 + width % 20;
        c.head_dim = width;
        c.value_dim = heads % 2 == 0 ? width : 147 - width;
        check(c);
        c.options = c.backwards = true;
        c.page_size = 128;
        check(c);
      }
    }
  }
}

}  // namespace headway
