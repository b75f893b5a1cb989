// What `bench` compares with the sequential plan, and its syntax on the command line.
#pragma once

#include <string>
#include <vector>

#include "shingle/shingle.hpp"

namespace shingle::cli {

/// A mechanism with some params set. The planner, or the search of `auto`, sets the rest.
struct Contender {
  std::string label;       ///< as on the command line: "signal:groups=1,2,4"
  bool automatic = false;  ///< the mechanism that is predicted to be fastest
  Mechanism mechanism = Mechanism::sequential;
  ParamList params{};

  bool operator==(const Contender&) const = default;
};

/// Parses a list such as "auto,chunked:chunks=4,signal:groups=1,2:comm-workers=16". Params have the names of
/// the flags of `run`, each after a colon. A comma starts another contender if a mechanism's name follows.
/// Throws InvalidArgument.
std::vector<Contender> parse_contenders(const std::string& text);

/// Each contender with each number of workers for collectives.
std::vector<Contender> with_comm_workers(const std::vector<Contender>& contenders,
                                         const std::vector<std::int32_t>& workers);

}  // namespace shingle::cli
