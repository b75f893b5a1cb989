// The machine that plans are for, and the figures by which their params are searched.
#pragma once

#include <memory>
#include <optional>

#include "shingle/common/flags.hpp"
#include "tune/cache.hpp"

namespace shingle::cli {

/// Max. spread of a profile's measurements, above which it is refused (ProfileOptions::most_spread).
inline constexpr double default_spread = 0.3;

struct Target {
  Machine machine;
  /// Kept profile of this machine, by which params are searched. Empty: params are searched by `machine`.
  std::optional<Machine> profile{};
  std::string figures{};  ///< source of those figures, for output; empty: no figures
  /// True if a profile that `shingle profile --keep` measures would be used as `profile`.
  bool keeps_profile = false;
  /// Results of `tune` for this machine, read-only. Null if it has no cache folder.
  std::shared_ptr<TuneCache> tuned{};

  const Machine& searched_by() const { return profile ? *profile : machine; }
};

/// The machine to plan for. `spec` is read by machine_from_spec(); empty: this machine, with its kept profile
/// if any. Measures nothing. Throws InvalidArgument if the machine has too few ranks.
Target target_to_plan_for(const std::string& spec, int ranks, const WorldOptions& here,
                          const ProcessLaunch& launch);

/// The machine whose times to predict. `profile` names it, and links and engines in `here` replace its own.
/// Empty: this machine, measured once and kept beside the tuning results. Throws InvalidArgument if the
/// machine has too few ranks, or under mpirun without a profile.
Target target_to_tune_for(const std::string& profile, int ranks, const WorldOptions& here,
                          const ProcessLaunch& launch);

/// The machine of runs here. `predicts`: as target_to_tune_for(), else this machine. A profile of a machine
/// whose ranks share memory may be given for one whose ranks do not: then plans keep to what runs here.
Target target_to_run_on(const std::string& profile, bool predicts, int ranks, const WorldOptions& here,
                        const ProcessLaunch& launch);

/// Folder for results. If nothing can be kept, prints the folder and the reason to stderr before any
/// measurement, and returns nothing. `directory` empty: the default folder.
std::optional<std::string> folder_to_keep(const std::string& directory);

}  // namespace shingle::cli
