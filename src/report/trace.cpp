#include "trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "shingle/plan/print.hpp"

namespace shingle {
namespace {

bool tiled(const Step& step) {
  return std::holds_alternative<Gemm>(step) || std::holds_alternative<Attend>(step) ||
         std::holds_alternative<Elementwise>(step) || std::holds_alternative<Merge>(step) ||
         std::holds_alternative<AttendBackward>(step);
}

nlohmann::json metadata(const char* what, int rank, int lane, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

nlohmann::json slice(const Timeline& timeline, const Span& span, double begin_us) {
  const Lane& lane = timeline.plan.ranks[span.rank].lanes[span.lane];
  const Step& step = lane.steps[span.step];
  const int group = group_of_span(timeline.plan, span);
  nlohmann::json args{{"operator", timeline.title},
                      {"step", span.step},
                      {"does", describe(timeline.plan, step)},
                      {"epoch", span.epoch}};
  if (group >= 0) args["group"] = group;
  return {{"ph", "X"},
          {"name", group < 0 ? std::string(name(step)) : fmt::format("{} {}", name(step), group)},
          {"cat", name(lane.kind)},
          {"pid", span.rank},
          {"tid", span.lane},
          {"ts", begin_us},
          {"dur", std::max(span.end_us - span.begin_us, 0.0)},
          {"args", std::move(args)}};
}

}  // namespace

double begin_us(const Timeline& timeline) {
  if (timeline.begin_us) return *timeline.begin_us;
  if (timeline.spans.empty()) return 0;
  return std::ranges::min_element(timeline.spans, {}, &Span::begin_us)->begin_us;
}

int group_of_span(const Plan& plan, const Span& span) {
  if (span.group >= 0) return span.group;
  const auto& steps = plan.ranks[span.rank].lanes[span.lane].steps;
  const auto at = static_cast<std::size_t>(span.step);
  if (const auto* await = std::get_if<Await>(&steps[at])) return await->counter.entry;
  if (const auto* notify = std::get_if<Notify>(&steps[at])) return notify->counter.entry;
  // In attention alone the group of an item is the entry that the next step notifies, if there is one.
  if ((std::holds_alternative<Attend>(steps[at]) || std::holds_alternative<AttendBackward>(steps[at])) &&
      plan.problem().traits().shards_tokens()) {
    const auto* behind = at + 1 < steps.size() ? std::get_if<Notify>(&steps[at + 1]) : nullptr;
    return behind != nullptr ? behind->counter.entry : -1;
  }
  // A step after a single await works on the group of the awaited entry.
  const auto entry_before = [&](std::size_t i) {
    return i > 0 ? std::get_if<Await>(&steps[i - 1]) : nullptr;
  };
  if (const Await* await = entry_before(at); await && !entry_before(at - 1)) return await->counter.entry;
  // A step before a notify works on the group of the notified entry.
  std::size_t next = at + 1;
  while (next < steps.size() && (tiled(steps[next]) || std::holds_alternative<Await>(steps[next]))) ++next;
  const auto* notify = next < steps.size() ? std::get_if<Notify>(&steps[next]) : nullptr;
  return notify ? notify->counter.entry : -1;
}

std::string to_chrome_trace(std::span<const Timeline> timelines) {
  nlohmann::json events = nlohmann::json::array();
  std::set<std::pair<int, int>> named;
  double start_us = 0;
  for (const Timeline& timeline : timelines) {
    const double first_us = begin_us(timeline);
    double end_us = start_us;
    for (const Span& span : timeline.spans) {
      if (named.emplace(span.rank, -1).second)
        events.push_back(metadata("process_name", span.rank, 0, fmt::format("rank {}", span.rank)));
      if (named.emplace(span.rank, span.lane).second)
        events.push_back(metadata("thread_name", span.rank, span.lane,
                                  timeline.plan.ranks[span.rank].lanes[span.lane].name));
      events.push_back(slice(timeline, span, start_us + span.begin_us - first_us));
      end_us = std::max(end_us, start_us + span.end_us - first_us);
    }
    start_us = end_us + 0.1 * (end_us - start_us);  // a gap separates the timelines
  }
  const nlohmann::json trace{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  return trace.dump(1) + "\n";
}

}  // namespace shingle
