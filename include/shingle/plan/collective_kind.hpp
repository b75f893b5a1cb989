// Kinds of collectives.
#pragma once

#include <cstdint>
#include <string_view>

namespace shingle {

enum class CollectiveKind : std::uint8_t { allreduce, reducescatter, allgather, alltoall };
std::string_view name(CollectiveKind kind);

}  // namespace shingle
