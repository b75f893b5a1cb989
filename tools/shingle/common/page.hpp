// What becomes of rows on a page (--html).
#pragma once

#include "report/report.hpp"
#include "shingle/common/rows.hpp"

namespace shingle::cli {

/// An empty page that says what it shows and which version made it.
Report make_page(const std::string& title, std::vector<std::string> facts);

/// A result for a heat map of all those with the same operator, mechanism, ranks and type.
struct SizedSpeedup {
  std::string of;
  SpeedupPoint point;
};

/// A map for each that has at least four sizes: fewer are read off a table.
std::vector<ReportHeatMap> heat_maps(const std::vector<SizedSpeedup>& results);

/// Adds the table of rows, and the heat maps of those that have a time. `lines`: of all rows, the head first.
void add_rows(const std::vector<Row>& rows, std::vector<Line> lines, Report& page);

/// Keeps pages at a size that browsers scroll well: after the first 12 pairs of timelines, or where those
/// already hold 20000 spans, adds nothing more, and says so in the last of the page's facts.
void add_timelines(std::string title, std::vector<Timeline> timelines, Report& page);

}  // namespace shingle::cli
