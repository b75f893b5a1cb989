#include "own_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/file.hpp"
#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"
#include "tune/cache.hpp"

namespace shingle {
namespace {

/// The machine as far as the backend knows it without measuring.
Machine bare_machine(int ranks, WorldOptions here) {
  here.link = {}, here.engine = {};
  return machine_of(ranks, here);
}

Machine with_collective_workers(Machine profile, const Machine& own) {
  if (profile.collective_workers == 0) profile.collective_workers = own.collective_workers;
  return profile;
}

std::string path_of(const Machine& bare, int ranks, const WorldOptions& here) {
  return fmt::format("{}/{}-{}x{}-{}.json", default_cache_directory(), backend_name(here), ranks,
                     bare.workers, fingerprint(bare));
}

}  // namespace

std::string own_profile_path(int ranks, const WorldOptions& here) {
  return path_of(bare_machine(ranks, here), ranks, here);
}

std::optional<OwnProfile> own_profile(int ranks, const WorldOptions& here) {
  const Machine bare = bare_machine(ranks, here);
  std::string path;
  try {
    path = path_of(bare, ranks, here);
    std::error_code unknown;
    if (!std::filesystem::is_regular_file(path, unknown)) return std::nullopt;
    Machine machine = read_machine(path);
    if (machine.workers == bare.workers) return OwnProfile{as_here(std::move(machine), here), path};
    fmt::print(stderr,
               "shingle: {} (ignored): it has {} workers, this machine {}; `shingle profile --keep` measures "
               "a new one\n",
               path, machine.workers, bare.workers);
  } catch (const IoError& error) {
    if (!path.empty()) fmt::print(stderr, "shingle: {} (ignored)\n", error.what());
  } catch (const InvalidArgument& error) {
    fmt::print(stderr, "shingle: {} (ignored)\n", error.what());
  }
  return std::nullopt;
}

void keep_own_profile(const Machine& measured, const std::string& path) {
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(folder, failure);
  if (failure) throw IoError(fmt::format("{}: {}", folder.string(), failure.message()));
  write_file_atomically(path, to_json(measured));
}

Machine machine_for(const World& world, const std::optional<Machine>& profile) {
  if (!profile) return world.machine();
  return with_collective_workers(*profile, world.machine());
}

Machine as_here(Machine profile, const WorldOptions& here) {
  profile = with_collective_workers(std::move(profile), bare_machine(1, here));
  if (const std::vector<TileShape> served = served_tiles(here); !served.empty())
    std::erase_if(profile.tiles, [&](const TileRate& tile) {
      return std::ranges::find(served, TileShape{tile.rows, tile.cols}) == served.end();
    });
  if (here.link.paced()) profile.link = here.link;
  if (here.engine.paced()) profile.engine = here.engine;
  return profile;
}

}  // namespace shingle
