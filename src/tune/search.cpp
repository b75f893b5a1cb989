// Finds the fastest groups without visiting each of the 2^(T - 1) partitions of T waves.
//
// Alg. 1 takes a partition with boundaries 0 = w0 < w1 < … < wn = T through
//
//     sent(wi) = send_ends(max(ready(wi), sent(w(i-1)) + sync), send(w(i-1), wi)),   sent(0) = 0.
//
// If each group has a restore kernel, it also computes
//
//     restored(wi) = max(restored(w(i-1)), computed, sent(wi) + signal) + restore(w(i-1), wi).
//
// ready(w) depends on the waves before w only, not on their groups. So only the pair (sent(v), restored(v))
// at a boundary v matters to all that follows. Both values matter monotonically: max, + and send_ends never
// fall when an argument grows. Every later pair, and the final time, is therefore non-decreasing in both.
//
// Take groups up to v whose pair is nowhere greater: replacing the groups up to v by them never makes a
// partition slower. So it is enough to keep the non-dominated pairs of each boundary. By induction over w,
// the search is exact. It takes O(T²) if one pair dominates, which holds without restore kernels. With
// restore kernels, it takes O(T²) for each of the few pairs that remain. Bounds on the first and the last
// group restrict v to 0 or to the last few boundaries; they depend on v and w only. The same holds for the
// pairs with exactly g groups, from those with g - 1.
//
// The second pass breaks ties. While computation dominates, many partitions are equally fast, and the minimal
// pair has many small groups. Fewer collectives are better if the predicted time is equal. The second pass
// finds the smallest g that reaches the least time. Both passes do the same arithmetic on the same numbers,
// and rounding is monotone too, so equality needs no tolerance.
#include "search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "predict.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
constexpr std::int64_t most_exhaustive = 24;

/// Checks the bounds. A bound of 0 becomes all waves.
GroupBounds effective(const WaveModel& model, const GroupBounds& bounds) {
  if (model.waves() < 1) throw InvalidArgument("the product has no waves to group");
  if (bounds.first < 0 || bounds.last < 0)
    throw InvalidArgument(
        fmt::format("bounds of {} and {} waves must not be negative", bounds.first, bounds.last));
  const auto all = [&](std::int64_t bound) { return bound == 0 ? model.waves() : bound; };
  return {all(bounds.first), all(bounds.last)};
}

/// The search's graph: boundaries are nodes, groups are edges, weighted with the time of their collective.
class Boundaries {
 public:
  Boundaries(const WaveModel& model, const GroupBounds& bounds) : model_(model), bounds_(bounds) {
    const std::int64_t waves = model.waves(), stride = ceil_div(waves, fine_waves);
    const std::int64_t head = smaller(bounds.first, stride), tail = waves - smaller(bounds.last, stride);
    for (std::int64_t w = 0; w <= waves; ++w)
      if (w <= head || w >= tail || w % stride == 0) at_.push_back(w);
    send_us_.resize(at_.size() * at_.size(), never);
    for (std::size_t to = 1; to < at_.size(); ++to)
      for (std::size_t from = 0; from < to; ++from)
        if (allowed(from, to)) send_us_[to * at_.size() + from] = model.send_us(at_[from], at_[to]);
  }

  std::size_t last() const { return at_.size() - 1; }
  std::int64_t wave(std::size_t i) const { return at_[i]; }
  bool allowed(std::size_t from, std::size_t to) const {
    return (from > 0 || at_[to] <= bounds_.first) && (to < last() || at_[to] - at_[from] <= bounds_.last);
  }
  /// Progress after the group [from, to), given the progress before it. Infinite if the bounds forbid the
  /// group.
  Progress behind(const Progress& before, std::size_t from, std::size_t to) const {
    return advance(model_, before, at_[from], at_[to], send_us_[to * at_.size() + from]);
  }

 private:
  const WaveModel& model_;
  GroupBounds bounds_;
  std::vector<std::int64_t> at_;
  std::vector<double> send_us_;  // [to][from]
};

/// A path to a boundary, and the path that it extends.
struct Way {
  Progress at;
  std::size_t from = 0, way = 0;
};

/// Non-dominated paths, in ascending order of sent_us and therefore descending order of restored_us.
using Front = std::vector<Way>;

