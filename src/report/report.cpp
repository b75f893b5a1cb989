// The HTML page: sections of a report, one below the other.
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plot.hpp"

namespace shingle {
namespace {

using plot::escaped;

// Text of figures takes the page's colour. Other colours of figures are readable on light and dark.
constexpr std::string_view style = R"(
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1f2328; --faint: #59636e; --rule: #d1d9e0; --band: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #12161c; --ink: #e6edf3; --faint: #9198a1; --rule: #353c46; --band: #1b2129; }
}
body { margin: 0 auto; padding: 24px; max-width: 1080px; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 8px; padding-bottom: 4px; border-bottom: 1px solid var(--rule); }
h3 { font-size: 15px; margin: 20px 0 6px; }
p { margin: 2px 0; color: var(--faint); overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px 4px 0; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid var(--rule); font-weight: 600; }
tr:nth-child(even) td { background: var(--band); }
.word { text-align: left; }
td.word:first-child { padding-left: 6px; } th.word:first-child { padding-left: 6px; }
.wide + p { margin-top: 8px; }
figure { margin: 8px 0 20px; }
figcaption { color: var(--faint); font-size: 14px; }
svg { display: block; width: 100%; height: auto; fill: var(--ink); }
.beside { display: flex; flex-wrap: wrap; gap: 24px; } .beside figure { flex: 1 1 400px; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
)";

/// A picture as part of the page, at most as wide as drawn. HTML knows the SVG namespace; an xmlns attribute
/// would look like an external reference.
std::string figure(std::string_view svg, std::string_view caption) {
  constexpr std::string_view name_space = " xmlns=\"http://www.w3.org/2000/svg\"", box = "viewBox=\"0 0 ";
  std::string inlined(svg);
  if (const auto at = inlined.find(name_space); at != std::string::npos) inlined.erase(at, name_space.size());
  const auto from = inlined.find(box) + box.size();
  return fmt::format("<figure style=\"max-width: {}px\">\n{}<figcaption>{}</figcaption>\n</figure>\n",
                     inlined.substr(from, inlined.find(' ', from) - from), inlined, escaped(caption));
}

std::string table_row(const std::vector<std::string>& cells, std::size_t words, std::string_view tag) {
  std::string out = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i)
    out += fmt::format("<{0}{1}>{2}</{0}>", tag, i < words ? " class=\"word\"" : "", escaped(cells[i]));
  return out + "</tr>\n";
}

std::string section(const ReportTable& table) {
  std::string out =
      fmt::format("<section>\n<h2>{}</h2>\n<div class=\"wide\"><table>\n<thead>\n{}</thead>\n<tbody>\n",
                  escaped(table.title), table_row(table.head, table.words, "th"));
  for (const auto& row : table.rows) out += table_row(row, table.words, "td");
  out += "</tbody>\n</table></div>\n";
  for (const std::string& note : table.notes) out += fmt::format("<p>{}</p>\n", escaped(note));
  return out + "</section>\n";
}

std::string section(std::span<const TimePair> pairs) {
  std::vector<double> errors;
  for (const TimePair& pair : pairs)
    if (pair.valid()) errors.push_back(std::abs(pair.error()));
  if (errors.empty()) return {};
  return fmt::format(
      "<section>\n<h2>Predicted against measured</h2>\n<p>Relative error of {} predictions: median {:.1f} %, "
      "p90 "
      "{:.1f} %, largest {:.1f} %.</p>\n<div class=\"beside\">\n{}{}</div>\n</section>\n",
      errors.size(), 100 * quantile(errors, 0.5), 100 * quantile(errors, 0.9), 100 * quantile(errors, 1),
      figure(prediction_svg(pairs), "Each result; the band is ten percent to either side."),
      figure(error_cdf_svg(pairs), "Part of the predictions whose error is at most so large."));
}

std::string section(std::span<const ReportHeatMap> maps) {
  std::string out =
      "<section>\n<h2>Speed-up by size</h2>\n<p>Over the sequential plan: blue is faster, red slower.</p>\n"
      "<div class=\"beside\">\n";
  for (const ReportHeatMap& map : maps) out += figure(heat_map_svg(map.points), map.title);
  return out + "</div>\n</section>\n";
}

std::string section(std::span<const ReportTimelines> all) {
  constexpr int most_ranks = 4;  // further ranks look similar
  std::string out = "<section>\n<h2>Timelines</h2>\n";
  for (const ReportTimelines& one : all) {
    const bool more = std::ranges::any_of(one.timelines, [](const Timeline& timeline) {
      return timeline.plan.ranks.size() > static_cast<std::size_t>(most_ranks);
    });
    out += fmt::format(
        "<h3>{}</h3>\n{}", escaped(one.title),
        figure(
            to_svg(one.timelines, most_ranks),
            fmt::format("A row a lane{}. Computation and communication of a group of tiles have one colour; "
                        "passes over finished tiles are paler.",
                        more ? fmt::format(", of the first {} ranks", most_ranks) : "")));
  }
  return out + "</section>\n";
}

std::string section(std::span<const Curve> curves) {
  return fmt::format(
      "<section>\n<h2>Bandwidth of the machine</h2>\n{}</section>\n",
      figure(bandwidth_svg(curves), "Bytes over the busiest link and direction, by time; dots are samples."));
}

}  // namespace

std::string to_html(const Report& report) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      escaped(report.title), style);
  for (const std::string& fact : report.facts) out += fmt::format("<p>{}</p>\n", escaped(fact));
  for (const ReportTable& table : report.tables) out += section(table);
  out += section(report.predictions);
  if (!report.heat_maps.empty()) out += section(report.heat_maps);
  if (!report.timelines.empty()) out += section(report.timelines);
  if (!report.curves.empty()) out += section(report.curves);
  return out + "</body>\n</html>\n";
}

}  // namespace shingle
