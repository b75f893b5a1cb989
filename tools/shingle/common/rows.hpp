// What `run`, `plan`, `simulate` and `tune` print: a row an operator and mechanism.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/measure.hpp"
#include "check/oracle.hpp"
#include "shingle/common/jobs.hpp"
#include "shingle/common/table.hpp"
#include "shingle/sim/metrics.hpp"

namespace shingle::cli {

struct Row {
  NamedProblem named;
  std::string backend;                ///< that ran it, or "simulator"
  std::string machine{};              ///< that times are predicted for; empty where it ran
  std::string mechanism;              ///< that was asked for, or that served
  std::string params{};               ///< as JSON, of the plan; empty where there is none
  std::optional<Measurement> time{};  ///< empty where it did not run
  std::optional<Metrics> predicted{};
  Check check{};
  std::string reason{};            ///< why it did not run or did not pass
  std::optional<Chosen> choice{};  ///< why it is this mechanism, where it was chosen
  std::string note{};              ///< as Candidate has it
  bool simulated = false;          ///< not run: it is predicted, where it has a plan

  bool ran() const { return time.has_value(); }
};

/// What a candidate is predicted to take on a machine, or why it has no plan.
Row predicted_row(const NamedProblem& named, const Candidate& candidate, const Machine& machine,
                  const SimOptions& options = {});
/// Whether at least one of them has a plan.
bool any_predicted(const std::vector<Row>& rows);

/// The cells of a table of rows, the head first; of measured and of predicted ones.
std::vector<Line> lines_of(const std::vector<Row>& rows);
std::vector<Line> predicted_lines(const std::vector<Row>& rows);
/// Whether a fraction of the row is above 1, which no plan can reach.
bool noisy(const Row& row);
inline constexpr const char* measured_noise =
    "* above 1 is noise of the measurement: there is no more to hide";
/// What stars mean, if there are any; why rows did not run or did not pass, or why their mechanism was
/// chosen; a line each.
std::vector<std::string> reasons(const std::vector<Row>& rows);

/// A table with a line a row and the reasons below it.
std::string to_table(const std::vector<Row>& rows);
/// A line of text for each column of that table which its head does not explain.
std::string legend(const std::vector<Row>& rows);
/// The same of rows that are predicted for a machine.
std::string predicted_table(const Machine& machine, const std::vector<Row>& rows);

/// The same with the params instead of what the machine makes of them, and below the operators of a layer
/// their total. Reasons are those that the times do not tell.
std::string planned_table(const Machine& machine, const std::vector<Row>& rows);

/// An array of objects, of the same keys whether rows are measured or predicted; what a row does not have is
/// null.
std::string to_json(const std::vector<Row>& rows);
/// The same with what else a simulation says.
std::string simulated_json(const std::vector<Row>& rows);

/// The params of a plan, as JSON.
std::string params_json(const Plan& plan);

}  // namespace shingle::cli
