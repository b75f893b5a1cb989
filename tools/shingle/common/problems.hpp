// Converts flags to problems.
#pragma once

#include "shingle/common/flags.hpp"
#include "shingle/workload/model.hpp"

namespace shingle::cli {

struct NamedProblem {
  std::string name;  ///< of the operator in its layer; empty for --op
  Problem problem;
  /// Experts with a capacity: what tokens choose, as a host would route it (random_inputs()).
  std::shared_ptr<const Routing> choices{};
};

/// The valid problems that the flags describe. Throws InvalidArgument or IoError with a one-line message if
/// flags conflict, or if a model cannot be read or divided.
std::vector<NamedProblem> make_problems(const ProblemFlags& flags, int world);

/// Prints once which operators of the model's layers are left out, and why.
void note_left_out(const std::string& file, const ModelConfig& model);

/// The routing that `flags.routing` names, for `rows` rows of each rank. A file has its own numbers of rows.
std::shared_ptr<const Routing> make_routing(const ProblemFlags& flags, const Problem& problem,
                                            const std::vector<std::int64_t>& rows);

/// Applies the transposes, epilogue, norm and row order of the flags.
void apply_flags(const ProblemFlags& flags, Problem& problem);

}  // namespace shingle::cli
