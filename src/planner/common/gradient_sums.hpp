// Sums of parts of gradients of keys, values and queries (attention-backward).
#pragma once

#include <vector>

#include "builder.hpp"

namespace shingle::planner {

/// Rows of consecutive tokens, one each.
struct TokenRows {
  TokenRange tokens{};
  Slice at{};
};
/// The rows of some of the tokens.
Slice rows_of(const TokenRows& all, const TokenRange& tokens);

/// Queries of a rank, consecutive, that see some of the tokens' keys, and the keys that they see.
struct Pair {
  GlobalRun queries{};
  TokenRange keys{};
};
/// The pair of some of a rank's queries and the keys of some tokens; no rows if no query sees a key.
Pair pair_of(const Problem& problem, const GlobalRun& queries, const TokenRange& keys);
/// The tokens, of these, whose keys at least one query of a rank sees: ascending ranges.
std::vector<TokenRange> seen_from(const Problem& problem, int rank, const TokenRange& keys);

/// Appends the sum of the parts, in fp32 in their order, for those tokens of `to` that are in at least one
/// part. A part may be the place of the result.
void sum_parts(Builder& build, int rank, const std::vector<TokenRows>& parts, const TokenRows& to);

/// The sum of the parts of a gradient of a rank's consecutive tokens, in the order in which they are added.
class GradientSum {
 public:
  /// `running`: f32 sums of the parts so far; needed by fold() only.
  GradientSum(int rank, const TokenRows& result, const TokenRows& running)
      : rank_(rank), result_(result), running_(running) {}

  void add(const TokenRows& part) { parts_.push_back(part); }
  /// Number of parts that are not folded.
  std::int64_t parts() const { return static_cast<std::int64_t>(parts_.size()); }
  /// Adds the parts to the running sums. Their places may then be overwritten.
  void fold(Builder& build);
  /// Stores the result. Appends nothing if there are no parts.
  void finish(Builder& build);

 private:
  std::vector<TokenRows> sources() const;

  int rank_;
  TokenRows result_, running_;
  std::vector<TokenRange> folded_;  ///< ascending: tokens with a running sum
  std::vector<TokenRows> parts_;
};

}  // namespace shingle::planner
