// Machine: what a planner needs to know of the hardware.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shingle/base/units.hpp"

namespace shingle {

/// What the phases of a transfer by a copy engine cost (DMA collectives §3.2, Figure 5). All zero: engines
/// that take no longer than their bytes.
struct EnginePhases {
  double control_us = 0;  ///< a command: a thread of the host creates it, one after the other
  double schedule_us =
      0;               ///< a batch: the same thread rings the doorbell, and the engine fetches the commands
  double copy_us = 0;  ///< a copy: from its first to its last byte, beyond the time that its bytes take
  double gbps = 0;     ///< 1e9 bytes/s that an engine writes; 0: as fast as memory
  double sync_us = 0;  ///< a notify

  bool paced() const { return *this != EnginePhases{}; }
  bool operator==(const EnginePhases&) const = default;
};

struct Machine {
  std::string name = "host";
  std::int32_t workers = 1;             ///< SMs or cores of one rank
  std::int32_t collective_workers = 0;  ///< of these, how many a collective occupies while it runs
  std::int32_t tile_rows = 256;         ///< tile that computes well here
  std::int32_t tile_cols = 512;
  Link link;                ///< of one rank
  EnginePhases engine;      ///< of one copy engine
  bool peer_memory = true;  ///< whether ranks can load from and store to each other's memory
};

/// "control=1us,schedule=2us,copy=3us,sync=2us,rate=60GB/s" → phases; parts that are left out are 0. Throws
/// InvalidArgument.
EnginePhases parse_engine(std::string_view text);

}  // namespace shingle
