// The host backend: ranks as threads of this process, or one rank in each process over MPI. Both run the same
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
  /// Becomes true once any rank has failed; a hook that blocks must then return.
  const std::atomic<bool>& stopped;
};

struct HostOptions {
  Link link{};  ///< of each rank; collectives and copies between ranks take at least as long as it would
  EnginePhases engine{};  ///< of every copy engine; its transfers really copy, and take at least this long
  /// Threads that compute tiles. 0: the cores of this machine, shared among its ranks.
  int workers_per_rank = 0;
  /// MPI only: deadline of waits outside a run, in MPI's start, World::barrier and World::all_max.
  double timeout_us = 30e6;
  /// For tests of counts that wrap: number of an executable's first epoch.
  std::uint32_t first_epoch = 0;
  /// Hook for fault tests, called in the lane's thread before each step. It may delay, throw, or block until
  /// `stopped`.
  std::function<void(const StepEvent&)> on_step{};
};

/// A world of `ranks` threads in this process. Throws InvalidArgument if `ranks` is outside [1, max_world].
std::unique_ptr<World> make_thread_world(int ranks, const HostOptions& options = {});

/// The world of MPI_COMM_WORLD, one rank in each process. Collective. Initialises MPI if the caller has not.
/// Ranks cannot access each other's memory; compile() refuses plans that need it.
///
/// When a run fails, run() throws as on threads, and the other processes are told and throw too. MPI cannot
/// be finalised with a rank missing. A process with a broken world should therefore exit soon; on exit it
/// ends all processes of its job by MPI_Abort, with exit code 1.
///
/// Two kinds of wait cannot be abandoned: MPI's start with a rank missing, and a stopped rank while others
/// leave. The process then prints this and exits with 1. During a run a first SIGTERM is held off and makes
/// the run fail. mpirun sends it to the survivors of a process that died.
///
/// Throws Unsupported if this build has no MPI, or MPI no MPI_THREAD_SERIALIZED. Throws MpiError if MPI
/// fails.
std::unique_ptr<World> make_mpi_world(const HostOptions& options = {});

/// True if an MPI launcher (mpirun) started this process, so that make_mpi_world() joins several processes.
bool launched_by_mpi();

/// This machine for planners; `ranks` ranks share its cores.
Machine host_machine(int ranks, const Link& link = {}, const EnginePhases& engine = {});

/// The host part of `shingle info`.
struct HostInfo {
  std::string cpu;                   ///< name of the processor
  int cores = 1;                     ///< cores that this process may use
  std::string onednn;                ///< version of oneDNN, and the instruction set that it uses
  std::vector<DType> native_dtypes;  ///< multiplied without widening to fp32
  std::string mpi;                   ///< library version; empty without MPI
};
HostInfo host_info();
/// One line for each fact.
std::string describe(const HostInfo& info);

}  // namespace shingle
