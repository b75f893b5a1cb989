// Whether ranks reach each other's memory: links within a node do, networks between nodes do not.
#pragma once

#include <optional>
#include <string_view>

#include "shingle/planner/planner.hpp"

namespace shingle::planner {

/// True if all ranks of a world can load from and store to each other's memory.
bool reach_each_other(int world, const Machine& machine);

/// True if a tuner tries no ring by messages. They take workers from the GEMMs: on H200 a ring by messages
/// was slower than `sequential` where the simulator predicted a gain. `given`: the params that the user gave.
bool avoids_messages(const Machine& machine, const RingParams& given);

/// For a mechanism that accesses remote memory: the reason why it cannot, or nullopt if it can. `accesses`
/// begins the message ("fused stores to"), and `remedy` ends it ("use ring").
std::optional<Reason> out_of_reach(int world, const Machine& machine, std::string_view accesses,
                                   std::string_view remedy);

}  // namespace shingle::planner
