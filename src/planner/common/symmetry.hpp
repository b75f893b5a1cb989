// Symmetric plans: some ranks stand for all.
#pragma once

#include <optional>
#include <string_view>

#include "shingle/planner/planner.hpp"

namespace shingle::planner {

/// Number of planned ranks: all, or the first ranks after which the machine's links repeat. The second holds
/// if the params ask for it (`symmetric`), or a world above max_world.
int planned_ranks(int world, const Machine& machine, bool symmetric);

/// Reason why the planned ranks do not stand for all, or nullopt.
std::optional<Reason> asymmetric(const Work& work, const Machine& machine, bool symmetric);

/// For a mechanism that accesses remote memory: the reason why it must plan all ranks, or nullopt if it does.
std::optional<Reason> needs_all_ranks(const Problem& problem, bool symmetric, std::string_view mechanism);

}  // namespace shingle::planner
