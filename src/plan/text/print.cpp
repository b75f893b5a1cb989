#include "shingle/plan/print.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "describe.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle {
namespace {

using text::folded;
using text::list;
using text::merged;
using text::ranges;

/// Max number of differences between ranks to print; beyond it the text refers to the ranks themselves.
constexpr std::size_t max_differences = 40;

std::string mechanism_text(const Plan& plan) {
  const std::string params = describe(plan.params);
  return fmt::format("{}{}{}; {} worker{} a rank", name(plan.mechanism), params.empty() ? "" : " ", params,
                     plan.workers, plan.workers == 1 ? "" : "s");
}

/// Texts, each with the ranks that share it.
using TextByRank = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

void add(TextByRank& texts, const std::string& text, std::int64_t rank) {
  auto it = std::find_if(texts.begin(), texts.end(), [&](const auto& entry) { return entry.first == text; });
  if (it == texts.end()) it = texts.insert(texts.end(), {text, {}});
  it->second.push_back(rank);
}

/// Values grouped by rank, as in "512 on ranks 0-6, 500 on 7"; one value if all ranks share it.
template <class T>
std::string by_rank(const std::vector<T>& values, auto&& text) {
  if (values.empty() || std::all_of(values.begin(), values.end(), [&](const T& v) { return v == values[0]; }))
    return values.empty() ? "" : text(values[0]);
  TextByRank groups;
  for (std::size_t r = 0; r < values.size(); ++r) add(groups, text(values[r]), static_cast<std::int64_t>(r));
  std::string out;
  for (const auto& [shown, ranks] : groups)
    out += fmt::format("{}{} on rank{} {}", out.empty() ? "" : "; ", shown, ranks.size() == 1 ? "" : "s",
                       ranges(ranks));
  return out;
}

std::size_t widest(const auto& table) {
  std::size_t width = 0;
  for (const auto& row : table) width = std::max(width, row.name.size());
  return width;
}

std::string head(const Plan& plan) {
  std::string text =
      fmt::format("{}\n{}\nrounding: {}\n", describe(plan.work), mechanism_text(plan), plan.rounding);
  if (is_symmetric(plan))
    text += fmt::format("{0} ranks stand for all {1}: rank r does as rank r mod {0}\n", plan.ranks.size(),
                        plan.world());
  text += "buffers\n";
  for (const Buffer& b : plan.buffers) {
    std::int64_t most = 0;
    for (int r = 0; r < static_cast<int>(b.rows.size()); ++r) most = std::max(most, b.bytes(r));
    const std::string rows = by_rank(b.rows, [&](std::int64_t n) { return fmt::format("{}x{}", n, b.cols); });
    text += fmt::format("  {:{}}  {:8}  {:4}  {}{}  {}\n", b.name, widest(plan.buffers),
                        b.role == Role::internal ? "internal"
                        : is_input(b.role)       ? "input"
                                                 : "output",
                        name(b.dtype), rows,
                        b.flagged     ? ", flagged"
                        : b.depth > 1 ? ", twice"
                                      : "",
                        format_bytes(static_cast<double>(most)));
  }
  if (!plan.counters.empty()) text += "counters, and what they grow by an epoch\n";
  for (const Counter& c : plan.counters)
    text += fmt::format(
        "  {:{}}  {}  {}{}\n", c.name, widest(plan.counters), c.kind == CounterKind::add ? "add" : "set",
        by_rank(c.growth,
                [](const std::vector<std::uint32_t>& growth) {
                  const std::string values = list({growth.begin(), growth.end()});
                  return growth.size() <= 1 ? values : fmt::format("{} entries: {}", growth.size(), values);
                }),
        c.of_begins     ? ", of begins"
        : c.of_arrivals ? ", of arrivals"
                        : "");
  if (!plan.communicators.empty()) text += "communicators\n";
  for (const Communicator& c : plan.communicators)
    text += fmt::format("  {:{}}  ranks {}\n", c.name, widest(plan.communicators),
                        ranges({c.ranks.begin(), c.ranks.end()}));
  return text;
}

std::string times(const std::string& text, std::size_t count) {
  return count == 1 ? text : fmt::format("{} x {}", text, count);
}

/// Issue order with repetitions folded: "(compute x 2, communicate) x 16". Runs of a lane fold, and
/// repetitions of up to four runs.
std::string issue_text(const RankPlan& rank) {
  std::vector<std::string> runs;
  const auto& issue = rank.issue;
  for (std::size_t at = 0, end = 0; at < issue.size(); at = end) {
    while (end < issue.size() && issue[end] == issue[at]) ++end;
    runs.push_back(times(rank.lanes[static_cast<std::size_t>(issue[at])].name, end - at));
  }
  std::string text;
  for (std::size_t at = 0; at < runs.size();) {
    std::size_t best = 1, count = 1;
    for (std::size_t period = 1; period <= 4; ++period) {
      std::size_t end = std::min(at + period, runs.size());
      while (end < runs.size() && runs[end] == runs[end - period]) ++end;
      const std::size_t repeats = (end - at) / period;
      if (repeats > 1 && repeats * period > best * count) best = period, count = repeats;
    }
    const std::string part =
        fmt::format("{}", fmt::join(runs.begin() + static_cast<std::ptrdiff_t>(at),
                                    runs.begin() + static_cast<std::ptrdiff_t>(at + best), ", "));
    text += (text.empty() ? "" : ", ") + (count > 1 ? times(fmt::format("({})", part), count) : part);
    at += best * count;
  }
  return text;
}

std::string numbered(const Plan& plan, int rank, const Lane& lane, std::size_t step) {
  return fmt::format("{}: {}", step, text::step_line(plan, lane.steps[step], rank));
}

std::string lane_title(const Lane& lane) {
  std::string text = lane.name == name(lane.kind) ? fmt::format("lane {}", lane.name)
                                                  : fmt::format("lane {} ({})", lane.name, name(lane.kind));
  const Submission& how = lane.submission;
  if (how.launcher >= 0) text += fmt::format(", launcher {}", how.launcher);
  if (how.prelaunched) text += ", prelaunched";
  if (!how.doorbells.empty())
    text += fmt::format(", new batches at {}", list({how.doorbells.begin(), how.doorbells.end()}));
  return text;
}

std::string rank_text(const Plan& plan, int rank) {
  const RankPlan& r = plan.ranks[static_cast<std::size_t>(rank)];
  std::string text = fmt::format("rank {}\n", rank);
  for (const Lane& lane : r.lanes) {
    text += fmt::format("  {}\n", lane_title(lane));
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < lane.steps.size(); ++i) lines.push_back(numbered(plan, rank, lane, i));
    for (const std::string& line : folded(lines)) text += fmt::format("    {}\n", line);
  }
  if (r.lanes.size() > 1) text += fmt::format("  issued in the order {}\n", issue_text(r));
  return text;
}

