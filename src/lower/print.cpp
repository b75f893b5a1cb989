#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "launch_program.hpp"
#include "plan/steps.hpp"
#include "plan/text/describe.hpp"

namespace shingle {
namespace {

constexpr std::array<std::string_view, 9> kinds{"kernel", "sync",    "flags", "host",    "record",
                                                "wait",   "library", "copy",  "delivery"};

std::string steps_text(const Launch& launch) {
  return launch.last == launch.first + 1 ? fmt::format("step {}", launch.first)
                                         : fmt::format("steps {}-{}", launch.first, launch.last - 1);
}

std::string part_text(const Plan& plan, const LaunchPart& part) {
  const std::string wait =
      part.event >= 0
          ? fmt::format("event {}", part.event)
          : fmt::format("{}[{}] >= {}", plan.counters[static_cast<std::size_t>(part.counter.counter)].name,
                        part.counter.entry, part.target);
  return fmt::format("items {}-{} after {}", part.first, part.last - 1, wait);
}

/// Awaits and notifies with their counts; other steps by kind, because the plan's own text shows the rest.
std::string step_text(const Plan& plan, const Step& step, int rank) {
  return synchronises(step) ? text::step_line(plan, step, rank) : std::string(name(step));
}

std::string line(const Plan& plan, const Lane& lane, const Launch& launch, int rank) {
  std::string text = fmt::format("    {:<8} {:<12}", name(launch.kind), steps_text(launch));
  if (launch.event >= 0) {
    text += fmt::format(" event {}", launch.event);
  } else {
    for (std::int32_t step = launch.first; step < launch.last; ++step)
      text += (step == launch.first ? " " : " + ") +
              step_text(plan, lane.steps[static_cast<std::size_t>(step)], rank);
  }
  if (launch.may_start_early) text += ", may start before the previous kernel ends";
  if (launch.weights_early) text += ", may load B before the previous kernels end";
  if (launch.sends_until > 0) text += ", may send what the delivery sends";
  if (launch.sent_by >= 0) text += fmt::format(", step {} may have sent", launch.sent_by);
  for (const LaunchPart& part : launch.parts) text += fmt::format("\n{:25}{}", "", part_text(plan, part));
  return text + "\n";
}

std::string rank_text(const Plan& plan, int number, const RankLaunches& rank) {
  const RankPlan& planned = plan.ranks[static_cast<std::size_t>(number)];
  std::string text = fmt::format("{} launches, {} events, {} work queues\n", rank.launches.size(),
                                 rank.events, rank.work_queues);
  for (std::size_t stream = 0; stream < planned.lanes.size(); ++stream) {
    const Lane& lane = planned.lanes[stream];
    text += fmt::format("  stream {} ({}){}\n", stream, lane.name,
                        rank.urgent[stream] ? ", of higher priority" : "");
    for (const Launch& launch : rank.launches)
      if (launch.stream == static_cast<std::int32_t>(stream)) text += line(plan, lane, launch, number);
  }
  return text;
}

}  // namespace

std::string_view name(LaunchKind kind) {
  return kinds[static_cast<std::size_t>(kind)];
}

std::string to_text(const Plan& plan, const LaunchProgram& program) {
  std::string text =
      fmt::format("graph: {}\n",
                  program.unfit_for_graph.empty() ? "yes" : fmt::format("no, {}", program.unfit_for_graph));
  if (program.host_creates_commands) text += "the host creates copy commands during the epoch\n";
  std::vector<std::pair<std::string, std::vector<std::int64_t>>>
      alike;  // launches, and the ranks that have them
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const std::string launches = rank_text(plan, static_cast<int>(r), program.ranks[r]);
    auto found = std::ranges::find(alike, launches, &decltype(alike)::value_type::first);
    if (found == alike.end()) found = alike.insert(found, {launches, {}});
    found->second.push_back(static_cast<std::int64_t>(r));
  }
  for (const auto& [launches, ranks] : alike)
    text += fmt::format("rank{} {}: {}", ranks.size() == 1 ? "" : "s", text::ranges(ranks), launches);
  return text;
}

std::string to_json(const LaunchProgram& program, int indent) {
  using nlohmann::ordered_json;
  auto ranks = ordered_json::array();
  for (const RankLaunches& rank : program.ranks) {
    auto launches = ordered_json::array();
    for (const Launch& launch : rank.launches) {
      ordered_json one{{"kind", name(launch.kind)},
                       {"stream", launch.stream},
                       {"first", launch.first},
                       {"last", launch.last}};
      if (launch.event >= 0) one["event"] = launch.event;
      if (launch.may_start_early) one["may_start_early"] = true;
      if (launch.weights_early) one["weights_early"] = true;
      if (launch.sends_until > 0) one["sends_until"] = launch.sends_until;
      if (launch.sent_by >= 0) one["sent_by"] = launch.sent_by;
      for (const LaunchPart& part : launch.parts) {
        ordered_json items{{"first", part.first}, {"last", part.last}};
        if (part.event >= 0) {
          items["event"] = part.event;
        } else {
          items["counter"] = {
              {"counter", part.counter.counter}, {"rank", part.counter.rank}, {"entry", part.counter.entry}};
          items["target"] = part.target;
        }
        one["parts"].push_back(std::move(items));
      }
      launches.push_back(std::move(one));
    }
    ordered_json of_rank{{"events", rank.events}, {"work_queues", rank.work_queues}};
    for (std::size_t stream = 0; stream < rank.urgent.size(); ++stream)
      if (rank.urgent[stream]) of_rank["urgent"].push_back(stream);
    of_rank["launches"] = std::move(launches);
    ranks.push_back(std::move(of_rank));
  }
  ordered_json all{{"unfit_for_graph", program.unfit_for_graph},
                   {"host_creates_commands", program.host_creates_commands},
                   {"ranks", std::move(ranks)}};
  return all.dump(indent);
}

}  // namespace shingle
