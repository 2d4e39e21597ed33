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
// The problem without values and output.
AttentionProblem problem_of(const py::array& q, const py::array& k, const std::string& kind, std::optional<double> scale,
                            const std::vector<std::int64_t>& positions);
void add_values(AttentionProblem& p, const py::array& v);
// Packed sequences: the problem, of one batch entry so far, gets one for each. Cumulative lengths must fit its tokens.
void add_sequences(AttentionProblem& p, const py::array_t<std::int64_t, py::array::c_style>& queries,
                   const py::array_t<std::int64_t, py::array::c_style>& keys, const std::vector<std::int64_t>& offsets);
// Adds the output, of value_dim columns, and the lse; `writeable`: both must be.
void add_results(AttentionProblem& p, std::int64_t value_dim, const py::array& out, const std::optional<py::array>& lse,
                 const std::string& kind, const std::string& out_kind, bool writeable = true);

}  // namespace headway
