// Streams that the user passes for an epoch: one for each local rank, in order of rank.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "local_rank.hpp"

namespace shingle::cuda {

/// Throws InvalidArgument if there is not one stream for each local rank.
void require_one_each(const std::vector<LocalRank>& local, std::span<void* const> streams);

/// True if the user is capturing all of the streams. Throws InvalidArgument if only some of them.
bool are_captured(const std::vector<LocalRank>& local, std::span<void* const> streams);

/// Says that a graph cannot hold a plan with so many lanes.
std::string too_many_for_graph(std::size_t lanes);

}  // namespace shingle::cuda
