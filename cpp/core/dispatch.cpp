#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "cpu_features.hpp"

namespace headway {
namespace {

// Best first, by measured speed (see cpp/README.md), not by width.
constexpr const KernelTable* kTables[] = {
#if defined(HEADWAY_WITH_AVX512)
    &kAvx512Table,
#endif
#if defined(HEADWAY_WITH_AVX2)
    &kAvx2Table,
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

void set_isa(const std::string& name) { in_use.store(&find(name, "isa"), std::memory_order_release); }

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const auto* table : kTables) {
    if (cpu_runs(table->name)) names.emplace_back(table->name);
  }
  return names;
}

std::vector<std::string> compiled_isas() {
  std::vector<std::string> names;
  for (const auto* table : kTables) names.emplace_back(table->name);
  return names;
}

}  // namespace headway
