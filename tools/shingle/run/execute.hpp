// Runs one job on a world, with checks and timing.
#pragma once

#include <functional>

#include "check/inputs.hpp"
#include "report/trace.hpp"
#include "shingle/common/console.hpp"
#include "shingle/common/jobs.hpp"
#include "shingle/common/rows.hpp"
#include "shingle/run/matrices.hpp"

namespace shingle::cli {

struct ExecuteOptions {
  PlanFlags how;
  WorldFlags where;
  int repeat = 0;
  bool timelines = false;  ///< also trace a run of the baseline and of each mechanism
  std::string backend;     ///< its name in the rows
};

struct Executed {
  std::vector<Row> rows;  ///< one per candidate
  std::vector<Timeline> baselines, overlapped;
};

/// Runs all candidates of a job beside the baseline. `own`: matrices whose result to save if it passes.
/// Collective.
Executed execute(World& world, const Job& job, const Inputs& inputs, const UserMatrices* own,
                 const ExecuteOptions& options, Progress& progress);

/// Runs from poisoned outputs and returns the result of `check`, the same on all processes. Collective.
Check checked_run(World& world, Operator& op, Workspace& memory, const std::function<Check()>& check);
/// One line that describes a failed check.
std::string wrong_result(const Check& check);

/// Deadline of a run's waits: the user's value, or the default plus the time of a GEMM and its transfer on a
/// slow core. No wait may give up on a healthy rank.
double run_timeout_us(const Problem& problem, const WorldFlags& where);

/// Max. memory that execute() takes in this process.
double execute_bytes(const Job& job, const Machine& machine, const ProcessLaunch& launch);

}  // namespace shingle::cli
