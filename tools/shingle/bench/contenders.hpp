// What `bench` holds against the sequential plan, and how it is said on the command line.
#pragma once

#include <string>
#include <vector>

#include "shingle/shingle.hpp"

namespace shingle::cli {

/// A mechanism with params that are set; the planner, or the search of `auto`, has the rest.
struct Contender {
  std::string label;       ///< as it was written: "signal:groups=1,2,4"
  bool automatic = false;  ///< whichever mechanism is predicted to be fastest
  Mechanism mechanism = Mechanism::sequential;
  Params params{};

  bool operator==(const Contender&) const = default;
};

/// "auto,chunked:chunks=4,signal:groups=1,2:comm-workers=16": params have the names of the flags of `run`,
/// each behind a colon; a comma begins another contender where a mechanism's name follows. Throws
/// InvalidArgument.
std::vector<Contender> parse_contenders(const std::string& text);

/// Each of them with each number of workers for collectives.
std::vector<Contender> with_comm_workers(const std::vector<Contender>& contenders,
                                         const std::vector<std::int32_t>& workers);

}  // namespace shingle::cli
