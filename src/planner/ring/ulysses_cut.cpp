#include "ulysses_cut.hpp"

#include <utility>

namespace shingle::planner {
namespace {

/// The largest divisor of `of` that is at most `most`.
std::int64_t divisor(std::int64_t of, std::int64_t most) {
  std::int64_t d = smaller(of, most);
  while (of % d != 0) --d;
  return d;
}

}  // namespace

std::int32_t default_ulysses_slices(const Problem& problem) {
  constexpr std::int64_t most = 8;
  return static_cast<std::int32_t>(larger(divisor(problem.attention.kv_heads / problem.world, most), 2));
}

Cut::Cut(const RingBuilder& build) : p_(build.problem()) {
  const std::int64_t slices = build.params().slices, kv_heads = p_.attention.kv_heads / p_.world;
  groups = divisor(kv_heads, slices);
  pieces = smaller(larger(slices / groups, 1), p_.shard_rows());
  q = p_.k / p_.world / groups;
  kv = p_.kv_cols() / p_.world / groups;
}

std::vector<Item> Cut::items() const {
  std::vector<Item> list;
  const bool own_first = groups * pieces > 1;
  if (own_first) list.push_back({});
  for (std::int64_t g = 0; g < groups; ++g) {
    for (int behind = 1; behind < p_.world; ++behind)
      for (std::int64_t s = 0; s < pieces; ++s) list.push_back({g, behind, s});
    for (std::int64_t s = g == 0 && own_first ? 1 : 0; s < pieces; ++s) list.push_back({g, 0, s});
  }
  return list;
}

void UlyssesSide::copy(const Slice& from, const Slice& to) {
  Elementwise pass = build_.copy(from, to);
  pass.resources = build_.beside_communication();
  build_.step(rank_, compute_lane, std::move(pass));
}

void UlyssesSide::keep_keys_and_values(std::int32_t buffer, std::int64_t group) {
  const Slice kept = tokens(buffer, rank_, group, first_token(rank_), own_rows_);
  copy(heads(build_.keys, rank_, rank_, group, cut_.kv, 0, own_rows_), keys(kept));
  copy(heads(build_.values, rank_, rank_, group, cut_.kv, 0, own_rows_), values(kept));
}

}  // namespace shingle::planner
