// The arguments that all bindings of attention share -> an AttentionProblem.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"

namespace headway {

// What acts on the scores, out of the options object of headway.options; it keeps what the problem points at alive.
class Options {
 public:
  Options(const py::handle& options, AttentionProblem& p, bool causal);

 private:
  const double* numbers(const py::object& object, py::array& keep, std::int64_t count, const char* name);
  void read_mask(const py::object& object, const py::handle& options, AttentionProblem& p);

  std::vector<std::int64_t> lengths_;
  py::array slopes_, sinks_, mask_;
};

// The problem without keys, values and output.
AttentionProblem queries_of(const py::array& q, const std::string& kind, std::optional<double> scale,
                            const std::vector<std::int64_t>& positions);
// Adds the output, of value_dim columns.
void add_results(AttentionProblem& p, std::int64_t value_dim, const py::array& out, const std::optional<py::array>& lse,
                 const std::string& kind, const std::string& out_kind);

}  // namespace headway
