// What `run` prints: a row an operator and mechanism.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shingle/api/measure.hpp"
#include "shingle/api/oracle.hpp"
#include "shingle/problems.hpp"

namespace shingle::cli {

struct Row {
  NamedProblem named;
  std::string backend;
  std::string mechanism;            ///< that was asked for, or that served
  std::string params;               ///< as JSON, of the plan; empty where there is none
  std::optional<Measurement> time;  ///< empty where it did not run
  Check check;
  std::string reason;  ///< why it did not run or did not pass

  bool ran() const { return time.has_value(); }
};

/// A table with a line a row and the reasons below it.
std::string to_table(const std::vector<Row>& rows);

/// An array of objects; what a row does not have is null.
std::string to_json(const std::vector<Row>& rows);

/// The params of a plan, as JSON.
std::string params_json(const Plan& plan);

}  // namespace shingle::cli
