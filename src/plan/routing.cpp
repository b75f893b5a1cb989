#include "shingle/plan/routing.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/base/error.hpp"

namespace shingle {

Routing::Routing(std::vector<std::vector<std::int32_t>> dest)
    : Routing(std::move(dest), Destinations(0, "rank", ExpertSplit::by_expert)) {}

Routing Routing::to_experts(std::vector<std::vector<std::int32_t>> dest, int experts, ExpertSplit split) {
  if (experts < 1) throw InvalidArgument(fmt::format("routing: {} experts; expected at least 1", experts));
  if (split == ExpertSplit::by_expert &&
      (dest.empty() || static_cast<std::size_t>(experts) % dest.size() != 0))
    throw InvalidArgument(
        fmt::format("routing: {} experts do not divide among {} ranks", experts, dest.size()));
  return {std::move(dest), Destinations(experts, "expert", split)};
}

Routing::Routing(std::vector<std::vector<std::int32_t>> dest, const Destinations& all)
    : dest_(std::move(dest)),
      experts_(all.count == 0 ? static_cast<int>(dest_.size()) : all.count),
      per_rank_(experts_ /
                (all.split == ExpertSplit::by_slice || dest_.empty() ? 1 : static_cast<int>(dest_.size()))),
      split_(all.split),
      prefix_(dest_.size()) {
  const auto count = static_cast<std::size_t>(experts_);
  for (std::size_t s = 0; s < dest_.size(); ++s) {
    auto& prefix = prefix_[s];
    std::vector<std::int32_t> counts(count, 0);
    prefix.reserve((dest_[s].size() / block_rows + 1) * count);
    for (std::size_t row = 0; row < dest_[s].size(); ++row) {
      if (row % block_rows == 0) prefix.insert(prefix.end(), counts.begin(), counts.end());
      const std::int32_t to = dest_[s][row];
      if (to < 0 || to >= experts_)
        throw InvalidArgument(
            fmt::format("routing: row {} of rank {} goes to {} {}, but the world has {} {}s", row, s,
                        all.name, to, experts_, all.name));
      ++counts[static_cast<std::size_t>(to)];
    }
    if (dest_[s].size() % block_rows == 0) prefix.insert(prefix.end(), counts.begin(), counts.end());
    bases_.push_back(bases_.back() + static_cast<std::int64_t>(dest_[s].size()));
  }
  order_received();
}

void Routing::order_received() {
  received_.clear();
  std::int64_t base = 0;
  for (int to = 0; to < experts_; ++to) {
    if (weight_of(to) == 0) base = 0;
    for (int source = 0; source < world(); ++source) {
      received_.push_back(base);
      base += count(source, to);
    }
    received_.push_back(base);
  }
}

Routing Routing::slots(int world, int experts, std::int64_t capacity, ExpertSplit split) {
  if (world < 1) throw InvalidArgument(fmt::format("routing: {} ranks; expected at least 1", world));
  Routing slots =
      to_experts(std::vector<std::vector<std::int32_t>>(static_cast<std::size_t>(world)), experts, split);
  constexpr std::int64_t most = std::int64_t{1} << 31;
  if (capacity < 1 || capacity >= most / (std::int64_t{experts} * world))
    throw InvalidArgument(fmt::format("capacity = {} is outside [1, {}) for {} experts and {} ranks",
                                      capacity, most / (std::int64_t{experts} * world), experts, world));
  slots.capacity_ = capacity;
  slots.dest_.clear();
  slots.prefix_.clear();
  for (std::size_t rank = 1; rank < slots.bases_.size(); ++rank)
    slots.bases_[rank] = static_cast<std::int64_t>(rank) * experts * capacity;
  slots.order_received();
  return slots;
}

std::int64_t Routing::count_to_rank(int source, int rank) const {
  std::int64_t rows = 0;
  const int first = first_expert(rank);
  for (int dest = first; dest < first + per_rank_; ++dest) rows += count(source, dest);
  return rows;
}

Routing::Row Routing::received_row(int rank, std::int64_t index) const {
  const std::size_t sources = bases_.size();
  const auto first = received_.begin() + static_cast<std::ptrdiff_t>(first_expert(rank) * sources);
  // The last run that begins at or before the row: earlier ones that begin there are empty.
  const auto run =
      std::upper_bound(first, first + static_cast<std::ptrdiff_t>(per_rank_ * sources), index) - 1;
  const auto at = static_cast<std::size_t>(run - received_.begin());
  const int source = static_cast<int>(at % sources), dest = static_cast<int>(at / sources);
  index -= *run;
  // The first row behind which more than `index` rows for this destination lie before.
  std::int64_t least = 0, most = rows(source);
  while (least < most) {
    const std::int64_t middle = (least + most) / 2;
    if (count_before(source, dest, middle + 1) > index)
      most = middle;
    else
      least = middle + 1;
  }
  return {source, least};
}

std::vector<Routing::Row> Routing::received_rows(int rank) const {
  std::vector<Row> rows(static_cast<std::size_t>(received(rank)));
  const int first = first_expert(rank);
  for (int source = 0; source < world(); ++source) {
    std::vector<std::int64_t> next;
    for (int dest = first; dest < first + per_rank_; ++dest) next.push_back(receive_base(dest, source));
    for (std::int64_t row = 0; row < this->rows(source); ++row) {
      const std::int32_t to = dest(source, row);
      if (receives(rank, to))
        rows[static_cast<std::size_t>(next[static_cast<std::size_t>(to - first)]++)] = {source, row};
    }
  }
  return rows;
}

}  // namespace shingle