/// True if two ranks have the same lanes with the same number of steps.
bool alike(const RankPlan& a, const RankPlan& b) {
  const auto same = [](const Lane& x, const Lane& y) {
    return x.kind == y.kind && x.name == y.name && x.steps.size() == y.steps.size();
  };
  return a.issue == b.issue &&
         std::equal(a.lanes.begin(), a.lanes.end(), b.lanes.begin(), b.lanes.end(), same);
}

/// Lines with the differences between the steps of `ranks` and those of rank 0.
std::vector<std::string> differences(const Plan& plan, const std::vector<std::int64_t>& ranks) {
  const bool everyone = ranks.size() + 1 == plan.ranks.size();
  std::vector<std::string> out;
  const RankPlan& first = plan.ranks[0];
  for (std::size_t l = 0; l < first.lanes.size(); ++l) {
    for (std::size_t s = 0; s < first.lanes[l].steps.size(); ++s) {
      const std::string own = numbered(plan, 0, first.lanes[l], s);
      std::vector<std::string> lines{own};
      TextByRank others;
      for (const std::int64_t rank : ranks) {
        lines.push_back(
            numbered(plan, static_cast<int>(rank), plan.ranks[static_cast<std::size_t>(rank)].lanes[l], s));
        if (lines.back() != own) add(others, lines.back(), rank);
      }
      if (others.empty()) continue;
      const std::string formula = everyone ? merged(lines, 'r', plan.world()) : "";
      if (!formula.empty()) {
        out.push_back(fmt::format("{} {}", first.lanes[l].name, formula));
        continue;
      }
      for (const auto& [line, who] : others)
        out.push_back(fmt::format("rank{} {}: {} {}", who.size() == 1 ? "" : "s", ranges(who),
                                  first.lanes[l].name, line));
    }
  }
  return folded(out);
}

}  // namespace

std::string to_text(const Plan& plan, int rank) {
  const int world = static_cast<int>(plan.ranks.size());
  if (rank >= world) throw InvalidArgument(fmt::format("rank {} is not in [0, {})", rank, world));
  std::string text = head(plan) + rank_text(plan, std::max(rank, 0));
  if (rank >= 0 || world == 1) return text;
  std::vector<std::int64_t> similar;
  for (int r = 1; r < world; ++r)
    if (alike(plan.ranks[0], plan.ranks[static_cast<std::size_t>(r)])) similar.push_back(r);
  if (!similar.empty()) {
    const std::vector<std::string> lines = differences(plan, similar);
    text += fmt::format("rank{} {}: as rank 0{}\n", similar.size() == 1 ? "" : "s", ranges(similar),
                        lines.empty() ? "" : ", but for (r is the rank)");
    for (std::size_t i = 0; i < std::min(lines.size(), max_differences); ++i)
      text += fmt::format("  {}\n", lines[i]);
    if (lines.size() > max_differences)
      text += fmt::format("  ... and {} more lines: print the ranks one by one\n",
                          lines.size() - max_differences);
  }
  for (int r = 1; r < world; ++r)
    if (std::find(similar.begin(), similar.end(), r) == similar.end()) text += rank_text(plan, r);
  return text;
}

}  // namespace shingle
