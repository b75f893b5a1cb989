// One job on a world: run, checked and timed.
#pragma once

#include "shingle/api/inputs.hpp"
#include "shingle/api/trace.hpp"
#include "shingle/console.hpp"
#include "shingle/jobs.hpp"
#include "shingle/matrices.hpp"
#include "shingle/rows.hpp"

namespace shingle::cli {

struct ExecuteOptions {
  PlanFlags how;
  double timeout_us = 30e6;
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

/// Time that one process may take longer than another to check its outputs, at most: all others then wait for
/// it.
double slowest_check_us(const Problem& problem);

/// Memory that execute() takes in this process, at most.
double execute_bytes(const Job& job, const Machine& machine, const Launch& launch);

}  // namespace shingle::cli
