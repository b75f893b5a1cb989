// One job on a world: run, checked and timed.
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
  std::string backend;     ///< as it is called in the rows
};

struct Executed {
  std::vector<Row> rows;  ///< one a candidate
  std::vector<Timeline> baselines, overlapped;
};

/// Runs all candidates of a job beside the baseline. `own`: whose result to save, where it passes.
/// Collective.
Executed execute(World& world, const Job& job, const Inputs& inputs, const UserMatrices* own,
                 const ExecuteOptions& options, Progress& progress);

/// A run from poisoned outputs, and what `check` says of it, on all processes alike. Collective.
Check checked_run(World& world, Operator& op, Workspace& memory, const std::function<Check()>& check);
/// Of one that did not pass, in one line.
std::string wrong_result(const Check& check);

/// Deadline of the waits of a run: what the user said, else the default and what a GEMM and its transfer take
/// on a slow core. Nobody should give up on a healthy rank.
double run_timeout_us(const Problem& problem, const WorldFlags& where);

/// Memory that execute() takes in this process, at most.
double execute_bytes(const Job& job, const Machine& machine, const Launch& launch);

}  // namespace shingle::cli
