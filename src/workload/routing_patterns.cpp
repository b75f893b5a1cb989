#include "routing_patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/file.hpp"
#include "base/json_fields.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle {
namespace {

using Table = std::vector<std::vector<std::int32_t>>;

// A Routing stores a count for every row and rank; this number takes 1 GiB.
constexpr std::int64_t most_counts = std::int64_t{1} << 28;
constexpr std::size_t most_routing_bytes = std::size_t{64} << 20;

constexpr std::pair<RoutingPattern, std::string_view> pattern_names[] = {
    {RoutingPattern::random, "random"},
    {RoutingPattern::balanced, "balanced"},
    {RoutingPattern::skewed, "skewed"},
    {RoutingPattern::all_to_one, "all-to-one"},
    {RoutingPattern::empty_rank, "empty-rank"}};

/// SplitMix64. Distributions of the standard library differ between implementations, but a seed must give the
/// same result.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  /// Uniform in [0, bound), with an error of at most bound / 2^32.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>((next() >> 32) * static_cast<std::uint64_t>(bound) >> 32);
  }

 private:
  std::uint64_t state_;
};

template <class T>
void shuffle(std::vector<T>& items, Random& random) {
  for (std::size_t i = items.size(); i > 1; --i)
    std::swap(items[i - 1], items[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
}

void require_world(int world) {
  if (world < 1 || world > max_world)
    throw InvalidArgument(fmt::format("a routing has {} ranks, outside [1, {}]", world, max_world));
}

void require_rows(std::int64_t rows, std::int64_t counts) {
  if (rows > most_counts / counts)
    throw InvalidArgument(
        fmt::format("a routing of {} rows with {} counts each is too large (at most {} rows)", rows, counts,
                    most_counts / counts));
}

/// `counts`: entries that a routing keeps for each row.
void require_per_rank(const std::vector<std::int64_t>& rows_per_rank, int world, std::int64_t counts) {
  if (rows_per_rank.size() != static_cast<std::size_t>(world))
    throw InvalidArgument(
        fmt::format("rows are given for {} ranks, but the world has {}", rows_per_rank.size(), world));
  std::int64_t total = 0;
  for (const std::int64_t rows : rows_per_rank) {
    if (rows < 0) throw InvalidArgument(fmt::format("{} rows on a rank: a count cannot be negative", rows));
    require_rows(rows, counts);
    require_rows(total += rows, counts);
  }
}

void require_experts(std::int64_t experts, std::int64_t topk, int world,
                     ExpertSplit split = ExpertSplit::by_expert) {
  require_world(world);
  if (experts < 1) throw InvalidArgument(fmt::format("experts = {} must be at least one", experts));
  if (split == ExpertSplit::by_expert && experts % world != 0)
    throw InvalidArgument(fmt::format("experts = {} is not a multiple of {} ranks", experts, world));
  if (topk < 1 || topk > experts)
    throw InvalidArgument(fmt::format("experts per token = {} is outside [1, {}]", topk, experts));
}

std::vector<std::int32_t> balanced_rows(std::int64_t rows, int source, int world, Random& random) {
  std::vector<std::int32_t> dest(static_cast<std::size_t>(rows));
  // Sources start at different ranks, so that remainders spread over all ranks.
  for (std::size_t i = 0; i < dest.size(); ++i)
    dest[i] =
        static_cast<std::int32_t>((i + static_cast<std::size_t>(source)) % static_cast<std::size_t>(world));
  shuffle(dest, random);
  return dest;
}

/// Ranks by heat, hottest first, and their cumulative shares in units of 2^-32.
class Skew {
 public:
  Skew(int world, Random& random) : ranks_(static_cast<std::size_t>(world)) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
    shuffle(ranks_, random);
    double total = 0;
    for (int i = 1; i <= world; ++i) total += 1.0 / i;
    double sum = 0;
    for (int i = 1; i <= world; ++i) shares_.push_back((sum += 1.0 / i) / total * 4294967296.0);
  }
  std::int32_t draw(Random& random) const {
    const auto at =
        std::upper_bound(shares_.begin(), shares_.end(), static_cast<double>(random.next() >> 32));
    return ranks_[std::min(static_cast<std::size_t>(at - shares_.begin()), ranks_.size() - 1)];
  }

 private:
  std::vector<std::int32_t> ranks_;
  std::vector<double> shares_;
};

/// Draws different numbers from 0, 1, … by the first steps of a shuffle. The order after a draw is a valid
/// start for the next draw.
class Lottery {
 public:
  explicit Lottery(std::int64_t numbers) : numbers_(static_cast<std::size_t>(numbers)) {
    std::iota(numbers_.begin(), numbers_.end(), std::int64_t{0});
  }
  std::span<const std::int64_t> draw(std::int64_t count, Random& random) {
    const auto all = static_cast<std::int64_t>(numbers_.size());
    for (std::int64_t i = 0; i < count; ++i)
      std::swap(numbers_[static_cast<std::size_t>(i)],
                numbers_[static_cast<std::size_t>(i + random.below(all - i))]);
    return std::span(numbers_).first(static_cast<std::size_t>(count));
  }

 private:
  std::vector<std::int64_t> numbers_;
};

}  // namespace

std::string_view name(RoutingPattern pattern) {
  for (const auto& [value, text] : pattern_names)
    if (value == pattern) return text;
  return "?";
}

