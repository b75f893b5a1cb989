// A set of keys or queries, as ranges of tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "shingle/plan/problem.hpp"

namespace shingle {

/// Ranges of tokens: ascending, and apart from each other.
class KeySet {
 public:
  KeySet() = default;
  explicit KeySet(const TokenRange& range) {
    if (!range.empty()) ranges_.push_back(range);
  }

  /// Adds another set, unless they share a token. Returns whether it did.
  bool add(const KeySet& other) {
    std::vector<TokenRange> all;
    std::ranges::merge(ranges_, other.ranges_, std::back_inserter(all), {}, &TokenRange::first,
                       &TokenRange::first);
    std::vector<TokenRange> joined;
    for (const TokenRange& one : all) {
      if (!joined.empty() && one.first < joined.back().end) return false;
      if (!joined.empty() && one.first == joined.back().end)
        joined.back().end = one.end;
      else
        joined.push_back(one);
    }
    ranges_ = std::move(joined);
    return true;
  }
  bool holds(const TokenRange& wanted) const {
    return wanted.empty() || std::ranges::any_of(ranges_, [&](const TokenRange& one) {
             return one.first <= wanted.first && wanted.end <= one.end;
           });
  }
  std::int64_t size() const { return static_cast<std::int64_t>(ranges_.size()); }

 private:
  std::vector<TokenRange> ranges_;
};

}  // namespace shingle
