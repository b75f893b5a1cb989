// Rows on an HTML page (--html).
#pragma once

#include "report/report.hpp"
#include "shingle/common/rows.hpp"

namespace shingle::cli {

/// An empty page with its title, facts and Shingle's version.
Report make_page(const std::string& title, std::vector<std::string> facts);

/// A result for the heat map of its operator, mechanism, ranks and type.
struct SizedSpeedup {
  std::string of;
  SpeedupPoint point;
};

/// One map for each combination with at least four sizes. Fewer sizes are easier to read in the table.
std::vector<ReportHeatMap> heat_maps(const std::vector<SizedSpeedup>& results);

/// Adds the table of rows, and heat maps of timed rows. `lines` holds all rows, the head first.
void add_rows(const std::vector<Row>& rows, std::vector<Line> lines, Report& page);

/// Adds timelines up to a size that browsers scroll well: the first 12 pairs, or until they hold 20000 spans.
/// It adds nothing after that, and says so in the last of the page's facts.
void add_timelines(std::string title, std::vector<Timeline> timelines, Report& page);

}  // namespace shingle::cli
