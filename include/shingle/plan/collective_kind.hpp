// Kinds of collectives.
#pragma once

#include <cstdint>
#include <string_view>

#include "shingle/base/collective_config.hpp"

namespace shingle {

enum class CollectiveKind : std::uint8_t { allreduce, reducescatter, allgather, alltoall };
std::string_view name(CollectiveKind kind);
/// True if such a collective may have the settings. NCCL has trees only for all-reduces, PAT only for gathers
/// and scatters with Simple, and no choice for all-to-alls. Engines have neither algorithms, protocols nor
/// threads.
bool serves(CollectiveKind kind, const CollectiveConfig& config);

}  // namespace shingle
