// Registry of all planners and all backends. Other code finds them only here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/backend/backend.hpp"
#include "shingle/backend/bootstrap.hpp"
#include "shingle/planner/planner.hpp"

struct ncclComm;  // ncclComm_t is a pointer to it

namespace shingle {

struct PlannerEntry {
  Mechanism mechanism;
  std::string_view summary;
};

/// All planners: the baseline first, then ordered from coarse to fine overlap.
std::span<const PlannerEntry> planners();

/// The plan of the mechanism that takes these params, or the reason why there is none. Open groups of
/// `signal` are searched if the machine has figures (FlashOverlap Alg. 1). Throws InvalidArgument if the
/// problem itself is wrong, or if a param is for another kind of problem.
Result<Plan> make_plan(const Problem& problem, const Machine& machine, const Params& params);
/// As above, of a workload.
Result<Plan> make_plan(const Workload& workload, const Machine& machine, const Params& params);

/// The plan of the finest mechanism that serves the problem with these params. It is the last of planners()
/// that takes all of them and has a plan. If none has a plan, the reason is that of the baseline. Throws
/// InvalidArgument if no mechanism takes all of these params.
Result<Plan> make_best_plan(const Problem& problem, const Machine& machine, const ParamList& params = {});

struct WorldOptions {
  /// A name of backends(). Empty: "mpi" in a process that mpirun started, else "host".
  std::string_view backend{};
  /// Link of each rank: transfers take at least as long as on this link. Unpaced by default.
  Link link{};
  EnginePhases engine{};  ///< of every copy engine; without phases, engines are as fast as memory
  /// Threads that compute tiles. 0: the cores of this machine, shared among its ranks.
  int workers_per_rank = 0;
  double timeout_us = 30e6;  ///< deadline of waits outside a run
  /// cuda: this process is one rank of a group, whose processes find each other through the host program.
  /// `ranks` is then 0, or the size of the group.
  std::optional<Bootstrap> bootstrap{};
  /// cuda: existing communicators of this process's ranks (make_cuda_world). `ranks` is then 0, or their
  /// size.
  std::span<ncclComm* const> communicators{};
};

struct BackendEntry {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<World> (*make)(int ranks, const WorldOptions& options);
  Machine (*machine)(int ranks, const WorldOptions& options);
  int (*ranks)();  ///< default number of ranks of a world
  std::vector<TileShape> (*tiles)(const WorldOptions& options) = nullptr;  ///< as served_tiles()
  std::string (*refuses)(const Plan& plan) = nullptr;                      ///< as refusals()
};

std::span<const BackendEntry> backends();

/// The backend with this name. Throws InvalidArgument on an unknown name, Unsupported on one that this build
/// lacks.
const BackendEntry& find_backend(std::string_view name);

/// Name of the backend that the options select: the named one, else the one that the launcher implies.
std::string_view backend_name(const WorldOptions& options);

/// A world of `ranks` ranks. "host": threads of this process. "cuda": GPUs, see make_cuda_world(). "mpi":
/// this process is one rank of those that mpirun started. It is collective, and `ranks` 0 takes as many ranks
/// as there are.
///
/// Throws InvalidArgument if the number of ranks does not fit. Throws Unsupported if this build or this
/// machine lacks the backend.
std::unique_ptr<World> make_world(int ranks, const WorldOptions& options = {});

/// The machine that make_world() would give its world, without making it: enough to plan.
Machine machine_of(int ranks, const WorldOptions& options = {});

/// Returns a function that gives the reason why the selected backend rejects a plan on this machine; an empty
/// string accepts it. Null if the backend accepts every plan.
std::function<std::string(const Plan&)> refusals(const WorldOptions& options = {});

/// The tiles that this backend's GEMMs with hooks support, as in Capabilities. Empty: any.
std::vector<TileShape> served_tiles(const WorldOptions& options = {});

}  // namespace shingle
