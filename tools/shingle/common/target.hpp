// The machine that plans are for, and the figures by which their params are searched.
#pragma once

#include <memory>
#include <optional>

#include "shingle/common/flags.hpp"
#include "tune/cache.hpp"

namespace shingle::cli {

/// Spread of what a profile is measured from, above which it is refused (ProfileOptions::most_spread).
inline constexpr double default_spread = 0.3;

struct Target {
  Machine machine;
  /// Of the machine at hand, where it was measured: params are searched by it. Empty: by the machine itself.
  std::optional<Machine> profile{};
  std::string figures{};  ///< whose figures those are, as output says; empty: there are none
  /// What `tune` has found for this machine, to be read; null: there is no folder for it.
  std::shared_ptr<TuneCache> tuned{};

  const Machine& searched_by() const { return profile ? *profile : machine; }
};

/// The machine to plan for: as machine_from_spec() reads it, or where nothing is given this one; its profile
/// counts where it was kept, nothing is measured. Throws InvalidArgument where it has fewer ranks.
Target target_to_plan_for(const std::string& spec, int ranks, const WorldOptions& here, const Launch& launch);

/// The machine whose times are to be predicted: that of a profile, with the links and engines that are asked
/// for here in place of its own; or where none is given this one, measured once and kept beside what was
/// tuned. Throws InvalidArgument where it has fewer ranks, or under mpirun without a profile.
Target target_to_tune_for(const std::string& profile, int ranks, const WorldOptions& here,
                          const Launch& launch);

/// Where to keep what is found; says on stderr where and why that cannot be, before anything is measured.
/// `directory` empty: the default. Empty where nothing can be kept.
std::optional<std::string> folder_to_keep(const std::string& directory);

}  // namespace shingle::cli
