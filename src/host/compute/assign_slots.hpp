// Slots for the choices of a rank's tokens.
#pragma once

#include <cstdint>

#include "host/executor/memory.hpp"

namespace shingle::host {

/// For the tokens that the bound matrices have, in the order of routed rows: choice 0 of all tokens first.
void assign_slots(const AssignSlots& step, const Memory& memory, std::uint32_t epoch);

}  // namespace shingle::host
