// The output of `run`, `plan`, `simulate` and `tune`: one row per operator and mechanism.
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

/// What a row is of: an operator, or the workload of a plan's file.
struct NamedWork {
  std::string name{};  ///< of the operator in its layer, else empty
  Work work{};

  NamedWork() = default;
  NamedWork(const NamedProblem& named) : name(named.name), work(named.problem) {}
  explicit NamedWork(Work of) : work(std::move(of)) {}

  /// Throws std::bad_variant_access if the row is of a workload.
  const Problem& problem() const { return std::get<Problem>(work); }
  Problem& problem() { return std::get<Problem>(work); }
};
/// As describe(NamedProblem).
std::string describe(const NamedWork& named);

/// The operator and the sizes in the cells and the JSON of a row. Those of a workload are the largest.
struct RowHead {
  std::string_view op;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t inner = 0;  ///< 0: there are no two products
  bool multiplies = true;
  const Attention* attention = nullptr;  ///< null: there is none
};
RowHead head_of(const Work& work);

struct Row {
  NamedWork named;
  std::string backend;                ///< that ran it, or "simulator"
  std::string machine{};              ///< machine of the predicted times; empty if it ran
  std::string mechanism;              ///< requested, or chosen
  std::string params{};               ///< of the plan, as JSON; empty without a plan
  std::optional<Measurement> time{};  ///< empty if it did not run
  std::optional<Metrics> predicted{};
  Check check{};
  std::string reason{};            ///< why it did not run or did not pass
  std::optional<Chosen> choice{};  ///< why `auto` chose the mechanism
  std::string note{};              ///< as in Candidate
  /// With a capacity: choices of all ranks that find no slot, as the oracle counts them. Empty: there is
  /// none, or the plan did not run.
  std::optional<std::int64_t> dropped{};
  bool simulated = false;  ///< predicted instead of run, if it has a plan

  bool ran() const { return time.has_value(); }
};

/// Predicted time of a candidate on a machine, or the reason why it has no plan.
Row predicted_row(const NamedWork& named, const Candidate& candidate, const Machine& machine,
                  const SimOptions& options = {});
/// True if at least one row has a plan.
bool any_predicted(const std::vector<Row>& rows);

/// The cells of a table of rows, the head first; for measured and for predicted rows.
std::vector<Line> lines_of(const std::vector<Row>& rows);
std::vector<Line> predicted_lines(const std::vector<Row>& rows);
/// True if a fraction of the row is above 1, which no plan can reach.
bool noisy(const Row& row);
inline constexpr const char* measured_noise =
    "* above 1 is noise of the measurement: there is no more to hide";
/// Notes below a table, one per line: the meaning of stars, reasons for failures, and why a mechanism was
/// chosen.
std::vector<std::string> reasons(const std::vector<Row>& rows);

/// A table with one line per row and the notes below it.
std::string to_table(const std::vector<Row>& rows);
/// One line of text for each column that the head does not explain.
std::string legend(const std::vector<Row>& rows);
/// As to_table(), for rows predicted for a machine.
std::string predicted_table(const Machine& machine, const std::vector<Row>& rows);

/// As predicted_table(), with params in place of figures of the machine. Below the operators of a layer it
/// adds their total. It leaves out reasons that the times show.
std::string planned_table(const Machine& machine, const std::vector<Row>& rows);

/// A JSON array of objects, with the same keys for measured and predicted rows. Missing values are null.
std::string to_json(const std::vector<Row>& rows);
/// As to_json(), with the simulator's further results.
std::string simulated_json(const std::vector<Row>& rows);

/// The params of a plan, as JSON.
std::string params_json(const Plan& plan);
/// These as flags of `run`: "groups=1,2,4 one-shot tile=128x256". Empty if all are the planner's.
std::string params_text(const std::string& json);

}  // namespace shingle::cli
