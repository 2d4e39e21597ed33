// Many threads in the core at once, for the thread sanitizer: attention, gradients, products, caches, rotations, each on
// threads of its own, while settings change and memory is released. Results have the bits of the same calls made alone.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../core/attention.hpp"
#include "../core/backward.hpp"
#include "../core/dispatch.hpp"
#include "../core/parallel.hpp"
#include "../core/projection.hpp"
#include "../core/rotary.hpp"
#include "../core/scratch.hpp"

namespace {

using namespace headway;
using Numbers = std::vector<float>;

const auto never = [] { return false; };

Numbers numbers(std::int64_t count, std::uint32_t seed) {
  Numbers found(static_cast<std::size_t>(count));
  std::uint32_t state = seed * 2654435761u + 1;
  for (float& x : found) {
    state = state * 1664525u + 1013904223u;
    x = (static_cast<float>(state >> 27) - 15.5f) / 16;
  }
  return found;
}

constexpr std::int64_t kHeads = 4, kTokens = 70, kWidth = 16;

// One attention problem with memory of its own for the results.
struct Attention {
  Numbers q = numbers(kHeads * kTokens * kWidth, 1), k = numbers(kHeads * kTokens * kWidth, 2);
  Numbers v = numbers(kHeads * kTokens * kWidth, 3), out = Numbers(q.size()), lse = Numbers(kHeads * kTokens);
  std::int64_t position = 0;
  AttentionProblem p{};

  Attention() {
    const auto view = [](Numbers& x) { return TensorView{x.data(), 0, kTokens * kWidth, kWidth}; };
    p.kind = p.key_kind = ElementKind::kFloat32;
    p.batch = 1;
    p.num_heads = p.num_kv_heads = kHeads;
    p.num_queries = p.num_keys = kTokens;
    p.head_dim = p.value_dim = kWidth;
    p.q = view(q);
    p.k = view(k);
    p.v = view(v);
    p.out = view(out);
    p.lse = {lse.data(), 0, kTokens, 1};
    p.positions = &position;
    p.right = 0;
  }
};

Numbers forward() {
  Attention call;
  attention(call.p, never);
  call.out.insert(call.out.end(), call.lse.begin(), call.lse.end());
  return call.out;
}

// Pages of 8 tokens in a mixed order, one query.
Numbers decode() {
  Attention call;
  constexpr std::int64_t kSize = 8, kCount = 5;
  std::vector<std::int64_t> table{3, 0, 4, 1, 2}, length{kSize * kCount - 3};
  Numbers keys = numbers(kCount * kHeads * kSize * kWidth, 4), values = numbers(kCount * kHeads * kSize * kWidth, 5);
  AttentionProblem& p = call.p;
  p.num_queries = 1;
  p.num_keys = kSize * kCount;
  p.k = {keys.data(), kHeads * kSize * kWidth, kSize * kWidth, kWidth};
  p.v = {values.data(), kHeads * kSize * kWidth, kSize * kWidth, kWidth};
  p.pages.table = table.data();
  p.pages.pages_per_entry = kCount;
  p.pages.page_size = kSize;
  p.key_counts = length.data();
  call.position = length[0] - 1;
  attention(p, never);
  return call.out;
}

Numbers gradients() {
  Attention call;
  attention(call.p, never);
  Numbers grad = numbers(kHeads * kTokens * kWidth, 6), results(3 * grad.size());
  const auto view = [](float* x) { return TensorView{x, 0, kTokens * kWidth, kWidth}; };
  BackwardProblem b{};
  b.forward = call.p;
  b.grad_out = view(grad.data());
  b.dq = view(results.data());
  b.dk = view(results.data() + grad.size());
  b.dv = view(results.data() + 2 * grad.size());
  attention_backward(b, never);
  return results;
}

// All threads share one packed weight, which the first one packs.
Numbers product(Projection& weight) {
  const Numbers x = numbers(40 * 24, 7);
  Numbers out(40 * 56);
  ProjectionRows rows{};
  rows.axes.push_back({40, 24, 56});
  rows.x = x.data();
  rows.out = out.data();
  weight.multiply(rows, never);
  return out;
}

bool same(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

int main() {
  const Numbers weights = numbers(24 * 56, 8);
  const auto make = [&] { return Projection(ElementKind::kFloat32, weights.data(), false, nullptr, 24, 56); };
  int wrong = 0;
  for (const std::string& isa : available_isas()) {
    set_isa(isa);
    set_num_threads(1);
    Projection alone = make(), shared = make();
    const std::vector<std::function<Numbers()>> calls = {forward, decode, gradients, [&] { return product(shared); }};
    const std::vector<Numbers> expected = {forward(), decode(), gradients(), product(alone)};
    std::atomic<bool> stop{false};
    std::atomic<int> different{0};
    std::thread changes([&] {
      for (int n = 0; !stop.load(); ++n) {
        set_num_threads(1 + n % 3);
        release_memory();
        std::this_thread::yield();
      }
    });
    std::vector<std::thread> threads;
    for (std::size_t n = 0; n < 8; ++n) {
      threads.emplace_back([&, n] {
        for (std::size_t turn = 0; turn < 12; ++turn) {
          const std::size_t which = (n + turn) % calls.size();
          if (!same(calls[which](), expected[which])) ++different;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    stop.store(true);
    changes.join();
    wrong += different.load();
    std::printf("%s: %d of 96 calls differ\n", isa.c_str(), different.load());
  }
  return wrong == 0 ? 0 : 1;
}
