// Kinds of collectives.
#pragma once

#include <cstdint>
#include <string_view>

#include "shingle/base/collective_config.hpp"

namespace shingle {

enum class CollectiveKind : std::uint8_t { allreduce, reducescatter, allgather, alltoall };
std::string_view name(CollectiveKind kind);
/// True if NCCL has the algorithm and protocol for such a collective: trees only for all-reduces, PAT only
/// for gathers and scatters with Simple, and no choice for all-to-alls.
bool nccl_serves(CollectiveKind kind, const CollectiveConfig& config);

}  // namespace shingle
