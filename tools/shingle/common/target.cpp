#include "shingle/common/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "api/own_profile.hpp"
#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/tune/profile.hpp"

namespace shingle::cli {
namespace {

/// Name of a machine with figures to predict from, for output. Empty if it has no figures.
std::string figures_of(const Machine& machine) {
  return machine.tiles.empty() ? std::string() : machine.name;
}

Machine from_spec(const std::string& spec, int ranks) {
  Machine machine = machine_from_spec(spec);
  if (machine.ranks > 0 && ranks > machine.ranks)
    throw InvalidArgument(fmt::format("--world {}: {} has {} ranks", ranks, machine.name, machine.ranks));
  return machine;
}

/// True if a kept profile of this machine is used. Not with a launcher, because processes on several hosts
/// could differ.
bool keeps_profile(int ranks, const ProcessLaunch& launch) {
  return !launch.processes() && ranks <= max_world;
}

std::optional<OwnProfile> kept_profile(int ranks, const WorldOptions& here, const ProcessLaunch& launch) {
  return keeps_profile(ranks, launch) ? own_profile(ranks, here) : std::nullopt;
}

std::string figures_of(const OwnProfile& own) {
  return fmt::format("this machine's profile, {}", own.path);
}

std::shared_ptr<TuneCache> tuned_for(const Machine& machine) {
  try {
    return std::make_shared<TuneCache>(machine);
  } catch (const IoError&) {  // no folder: nothing was kept
    return nullptr;
  }
}

/// Measures this machine and keeps the profile if possible.
Machine measured_here(int ranks, const WorldOptions& here, std::string& figures) {
  const bool keep = folder_to_keep("").has_value();
  const std::string path = keep ? own_profile_path(ranks, here) : "";
  figures = keep ? fmt::format("this machine's profile, {}", path) : "this machine's profile, not kept";
  ProfileOptions how{.most_spread = default_spread};
  how.progress = [](const std::string& what) { fmt::print(stderr, "{}\n", what); };
  how.expects = [&](double seconds) {
    fmt::print(stderr, "measuring this machine{}, in about {:.0f} s{}\n", keep ? ", once" : "",
               std::max(seconds, 1.0), keep ? ": " + path : "");
  };
  WorldOptions bare = here;
  bare.link = {}, bare.engine = {};
  const auto world = make_world(ranks, bare);
  const Profiled measured = profile_steadily(*world, how);
  if (!measured.unsteady.empty())
    fmt::print(stderr,
               "shingle: measurements spread too much: {} (limit {:.0f}%); the profile is used all the same, "
               "`shingle profile --keep` measures again\n",
               describe(measured.unsteady), 100 * how.most_spread);
  if (keep) keep_own_profile(measured.machine, path);
  return measured.machine;
}

}  // namespace

std::optional<std::string> folder_to_keep(const std::string& directory) {
  static std::string said;  // avoids printing the same reason twice
  std::string reason;
  try {
    const std::string folder = directory.empty() ? default_cache_directory() : directory;
    reason = why_not_kept(folder);
    if (reason.empty()) return folder;
  } catch (const IoError& error) {
    reason = error.what();
  }
  if (said != reason) fmt::print(stderr, "shingle: {}; results are not kept\n", reason);
  said = reason;
  return std::nullopt;
}

Target target_to_plan_for(const std::string& spec, int ranks, const WorldOptions& here,
                          const ProcessLaunch& launch) {
  Target target;
  if (!spec.empty()) {
    target.machine = from_spec(spec, ranks);
    target.figures = figures_of(target.machine);
    return target;
  }
  target.machine = machine_of(ranks, here);
  target.figures = figures_of(target.machine);
  target.keeps_profile = keeps_profile(ranks, launch);
  if (auto own = kept_profile(ranks, here, launch)) {
    target.figures = figures_of(*own);
    target.profile = std::move(own->machine);
  }
  return target;
}

Target target_to_tune_for(const std::string& profile, int ranks, const WorldOptions& here,
                          const ProcessLaunch& launch) {
  Target target;
  if (!profile.empty()) {
    target.machine = from_spec(profile, ranks);
    target.figures = target.machine.name;
  } else if (auto own = kept_profile(ranks, here, launch)) {
    target.machine = std::move(own->machine);
    target.figures = figures_of(*own);
  } else if (here.backend == "cuda") {
    target.machine = machine_of(ranks, here);
    target.figures = figures_of(target.machine);
  } else {
    if (launch.processes())
      throw InvalidArgument(
          "with a launcher, --machine is needed: give a profile that `shingle profile --out FILE` wrote");
    if (ranks > max_world)
      throw InvalidArgument(
          fmt::format("--world {}: this machine runs at most {} ranks; give --machine", ranks, max_world));
    target.machine = measured_here(ranks, here, target.figures);
  }
  target.machine = as_here(std::move(target.machine), here);
  target.tuned = tuned_for(target.machine);
  return target;
}

Target target_to_run_on(const std::string& profile, bool predicts, int ranks, const WorldOptions& here,
                        const ProcessLaunch& launch) {
  Target target = predicts ? target_to_tune_for(profile, ranks, here, launch)
                           : target_to_plan_for("", ranks, here, launch);
  if (!target.machine.peer_memory || machine_of(ranks, here).peer_memory) return target;
  target.machine.peer_memory = false;
  if (target.tuned) target.tuned = tuned_for(target.machine);
  return target;
}

}  // namespace shingle::cli
