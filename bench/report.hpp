// What all benchmarks share: medians, and a JSON record that says where and from which commit its figures
// come.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/command_line.hpp"
#include "base/file.hpp"
#include "shingle/common/surroundings.hpp"
#include "shingle/version.hpp"

namespace shingle::bench {

/// Times of one candidate, in microseconds.
struct Samples {
  std::vector<double> us;

  double at(double fraction) const {
    std::vector<double> sorted = us;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(fraction * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
  double median() const { return at(0.5); }
  /// Interquartile range over the median.
  double spread() const { return (at(0.75) - at(0.25)) / median(); }

  nlohmann::json json() const { return {{"median_us", median()}, {"spread", spread()}, {"samples_us", us}}; }
};

/// A record with machine, commit and command, to which a benchmark adds its rows.
inline nlohmann::json record(int argc, char** argv) {
  return {{"command", command_line(argc, argv)},
          {"commit", commit()},
          {"version", SHINGLE_VERSION},
          {"machine", cli::surroundings_json()},
          {"rows", nlohmann::json::array()}};
}

/// Writes the record where the user asked for it ("": nowhere), as far as it goes.
inline void save(const nlohmann::json& record, const std::string& path) {
  if (!path.empty()) write_file_atomically(path, record.dump(1) + "\n");
}

/// The same at the end, and says so.
inline void write(const nlohmann::json& record, const std::string& path) {
  if (path.empty()) return;
  save(record, path);
  std::fputs(fmt::format("written: {}\n", path).c_str(), stdout);
}

}  // namespace shingle::bench
