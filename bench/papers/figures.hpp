// What the programs of this folder print, record and check: a row for each figure of a paper.
//
// A row holds the paper's figure, ours, how ours came about, and a verdict. Figures that a profile was fitted
// to are marked and prove nothing. A range must hold ours as the paper states it, and a single figure is held
// to 10%. What does not hold is recorded as such.
//
// bench/results/papers has the record of each program, from which scripts/tables.py writes docs/papers.md.
// With --check a program fails if a row differs from its record, so that neither can go stale.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "../records.hpp"
#include "../report.hpp"

namespace shingle::papers {

/// Smallest and largest of some values.
struct Band {
  double least = 1e300, most = -1e300;

  void take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  void take(const Band& other) { take(other.least), take(other.most); }
};

inline std::string number(double value, const char* unit = "") {
  return fmt::format("{:.4g}{}", std::abs(value) < 1e-9 ? 0 : value, unit);
}
inline std::string text(const Band& band, const char* unit) {
  if (band.least == band.most) return number(band.least, unit);
  return fmt::format("{} to {}", number(band.least, unit), number(band.most, unit));
}

class Figures {
 public:
  static constexpr double tolerance = 0.1;  ///< of a single figure

  /// Adds --json and --check to a program's command line.
  Figures(const char* paper, int argc, char** argv) : record_(bench::record(argc, argv)) {
    CLI::App app(paper);
    app.add_option("--json", json_, "file for the record");
    app.add_option("--check", check_, "record that the figures must equal")->check(CLI::ExistingFile);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      std::exit(app.exit(error));
    }
    fmt::print("{}\n", paper);
  }

  /// Where the paper has the figures of the next rows, and how ours come about.
  void at(std::string place, std::string how) {
    place_ = std::move(place);
    how_ = std::move(how);
    fmt::print("\n{} ({})\n", place_, how_);
  }

  /// A figure that the profile or the model was fitted to.
  void fitted(const std::string& what, const std::string& paper, const std::string& ours) {
    row(what, paper, ours, "fitted");
  }
  /// The same, where the fit may miss it.
  void fitted(const std::string& what, double paper, double ours, const char* unit = "") {
    row(what, number(paper, unit), number(ours, unit), is_near(paper, ours) ? "fitted" : "does not hold");
  }
  /// A single figure.
  void near(const std::string& what, double paper, double ours, const char* unit = "") {
    holds(what, number(paper, unit), number(ours, unit), is_near(paper, ours));
  }
  /// A range that must contain ours.
  void within(const std::string& what, const Band& paper, const Band& ours, const char* unit = "") {
    holds(what, text(paper, unit), text(ours, unit), ours.least >= paper.least && ours.most <= paper.most);
  }
  /// Any other claim.
  void holds(const std::string& what, const std::string& paper, const std::string& ours, bool does) {
    row(what, paper, ours, does ? "holds" : "does not hold");
  }
  void holds(const std::string& what, bool does) { holds(what, "yes", does ? "yes" : "no", does); }
  /// A figure that Shingle has no counterpart of, and why.
  void absent(std::string place, const std::string& what, const std::string& paper, const std::string& why) {
    place_ = std::move(place);
    how_ = why;
    row(what, paper, "-", "not reproduced");
  }

  /// Drawings and lists without figures.
  void diagrams(std::string place, const std::string& what) {
    place_ = std::move(place);
    how_ = "nothing to compare";
    row(what, "-", "-", "no figure");
  }

  /// Writes and checks the record. Returns the exit code.
  int finish() {
    bench::write(record_, json_);
    if (check_.empty()) return 0;
    const std::vector<bench::RecordRow> known = bench::read_record(check_);
    const nlohmann::json& rows = record_["rows"];
    int stale = 0;
    for (std::size_t i = 0; i < std::max(rows.size(), known.size()); ++i)
      stale += i >= rows.size() || i >= known.size() || !equal(rows[i], known[i]);
    if (stale > 0) fmt::print("\n{} rows differ from {}; record them again\n", stale, check_);
    return stale > 0 ? 1 : 0;
  }

 private:
  static bool is_near(double paper, double ours) { return std::abs(ours / paper - 1) <= tolerance; }

  void row(const std::string& what, const std::string& paper, const std::string& ours,
           const std::string& verdict) {
    fmt::print("  {:<62} {:>18} {:>22}  {}\n", what, paper, ours, verdict);
    record_["rows"].push_back({{"place", place_},
                               {"what", what},
                               {"paper", paper},
                               {"ours", ours},
                               {"how", how_},
                               {"verdict", verdict}});
  }

  static bool equal(const nlohmann::json& row, const bench::RecordRow& known) {
    for (const auto& [key, value] : row.items())
      if (value.get<std::string>() != known.text(key)) {
        fmt::print("{}: {} is '{}', recorded is '{}'\n", row["what"].get<std::string>(), key,
                   value.get<std::string>(), known.text(key));
        return false;
      }
    return true;
  }

  nlohmann::json record_;
  std::string json_, check_, place_, how_;
};

}  // namespace shingle::papers
