// Reads back rows that `run` and `simulate` printed to a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shingle::cli {

struct ResultRow {
  std::string op;
  std::int64_t m = 0, n = 0, k = 0, inner = 0;
  int world = 0;
  std::string dtype;
  std::string backend;  ///< or the machine of the predicted times
  std::string mechanism;
  std::string params;  ///< as JSON; empty without a plan
  bool predicted = false;
  std::optional<double> us;       ///< of the plan; empty if it did not run
  std::optional<double> speedup;  ///< over the sequential plan
  std::string reason;             ///< why it did not run

  /// Returns, for example, "1024×2048×512"; for an mlp followed by the inner size.
  std::string size() const;
};

/// Reads an array of rows, or a record of rows as `bench` writes it. Throws IoError or InvalidArgument with a
/// line that names the file and the error.
std::vector<ResultRow> read_results(const std::string& path);

}  // namespace shingle::cli
