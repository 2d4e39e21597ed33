#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "cpu_features.hpp"

namespace headway {
namespace {

// Best first, by measured speed (see cpp/README.md), not by width.
constexpr const KernelTable* kTables[] = {
#if defined(HEADWAY_WITH_AMX)
    &kAmxTable,
#endif
#if defined(HEADWAY_WITH_AVX512BF16)
    &kAvx512Bf16Table,
#endif
#if defined(HEADWAY_WITH_AVX512)
    &kAvx512Table,
#endif
#if defined(HEADWAY_WITH_AVX2)
    &kAvx2Table,
#endif
#if defined(HEADWAY_WITH_NEON)
    &kNeonTable,
#endif
    &kScalarTable,
};

std::atomic<const KernelTable*> in_use{nullptr};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const KernelTable& find(const std::string& name, const std::string& source) {
  for (const auto* table : kTables) {
    if (name == table->name && cpu_runs(name)) return *table;
  }
  const auto good = available_isas();
  throw std::invalid_argument(source + ": expected one of " + joined(good) + ", got '" + name + "'; this CPU's best is " +
                              good.front());
}

}  // namespace

const KernelTable& kernels() {
  if (const auto* table = in_use.load(std::memory_order_acquire)) return *table;
  const char* wanted = std::getenv("HEADWAY_ISA");
  const bool given = wanted != nullptr && *wanted != '\0';
  const KernelTable& table = given ? find(wanted, "HEADWAY_ISA") : find(available_isas().front(), "isa");
  const KernelTable* none = nullptr;
  in_use.compare_exchange_strong(none, &table, std::memory_order_acq_rel);  // a set_isa meanwhile wins
  return *in_use.load(std::memory_order_acquire);
}

const KindKernels& attention_kernels(const KernelTable& table, ElementKind kind) {
  const KindKernels& own = table.kinds[static_cast<int>(kind)];
  return own.begin != nullptr ? own : attention_kernels(*table.base, kind);
}

const KindKernels& score_kernels(const KernelTable& table, ElementKind kind) {
  const KindKernels& own = table.kinds[static_cast<int>(kind)];
  return own.store_scores != nullptr ? own : score_kernels(*table.base, kind);
}

const BackwardKernels& backward_kernels(const KernelTable& table, ElementKind kind, bool exact) {
  const BackwardKernels& own = table.backward[static_cast<int>(kind)];
  const bool serves = own.add_rows != nullptr && (own.exact || !exact);
  return serves ? own : backward_kernels(*table.base, kind, exact);
}

const ProjectionKernels& projection_kernels(const KernelTable& table, ElementKind kind) {
  const ProjectionKernels& own = table.projections[static_cast<int>(kind)];
  return own.project != nullptr ? own : projection_kernels(*table.base, kind);
}

Rotation rotation_kernel(const KernelTable& table, ElementKind kind) {
  const Rotation own = table.rotations[static_cast<int>(kind)];
  return own != nullptr ? own : rotation_kernel(*table.base, kind);
}

void set_isa(const std::string& name) { in_use.store(&find(name, "isa"), std::memory_order_release); }

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const auto* table : kTables) {
    if (cpu_runs(table->name)) names.emplace_back(table->name);
  }
  // One that gains nothing here stands behind the one it builds upon.
  for (std::size_t i = 0; i + 1 < names.size(); ++i) {
    if (!cpu_gains_from(names[i])) std::swap(names[i], names[i + 1]), ++i;
  }
  return names;
}

std::vector<std::string> compiled_isas() {
  std::vector<std::string> names;
  for (const auto* table : kTables) names.emplace_back(table->name);
  return names;
}

}  // namespace headway