RoutingPattern parse_routing_pattern(std::string_view text) {
  std::string known;
  for (const auto& [value, label] : pattern_names) {
    if (label == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(label);
  }
  throw InvalidArgument(fmt::format("unknown routing pattern '{}' (one of {})", text, known));
}

Routing make_routing(RoutingPattern pattern, int world, const std::vector<std::int64_t>& rows_per_rank,
                     std::uint64_t seed) {
  require_world(world);
  require_per_rank(rows_per_rank, world, world);
  if (pattern == RoutingPattern::empty_rank && world == 1)
    throw InvalidArgument("empty-rank needs at least 2 ranks");

  Random random(seed);
  const Skew skew(world, random);
  const auto single = static_cast<std::int32_t>(random.below(world));
  const auto draw = [&]() -> std::int32_t {
    switch (pattern) {
      case RoutingPattern::skewed:
        return skew.draw(random);
      case RoutingPattern::all_to_one:
        return single;
      case RoutingPattern::empty_rank:
        return static_cast<std::int32_t>((single + 1 + random.below(world - 1)) % world);
      default:
        return static_cast<std::int32_t>(random.below(world));
    }
  };
  Table dest(static_cast<std::size_t>(world));
  for (int source = 0; source < world; ++source) {
    auto& rows = dest[static_cast<std::size_t>(source)];
    const std::int64_t count = rows_per_rank[static_cast<std::size_t>(source)];
    if (pattern == RoutingPattern::balanced) {
      rows = balanced_rows(count, source, world, random);
    } else {
      rows.resize(static_cast<std::size_t>(count));
      std::generate(rows.begin(), rows.end(), draw);
    }
  }
  return Routing(std::move(dest));
}

Routing make_topk_routing(RoutingPattern pattern, int world, const std::vector<std::int64_t>& tokens_per_rank,
                          const Experts& experts, std::uint64_t seed, ExpertSplit split) {
  const std::int32_t all = experts.count, topk = experts.topk;
  require_experts(all, topk, world, split);
  require_per_rank(tokens_per_rank, world, all * std::int64_t{topk});
  if (pattern == RoutingPattern::empty_rank && topk == all)
    throw InvalidArgument(fmt::format("empty-rank needs more experts than the {} of a token", topk));
  Random random(seed);
  const Skew skew(all, random);
  const auto single = static_cast<std::int32_t>(random.below(all));
  const bool without = pattern == RoutingPattern::empty_rank, with = pattern == RoutingPattern::all_to_one;
  Lottery lottery(without || with ? all - 1 : all);  // experts behind `single`, if not all
  std::int64_t turn = 0;
  std::vector<std::int32_t> choices;
  const auto draw = [&] {
    choices.clear();
    if (with) choices.push_back(single);
    while (pattern == RoutingPattern::skewed && std::ssize(choices) < topk)
      if (const std::int32_t expert = skew.draw(random); std::ranges::find(choices, expert) == choices.end())
        choices.push_back(expert);
    while (pattern == RoutingPattern::balanced && std::ssize(choices) < topk)
      choices.push_back(static_cast<std::int32_t>(turn++ % all));
    for (const std::int64_t drawn : lottery.draw(topk - std::ssize(choices), random))
      choices.push_back(static_cast<std::int32_t>(without || with ? (single + 1 + drawn) % all : drawn));
  };
  Table dest(static_cast<std::size_t>(world));
  for (int source = 0; source < world; ++source) {
    const std::int64_t tokens = tokens_per_rank[static_cast<std::size_t>(source)];
    auto& rows = dest[static_cast<std::size_t>(source)];
    rows.resize(static_cast<std::size_t>(tokens * topk));
    for (std::int64_t token = 0; token < tokens; ++token) {
      draw();
      for (std::int32_t choice = 0; choice < topk; ++choice)
        rows[static_cast<std::size_t>(choice * tokens + token)] = choices[static_cast<std::size_t>(choice)];
    }
  }
  return Routing::to_experts(std::move(dest), all, split);
}

Routing routing_from_json(std::string_view text, int experts, ExpertSplit split) {
  const nlohmann::json document = parse_json(text);
  if (!document.is_object() || document.size() != 1 || !document.contains("dest"))
    throw InvalidArgument(fmt::format("a routing must be {{\"dest\": [[{}, …], …]}} and nothing else",
                                      experts > 0 ? "expert" : "rank"));
  const nlohmann::json* ranks = Fields(document).list({"dest"});
  if (ranks == nullptr || ranks->empty() || ranks->size() > static_cast<std::size_t>(max_world))
    throw InvalidArgument(fmt::format("dest must list the rows of 1 to {} ranks", max_world));
  const int world = static_cast<int>(ranks->size()), destinations = experts > 0 ? experts : world;
  Table dest(ranks->size());
  std::int64_t total = 0;
  for (std::size_t source = 0; source < ranks->size(); ++source) {
    const nlohmann::json& rows = (*ranks)[source];
    if (!rows.is_array())
      throw InvalidArgument(fmt::format("dest[{}] must be a list, not {}", source, show(rows)));
    require_rows(total += static_cast<std::int64_t>(rows.size()), destinations);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (!rows[row].is_number_unsigned() ||
          rows[row].get<std::uint64_t>() >= static_cast<std::uint64_t>(destinations))
        throw InvalidArgument(fmt::format("dest[{}][{}] = {} is not {} in [0, {}]{}", source, row,
                                          show(rows[row]), experts > 0 ? "an expert" : "a rank",
                                          destinations - 1,
                                          experts > 0 ? "" : fmt::format(": dest is of {} ranks", world)));
      dest[source].push_back(rows[row].get<std::int32_t>());
    }
  }
  return experts > 0 ? Routing::to_experts(std::move(dest), experts, split) : Routing(std::move(dest));
}

Routing read_routing_file(const std::string& path, int experts, ExpertSplit split) {
  const std::string text = read_file(path, most_routing_bytes);
  try {
    return routing_from_json(text, experts, split);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace shingle
