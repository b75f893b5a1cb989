// The one place that knows all planners and all backends. Everyone else asks here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/backend/backend.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle {

struct PlannerEntry {
  Mechanism mechanism;
  Planner plan;  ///< searches nothing
  std::string_view summary;
  /// The params with what a closed form finds to be fastest in place of what is open; empty: the planner's
  /// own are taken. Null: it has no such search.
  std::optional<Params> (*search)(const Problem&, const Machine&, const Params&) = nullptr;
};

/// All planners; the baseline first, then by how finely they overlap.
std::span<const PlannerEntry> planners();

const PlannerEntry& find_planner(Mechanism mechanism);

/// The plan of one mechanism, or why there is none. Where the machine has figures, params that are open are
/// searched (PlannerEntry::search). Throws InvalidArgument where the problem itself is wrong, or the
/// mechanism does not take a param that is given (planner/common/param_table.hpp).
Result<Plan> make_plan(const Problem& problem, const Machine& machine, Mechanism mechanism,
                       const Params& params = {});

/// The finest mechanism that serves the problem with these params: the last of planners() that takes them all
/// and has a plan. The reason, where none has, is that of the baseline. Throws InvalidArgument where no
/// mechanism takes all of these params.
Result<Plan> make_best_plan(const Problem& problem, const Machine& machine, const Params& params = {});

struct WorldOptions {
  std::string_view
      backend{};  ///< a name of backends(); empty: "mpi" in a process that mpirun started, else "host"
  Link link{};    ///< of each rank: transfers take at least as long as this link would need; none by default
  EnginePhases engine{};  ///< of every copy engine; without phases, engines are as fast as memory
  int workers_per_rank =
      0;  ///< threads that compute tiles; 0: the cores of this machine shared among its ranks
  double timeout_us = 30e6;  ///< deadline of waits outside a run
};

struct BackendEntry {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<World> (*make)(int ranks, const WorldOptions& options);
  Machine (*machine)(int ranks, const WorldOptions& options);
  int (*ranks)();  ///< of a world, if nobody says how many
  std::vector<TileShape> (*tiles)(const WorldOptions& options) = nullptr;  ///< as served_tiles()
  std::string (*refuses)(const Plan& plan) = nullptr;                      ///< as refusals()
};

std::span<const BackendEntry> backends();

/// The entry of a name. Throws InvalidArgument on an unknown one, Unsupported on one that this build lacks.
const BackendEntry& find_backend(std::string_view name);

/// The backend that these options mean: the one that is named, else the one that the launcher implies.
std::string_view backend_name(const WorldOptions& options);

/// A world of `ranks` ranks: threads of this process ("host"), GPUs ("cuda", see make_cuda_world), or this
/// process as one rank of those that mpirun started ("mpi", collective; `ranks` 0 takes as many as there
/// are). Throws InvalidArgument where the number of ranks does not fit, Unsupported where this build or this
/// machine lacks the backend.
std::unique_ptr<World> make_world(int ranks, const WorldOptions& options = {});

/// That world's machine, without making the world: enough to plan.
Machine machine_of(int ranks, const WorldOptions& options = {});

/// Why this backend, here, cannot run a plan (empty: it can), for who is to choose one; null: it runs all.
std::function<std::string(const Plan&)> refusals(const WorldOptions& options = {});

/// The tiles that this backend's GEMMs with hooks have, as in Capabilities; empty: any.
std::vector<TileShape> served_tiles(const WorldOptions& options = {});

}  // namespace shingle
