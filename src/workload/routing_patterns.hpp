// Routings for tests, benchmarks and users: by pattern, as a mixture of experts makes them, or from a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/plan/routing.hpp"

namespace shingle {

enum class RoutingPattern : std::uint8_t {
  random,    ///< every row to a rank of its own choice
  balanced,  ///< every rank receives the same number of rows of each source, within one; which rows is random
  skewed,    ///< the hottest rank gets twice what the next one gets, three times the third's, … (Zipf)
  all_to_one,  ///< every row to one rank
  empty_rank,  ///< one rank receives nothing, the others as in random
};

/// "random", "balanced", "skewed", "all-to-one", "empty-rank".
std::string_view name(RoutingPattern pattern);
/// Throws InvalidArgument.
RoutingPattern parse_routing_pattern(std::string_view text);

/// Rank r holds rows_per_rank[r] rows, also none; the seed also picks the rank that the last three patterns
/// single out. Equal arguments give equal routings on every machine. Throws InvalidArgument where
/// rows_per_rank is not of `world` entries, a count is negative, all together are too many to keep a table
/// of, or empty-rank has no second rank.
Routing make_routing(RoutingPattern pattern, int world, const std::vector<std::int64_t>& rows_per_rank,
                     std::uint64_t seed);

/// The two all-to-alls of a mixture of experts.
struct ExpertRoutings {
  Routing dispatch;  ///< tokens to their experts
  Routing combine;   ///< the experts' outputs back: each rank returns to each as many rows as it got from it
};

/// Token t belongs to rank t / ceil(tokens / world); rank r holds the r-th part of the `experts`; each token
/// is sent to `top_k` different experts, chosen at random without a capacity limit. The rows that a rank
/// sends are ordered by expert, then by token, in both directions. Throws InvalidArgument where experts do
/// not divide among the ranks, top_k is not in [1, experts], or the rows are too many.
ExpertRoutings make_expert_routings(int world, std::int64_t tokens, std::int64_t experts, std::int64_t top_k,
                                    std::uint64_t seed);

/// {"dest": [[rank of row 0 of rank 0, …], [of rank 1], …]} and nothing else. Throws InvalidArgument that
/// says where it is wrong.
Routing routing_from_json(std::string_view text);
/// The same from a file; the message starts with its path. Throws IoError where it cannot be read.
Routing read_routing_file(const std::string& path);

}  // namespace shingle