void add(Front& front, const Way& way) {
  const auto sent = [](const Way& known) { return known.at.sent_us; };
  const auto after = std::ranges::upper_bound(front, way.at.sent_us, {}, sent);
  if (after != front.begin() && std::prev(after)->at.restored_us <= way.at.restored_us) return;
  const auto first = std::ranges::lower_bound(front, way.at.sent_us, {}, sent);
  const auto last = std::find_if(first, front.end(),
                                 [&](const Way& known) { return known.at.restored_us < way.at.restored_us; });
  front.insert(front.erase(first, last), way);
}

/// Extends all paths by one more group, within `us`.
void extend(const Boundaries& all, const std::vector<Front>& fronts, std::size_t to, double us, Front& into) {
  for (std::size_t from = 0; from < to; ++from) {
    if (!all.allowed(from, to)) continue;
    for (std::size_t way = 0; way < fronts[from].size(); ++way) {
      const Progress at = all.behind(fronts[from][way].at, from, to);
      if (std::max(at.sent_us, at.restored_us) <= us) add(into, {at, from, way});
    }
  }
}

double least_us(const Boundaries& all) {
  std::vector<Front> fronts(all.last() + 1);
  fronts[0] = {Way{}};
  for (std::size_t to = 1; to <= all.last(); ++to) extend(all, fronts, to, never, fronts[to]);
  return fronts.back().back().at.restored_us;
}

/// The fewest groups that take at most `us`.
std::vector<std::int64_t> fewest_groups(const Boundaries& all, double us) {
  std::vector<std::vector<Front>> fronts{std::vector<Front>(all.last() + 1)};  // [groups][boundary]
  fronts[0][0] = {Way{}};
  while (fronts.back().back().empty()) {
    std::vector<Front> next(all.last() + 1);
    for (std::size_t to = 1; to <= all.last(); ++to) extend(all, fronts.back(), to, us, next[to]);
    fronts.push_back(std::move(next));
  }
  std::vector<std::int64_t> groups;
  std::size_t to = all.last(), way = fronts.back().back().size() - 1;
  for (std::size_t count = fronts.size() - 1; count > 0; --count) {
    const Way& last = fronts[count][to][way];
    groups.push_back(all.wave(to) - all.wave(last.from));
    to = last.from, way = last.way;
  }
  std::ranges::reverse(groups);
  return groups;
}

double count_partitions(const Boundaries& all) {
  std::vector<double> ways(all.last() + 1, 0);
  ways[0] = 1;
  for (std::size_t to = 1; to <= all.last(); ++to)
    for (std::size_t from = 0; from < to; ++from)
      if (all.allowed(from, to)) ways[to] += ways[from];
  return ways[all.last()];
}

/// Groups from a bit mask: a group ends after each wave whose bit is set, and after the last wave.
std::vector<std::int64_t> groups_of(std::uint32_t bits, std::int64_t waves) {
  std::vector<std::int64_t> groups{1};
  for (std::int64_t w = 1; w < waves; ++w)
    if ((bits >> (w - 1) & 1) != 0) {
      groups.push_back(1);
    } else {
      ++groups.back();
    }
  return groups;
}

}  // namespace

Partition search(const WaveModel& model, const GroupBounds& bounds) {
  const GroupBounds within = effective(model, bounds);
  const Boundaries all(model, within);
  Partition found;
  found.us = least_us(all);
  found.group_waves = fewest_groups(all, found.us);
  found.candidates = count_partitions(all);
  return found;
}

Partition search_exhaustively(const WaveModel& model, const GroupBounds& bounds) {
  const GroupBounds within = effective(model, bounds);
  const std::int64_t waves = model.waves();
  if (waves > most_exhaustive)
    throw InvalidArgument(fmt::format("{} waves have too many partitions to try all; at most {} waves", waves,
                                      most_exhaustive));
  Partition found;
  found.us = never;
  for (std::uint32_t bits = 0; bits < std::uint32_t{1} << (waves - 1); ++bits) {
    std::vector<std::int64_t> groups = groups_of(bits, waves);
    if (groups.front() > within.first || groups.back() > within.last) continue;
    ++found.candidates;
    const double us = predict_us(model, groups);
    if (us > found.us || (us == found.us && groups.size() >= found.group_waves.size())) continue;
    found.us = us;
    found.group_waves = std::move(groups);
  }
  return found;
}

std::vector<std::int64_t> equal_groups(std::int64_t waves, std::int64_t size) {
  if (waves < 1 || size < 1)
    throw InvalidArgument(fmt::format("{} waves in groups of {}; expected at least 1 of each", waves, size));
  std::vector<std::int64_t> groups(static_cast<std::size_t>(waves / size), size);
  if (waves % size > 0) groups.push_back(waves % size);
  return groups;
}

}  // namespace shingle
