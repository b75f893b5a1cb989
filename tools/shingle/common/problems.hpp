// From flags to problems.
#pragma once

#include "shingle/common/flags.hpp"
#include "shingle/workload/model.hpp"

namespace shingle::cli {

struct NamedProblem {
  std::string name;  ///< of the operator in its layer; empty for --op
  Problem problem;
};

/// The problems that the flags ask for, all valid. Throws InvalidArgument or IoError with one line for the
/// user: flags that contradict each other, a model that cannot be read or divided.
std::vector<NamedProblem> make_problems(const ProblemFlags& flags, int world);

/// Says once which operators of the model's layers are left out, and why.
void note_left_out(const std::string& file, const ModelConfig& model);

/// The routing that `flags.routing` names, for `rows` rows of each rank (a file has its own).
std::shared_ptr<const Routing> make_routing(const ProblemFlags& flags, int world,
                                            const std::vector<std::int64_t>& rows);

/// The transposes, epilogue, norm and row order of the flags.
void apply_flags(const ProblemFlags& flags, Problem& problem);

}  // namespace shingle::cli
