#include "shingle/common/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "shingle/version.hpp"

namespace shingle::cli {

Report make_page(const std::string& title, std::vector<std::string> facts) {
  facts.push_back(fmt::format("shingle {} ({})", SHINGLE_VERSION, commit()));
  Report page;
  page.title = title;
  page.facts = std::move(facts);
  return page;
}

std::vector<ReportHeatMap> heat_maps(const std::vector<SizedSpeedup>& results) {
  std::map<std::string, ReportHeatMap> by_title;
  for (const SizedSpeedup& result : results) {
    ReportHeatMap& map = by_title[result.of];
    map.title = result.of;
    map.points.push_back(result.point);
  }
  constexpr std::size_t least_sizes = 4;
  std::vector<ReportHeatMap> maps;
  for (auto& [title, map] : by_title) {
    std::set<std::pair<double, double>> sizes;
    for (const SpeedupPoint& point : map.points) sizes.emplace(point.mn, point.k);
    if (sizes.size() >= least_sizes) maps.push_back(std::move(map));
  }
  return maps;
}

void add_rows(const std::vector<Row>& rows, std::vector<Line> lines, Report& page) {
  ReportTable table{.title = "Results",
                    .head = std::move(lines.at(0)),

                    .words = word_columns,
                    .notes = reasons(rows)};
  table.rows.assign(std::make_move_iterator(lines.begin() + 1), std::make_move_iterator(lines.end()));
  page.tables.push_back(std::move(table));
  std::vector<SizedSpeedup> sized;
  for (const Row& row : rows) {
    if (!row.predicted && !row.time) continue;
    const RowHead head = head_of(row.named.work);
    // The sequential plan has no speed-up over itself to show.
    if (row.mechanism == name(Mechanism::sequential)) continue;
    const double speedup = row.predicted ? row.predicted->speedup() : row.time->speedup();
    if (!std::isfinite(speedup)) continue;  // nothing takes time
    sized.push_back(
        {fmt::format("{}, {}, {} ranks, {}", head.op, row.mechanism, world_of(row.named.work),
                     name(dtype_of(row.named.work))),
         {static_cast<double>(head.m) * static_cast<double>(head.n), static_cast<double>(head.k), speedup}});
  }
  page.heat_maps = heat_maps(sized);
}

void add_timelines(std::string title, std::vector<Timeline> timelines, Report& page) {
  constexpr std::size_t most_pairs = 12, most_spans = 20000;
  const std::string left_out = "Timelines of further rows are left out.";
  std::size_t spans = 0;
  for (const ReportTimelines& shown : page.timelines)
    for (const Timeline& timeline : shown.timelines) spans += timeline.spans.size();
  if (page.timelines.size() < most_pairs && spans < most_spans)
    page.timelines.push_back({std::move(title), std::move(timelines)});
  else if (page.facts.empty() || page.facts.back() != left_out)
    page.facts.push_back(left_out);
}

}  // namespace shingle::cli
