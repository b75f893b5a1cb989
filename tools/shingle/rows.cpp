#include "shingle/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shingle/plan/json.hpp"

namespace shingle::cli {
namespace {

Line head_of(const Row& row) {
  const Problem& p = row.named.problem;
  std::string size = p.multiplies() ? fmt::format("{}×{}×{}", p.m, p.n, p.k) : fmt::format("{}×{}", p.m, p.n);
  if (p.chains()) size += fmt::format(" ({})", p.inner);
  return {row.named.name.empty() ? std::string(name(p.op)) : fmt::format("{} {}", row.named.name, name(p.op)),
          std::move(size), row.mechanism};
}

std::string fraction(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}", value) : "-";
}

Line line_of(const Row& row) {
  Line line = head_of(row);
  if (!row.ran()) {
    line.resize(9, "-");
    return line;
  }
  line.push_back(format_us(row.time->sequential_us));
  line.push_back(format_us(row.time->overlapped_us));
  line.push_back(fmt::format("{:.2f}x", row.time->speedup()));
  line.push_back(fraction(row.time->overlap_efficiency()));
  line.push_back(fmt::format("{:.1e}", row.check.max_error));
  line.push_back(row.check.passed ? "yes" : "NO");
  return line;
}

Line predicted_line(const Row& row) {
  Line line = head_of(row);
  if (!row.predicted) {
    line.resize(11, "-");
    return line;
  }
  const Metrics& at = *row.predicted;
  for (const double us : {at.compute_us, at.sequential_us, at.us}) line.push_back(format_us(us));
  line.push_back(fmt::format("{:.2f}x", at.speedup()));
  line.push_back(fraction(at.overlap_efficiency()));
  line.push_back(fraction(at.roofline_fraction()));
  line.push_back(fmt::format("{:.0f}", at.tflops()));
  line.push_back(fmt::format("{:.0f}%", 100 * at.mfu()));
  return line;
}

std::string below(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

void add_metrics(const Metrics& at, nlohmann::ordered_json& object) {
  object["sequential_us"] = at.sequential_us;
  object["overlapped_us"] = at.us;
  object["speedup"] = at.speedup();
  object["overlap_efficiency"] = at.overlap_efficiency();
  object["compute_us"] = at.compute_us;
  object["wire_us"] = at.wire_us;
  object["exposed_us"] = at.exposed_us;
  object["ect_us"] = at.ect_us();
  object["roofline_fraction"] = at.roofline_fraction();
  object["tflops"] = at.tflops();
  object["mfu"] = at.mfu();
}

nlohmann::ordered_json json_of(const Chosen& chosen) {
  nlohmann::ordered_json object;
  object["reason"] = chosen.reason;
  object["confirmed"] = chosen.confirmed;
  object["considered"] = nlohmann::ordered_json::array();
  for (const Considered& at : chosen.considered) {
    nlohmann::ordered_json one;
    one["mechanism"] = name(at.mechanism);
    one["predicted_us"] = at.us > 0 ? nlohmann::ordered_json(at.us) : nlohmann::ordered_json();
    if (at.measured_us > 0) one["measured_us"] = at.measured_us;
    one["tried"] = at.tried;
    one["reason"] = at.reason.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(at.reason);
    object["considered"].push_back(std::move(one));
  }
  return object;
}

nlohmann::ordered_json json_of(const Row& row) {
  const Problem& p = row.named.problem;
  nlohmann::ordered_json object;
  object["op"] = name(p.op);
  object["m"] = p.m;
  object["n"] = p.n;
  object["k"] = p.k;
  if (p.chains()) object["inner"] = p.inner;
  object["world"] = p.world;
  object["dtype"] = name(p.dtype);
  object["backend"] = row.backend;
  object["mechanism"] = row.mechanism;
  object["params"] =
      row.params.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json::parse(row.params);
  const auto measured = [&](const char* key, double value) {
    object[key] = row.ran() ? nlohmann::ordered_json(value)
                            : nlohmann::ordered_json();  // a value that is not finite is null, too
  };
  object["source"] = row.predicted ? "predicted" : "measured";
  if (row.predicted) {
    add_metrics(*row.predicted, object);
  } else {
    const Measurement time = row.time.value_or(Measurement{});
    measured("sequential_us", time.sequential_us);
    measured("overlapped_us", time.overlapped_us);
    measured("speedup", time.speedup());
    measured("overlap_efficiency", time.overlap_efficiency());
    measured("max_error", row.check.max_error);
    measured("tolerance", row.check.tolerance);
    object["verified"] = row.ran() && row.check.passed;
  }
  if (row.choice) object["choice"] = json_of(*row.choice);
  object["reason"] = row.reason.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(row.reason);
  return object;
}

}  // namespace

std::vector<Line> lines_of(const std::vector<Row>& rows) {
  std::vector<Line> lines{{"operator", "M×N×K", "mechanism", "sequential", "overlapped", "speedup", "overlap",
                           "max error", "verified"}};
  for (const Row& row : rows) lines.push_back(line_of(row));
  return lines;
}

std::vector<Line> predicted_lines(const std::vector<Row>& rows) {
  std::vector<Line> lines{{"operator", "M×N×K", "mechanism", "compute", "sequential", "predicted", "speedup",
                           "overlap", "roofline", "TFLOP/s", "MFU"}};
  for (const Row& row : rows) lines.push_back(predicted_line(row));
  return lines;
}

std::vector<std::string> reasons(const std::vector<Row>& rows) {
  std::vector<std::string> lines;
  for (const Row& row : rows)
    if (!row.reason.empty())
      lines.push_back(fmt::format("{} {}: {}", head_of(row)[0], row.mechanism, row.reason));
    else if (row.choice)
      lines.push_back(fmt::format("{}: {}", head_of(row)[0], row.choice->reason));
  return lines;
}

std::string to_table(const std::vector<Row>& rows) {
  return aligned(lines_of(rows)) + below(reasons(rows));
}

std::string predicted_table(const Machine& machine, const std::vector<Row>& rows) {
  return fmt::format("predicted for {}\n", machine.name) + aligned(predicted_lines(rows)) +
         below(reasons(rows));
}

std::string to_json(const std::vector<Row>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Row& row : rows) array.push_back(json_of(row));
  return array.dump(1) + "\n";
}

std::string params_json(const Plan& plan) {
  return shingle::to_json(plan.params, -1);
}

}  // namespace shingle::cli
