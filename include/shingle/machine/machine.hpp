// Machine: what a planner needs to know of the hardware.
#pragma once

#include <cstdint>
#include <string>

#include "shingle/base/units.hpp"

namespace shingle {

struct Machine {
  std::string name = "host";
  std::int32_t workers = 1;             ///< SMs or cores of one rank
  std::int32_t collective_workers = 0;  ///< of these, how many a collective occupies while it runs
  std::int32_t tile_rows = 256;         ///< tile that computes well here
  std::int32_t tile_cols = 512;
  Link link;                ///< of one rank
  bool peer_memory = true;  ///< whether ranks can load from and store to each other's memory
};

}  // namespace shingle
