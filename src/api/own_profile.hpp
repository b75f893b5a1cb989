// The profile of the machine at hand: measured once, kept beside what was tuned.
#pragma once

#include <optional>
#include <string>

#include "shingle/api/registry.hpp"

namespace shingle {

/// The file that keeps the profile of a world of so many ranks on this machine: by backend, ranks and the
/// figures that the backend knows without measuring. Links and engines that are emulated have no part in it.
/// Throws IoError where there is no folder for it (tune/cache.hpp).
std::string own_profile_path(int ranks, const WorldOptions& here);

struct OwnProfile {
  Machine machine;
  std::string path;
};

/// That profile with the link and engine that are emulated here. Empty where none is kept; also where it
/// cannot be read or is of another machine, after a warning on stderr.
std::optional<OwnProfile> own_profile(int ranks, const WorldOptions& here);

/// Keeps a profile that was measured here without emulated links and engines. Throws IoError.
void keep_own_profile(const Machine& measured, const std::string& path);

/// A profile as this world has it: without tiles that the backend does not serve, and with the link and
/// engine that are emulated.
Machine as_here(Machine profile, const WorldOptions& here);

}  // namespace shingle
