// Rows as `run` and `simulate` printed them, read back from a file.
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
  std::string backend;  ///< or the machine that times are predicted for
  std::string mechanism;
  std::string params;  ///< as JSON; empty where it had no plan
  bool predicted = false;
  std::optional<double> us;       ///< of the plan; empty where it did not run
  std::optional<double> speedup;  ///< over the sequential plan
  std::string reason;             ///< why it did not run

  /// "1024×2048×512", or with the inner size of an mlp behind it.
  std::string size() const;
};

/// An array of rows, or a record of them as `bench` writes it. Throws IoError, InvalidArgument: a line that
/// names the file and what is wrong in it.
std::vector<ResultRow> read_results(const std::string& path);

}  // namespace shingle::cli
