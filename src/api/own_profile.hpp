// The profile of this machine: measured once, stored beside the tuning cache.
#pragma once

#include <optional>
#include <string>

#include "shingle/api/registry.hpp"

namespace shingle {

/// File of the profile of a world of `ranks` ranks on this machine. The name depends on the backend, the
/// ranks, and the figures that the backend knows without measuring. Emulated links and engines do not matter.
/// Throws IoError if there is no folder for it (tune/cache.hpp).
std::string own_profile_path(int ranks, const WorldOptions& here);

struct OwnProfile {
  Machine machine;
  std::string path;
};

/// The stored profile with the link and engine emulated here. Empty if there is none. Also empty, after a
/// warning on stderr, if it cannot be read or belongs to another machine.
std::optional<OwnProfile> own_profile(int ranks, const WorldOptions& here);

/// Stores a profile that was measured here without emulated links and engines. Throws IoError.
void keep_own_profile(const Machine& measured, const std::string& path);

/// The machine to plan for on a world: the profile, or the world's own. If the profile does not say how many
/// workers a collective occupies, the world does: GPUs refuse plans that reserve none (starved_call()).
Machine machine_for(const World& world, const std::optional<Machine>& profile);

/// A profile adapted to this world: without tiles that the backend does not serve, with the workers of
/// collectives as machine_for() has them, and with the link and engine that are emulated.
Machine as_here(Machine profile, const WorldOptions& here);

}  // namespace shingle
