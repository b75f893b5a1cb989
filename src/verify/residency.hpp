// Rule 2 of the proof, residency: steps that wait leave workers to those for which they wait.
#pragma once

#include <optional>
#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Why a step may never start; nullopt if all find workers. Steps that run to completion must find them even
/// if every lane holds the workers of its largest blocking step. Steps of one lane never run together, also
/// across epochs, so each lane counts with its largest step.
std::optional<std::string> unresident(const Plan& plan);

/// Why a collective or an exchange may never start on a backend whose calls need a worker (NCCL); nullopt if
/// all find one. Residency trusts Resources: a call that reserves none is run by threads that are no workers.
/// A gated step holds at most a worker for each tile, and none while it waits in its stream
/// (waits_in_queue()).
std::optional<std::string> starved_call(const Plan& plan);

}  // namespace shingle
