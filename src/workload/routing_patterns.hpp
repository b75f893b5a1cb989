// Routings for tests, benchmarks and users: by pattern, as in a mixture of experts, or from a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/plan/problem.hpp"

namespace shingle {

enum class RoutingPattern : std::uint8_t {
  random,    ///< every row goes to a random rank
  balanced,  ///< every rank receives the same number of rows from each source, within one; the rows are
             ///< random
  skewed,  ///< the hottest rank gets twice as many rows as the second, three times as many as the third, …
           ///< (Zipf)
  all_to_one,  ///< every row goes to one rank
  empty_rank,  ///< one rank receives nothing, the others as in `random`
};

/// "random", "balanced", "skewed", "all-to-one", "empty-rank".
std::string_view name(RoutingPattern pattern);
/// Throws InvalidArgument.
RoutingPattern parse_routing_pattern(std::string_view text);

/// Makes a routing in which rank r holds rows_per_rank[r] rows, or none. The seed also picks the rank that
/// the last three patterns single out. Equal arguments give equal routings on every machine.
///
/// Throws InvalidArgument if rows_per_rank does not have `world` entries, a count is negative, or the table
/// would be too large. Also throws if empty-rank has only one rank.
Routing make_routing(RoutingPattern pattern, int world, const std::vector<std::int64_t>& rows_per_rank,
                     std::uint64_t seed);

/// Makes the routing of a grouped product in which rank r has tokens_per_rank[r] tokens. The choices of a
/// token are different experts, drawn as the pattern says with experts for ranks; all-to-one: one of them is
/// the same for all tokens. Throws InvalidArgument as above, or if the experts do not fit.
Routing make_topk_routing(RoutingPattern pattern, int world, const std::vector<std::int64_t>& tokens_per_rank,
                          const Experts& experts, std::uint64_t seed,
                          ExpertSplit split = ExpertSplit::by_expert);

/// Parses {"dest": [[rank of row 0 of rank 0, …], [of rank 1], …]}, with no other key; with `experts`,
/// experts for ranks. Throws InvalidArgument that names the wrong place.
Routing routing_from_json(std::string_view text, int experts = 0, ExpertSplit split = ExpertSplit::by_expert);
/// As above, from a file; messages start with its path. Throws IoError if the file cannot be read.
Routing read_routing_file(const std::string& path, int experts = 0,
                          ExpertSplit split = ExpertSplit::by_expert);

}  // namespace shingle
