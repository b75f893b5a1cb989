// How long copy engines take for a collective, by the phases of a machine's engines (DMA collectives §3.2):
// near enough to choose a variant by size.
#pragma once

#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::planner {

/// One transfer between all ranks: as many bytes from each to each other.
struct TransferShape {
  Variant variant = Variant::pcpy;
  int world = 1;
  double parcel_bytes = 0;    ///< from one rank to one other
  bool same_for_all = false;  ///< all get the same from a rank
  std::int32_t engines = 1;   ///< of each rank
};

/// From the trigger, which the params say, to the last wait; no engine waits for another but around a ring.
double transfer_us(const Machine& machine, const TransferShape& shape, const Params& params);

}  // namespace shingle::planner
