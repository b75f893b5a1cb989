// Time of a collective on copy engines, from the phases of a machine's engines (DMA collectives §3.2). It is
// accurate enough to choose a variant by size.
#pragma once

#include "shingle/machine/machine.hpp"
#include "shingle/planner/params.hpp"

namespace shingle::planner {

/// A transfer in which each rank sends the same number of bytes to each other rank.
struct TransferShape {
  CopyVariant variant = CopyVariant::pcpy;
  int world = 1;
  double parcel_bytes = 0;    ///< bytes from one rank to one other
  bool same_for_all = false;  ///< true if a rank sends the same data to all others
  std::int32_t engines = 1;   ///< number of engines of each rank
};

/// Time from the trigger, which the params define, to the last wait. Engines do not wait for each other,
/// except in a ring.
double transfer_us(const Machine& machine, const TransferShape& shape, const CopyEngineParams& params);

}  // namespace shingle::planner
