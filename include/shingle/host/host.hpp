// The host backend: ranks as threads of this process, or one rank a process over MPI. Both run the same
// plans.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "shingle/backend/backend.hpp"
#include "shingle/base/units.hpp"

namespace shingle {

/// A lane of a rank is about to execute a step.
struct StepEvent {
  int rank = 0;
  int lane = 0;
  int step = 0;
  int epoch = 0;  ///< of the executable, counted over all its runs
  const std::atomic<bool>&
      stopped;  ///< becomes true once any rank has failed; a hook that blocks returns then
};

struct HostOptions {
  Link link{};  ///< of each rank; collectives and copies between ranks take at least as long as it would
  EnginePhases engine{};  ///< of every copy engine; its transfers really copy, and take at least this long
  int workers_per_rank =
      0;  ///< threads that compute tiles; 0: the cores of this machine shared among its ranks
  double timeout_us = 30e6;  ///< over MPI: deadline of waits outside a run, for processes to come to MPI's
                             ///< start, World::barrier and World::all_max
  /// Called in the lane's thread before each step, for fault tests: it may delay, throw, or block until
  /// `stopped`.
  std::function<void(const StepEvent&)> on_step{};
};

/// A world of `ranks` threads in this process. Throws InvalidArgument where `ranks` is outside [1,
/// max_world].
std::unique_ptr<World> make_thread_world(int ranks, const HostOptions& options = {});

/// The world of MPI_COMM_WORLD, a rank a process; initialises MPI where the caller has not. Collective. Ranks
/// cannot reach each other's memory: plans that need it are refused at compile().
///
/// When a run fails, run() throws as on threads, and the other processes are told and throw too. MPI cannot
/// be finalised with a rank missing: a process with a broken world, when it exits, ends all processes of its
/// job by MPI_Abort, with exit code 1. It should exit soon. If a rank is missing at MPI's start, or is
/// stopped while others leave, the process says so and exits with 1: those calls cannot be given up. While a
/// run is going on, a first SIGTERM is held off and makes it fail (mpirun sends it to the survivors of a
/// process that died). Throws Unsupported without MPI in this build or without MPI_THREAD_SERIALIZED,
/// MpiError where MPI fails.
std::unique_ptr<World> make_mpi_world(const HostOptions& options = {});

/// Whether this process was started by an MPI launcher (mpirun), so that make_mpi_world joins several.
bool launched_by_mpi();

/// This machine as planners see it: `ranks` ranks share its cores.
Machine host_machine(int ranks, const Link& link = {}, const EnginePhases& engine = {});

/// What `shingle info` shows of the host.
struct HostInfo {
  std::string cpu;                   ///< the processor's name
  int cores = 1;                     ///< that this process may use
  std::string onednn;                ///< version, and the instruction set that it uses
  std::vector<DType> native_dtypes;  ///< multiplied without widening to fp32
  std::string mpi;                   ///< library version; empty without MPI
};
HostInfo host_info();
/// The same on one line a fact.
std::string describe(const HostInfo& info);

}  // namespace shingle
