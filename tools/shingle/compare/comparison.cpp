#include "shingle/compare/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace shingle::cli {
namespace {

auto key_of(const ResultRow& row) {
  return std::tuple(row.op, row.m, row.n, row.k, row.inner, row.world, row.dtype, row.mechanism);
}

using Indices = std::vector<std::size_t>;

/// Rows with equal keys, by their indices in a and in b.
struct Group {
  Indices a, b;
};

/// Index of each row of a, with the index of its partner in b.
using Partners = std::map<std::size_t, std::size_t>;

void pair_up(const Group& group, const std::vector<ResultRow>& a, const std::vector<ResultRow>& b,
             Partners& partners) {
  Indices rest_a, rest_b = group.b;
  for (const std::size_t i : group.a) {
    const auto same = std::ranges::find_if(rest_b, [&](std::size_t j) { return a[i].params == b[j].params; });
    if (same == rest_b.end()) {
      rest_a.push_back(i);
    } else {
      partners[i] = *same;
      rest_b.erase(same);
    }
  }
  const bool params_tell = group.a.size() > 1 && group.b.size() > 1;
  if (!params_tell && !rest_a.empty() && !rest_b.empty()) partners[rest_a[0]] = rest_b[0];
}

}  // namespace

std::optional<double> Match::error() const {
  if (!timed() || a.predicted == b.predicted) return std::nullopt;
  const double predicted = a.predicted ? *a.us : *b.us, measured = a.predicted ? *b.us : *a.us;
  return (predicted - measured) / measured;
}

bool Match::slower_by(double percent) const {
  return a.us && (!b.us || ratio() > 1 + percent / 100);
}

std::vector<double> Comparison::ratios() const {
  std::vector<double> values;
  for (const Match& match : matches)
    if (match.timed()) values.push_back(match.ratio());
  return values;
}

std::vector<double> Comparison::errors() const {
  std::vector<double> values;
  for (const Match& match : matches)
    if (const auto error = match.error()) values.push_back(std::abs(*error));
  return values;
}

Comparison compare(const std::vector<ResultRow>& a, const std::vector<ResultRow>& b) {
  std::map<decltype(key_of(a[0])), Group> groups;
  for (std::size_t i = 0; i < a.size(); ++i) groups[key_of(a[i])].a.push_back(i);
  for (std::size_t j = 0; j < b.size(); ++j) groups[key_of(b[j])].b.push_back(j);
  Partners partners;
  for (const auto& [key, group] : groups) pair_up(group, a, b, partners);

  Comparison result;
  std::vector<bool> taken(b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto partner = partners.find(i);
    if (partner == partners.end()) {
      result.only_a.push_back(a[i]);
      continue;
    }
    taken[partner->second] = true;
    result.matches.push_back({a[i], b[partner->second], groups[key_of(a[i])].a.size() > 1});
  }
  for (std::size_t j = 0; j < b.size(); ++j)
    if (!taken[j]) result.only_b.push_back(b[j]);
  return result;
}

}  // namespace shingle::cli
