// shingle profile: measures this machine.
#include "shingle/tune/profile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "api/own_profile.hpp"
#include "base/file.hpp"
#include "cotune/nccl_environment.hpp"
#include "shingle/commands.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle::cli {
namespace {

/// Sets NCCL's buffer sizes, which bound chunks. NCCL reads them from the environment once a process. LL is
/// left out, because it serves messages smaller than the measured ones.
void tell_nccl(std::int64_t chunk_bytes) {
  TunedTable table;
  for (const Protocol protocol : {Protocol::simple, Protocol::ll128})
    table.entries.push_back({.key = {}, .config = {.chunk_bytes = chunk_bytes, .protocol = protocol}});
  for (const NcclVariable& variable : nccl_environment(table).variables)
    setenv(variable.name.c_str(), variable.value.c_str(), 1);
}

/// Refuses to keep a profile that holds another machine's figures, or only some figures. An emulated link or
/// engine is added after keeping.
void require_own(const ProfileFlags& flags) {
  if (!flags.keep) return;
  if (!flags.base.empty() || flags.contention || flags.chunk_bytes > 0)
    throw InvalidArgument("--keep needs a whole profile: leave out --base, --contention and --chunk");
}

}  // namespace

int profile(const ProfileFlags& flags, const ProcessLaunch& launch) {
  require_writable({{"--out", flags.out}});
  require_own(flags);
  ProfileOptions how{.dtype = flags.dtype,
                     .repeat = flags.repeat,
                     .contention_only = flags.contention,
                     .chunk_bytes = flags.chunk_bytes,
                     .budget_us = flags.budget_s * 1e6,
                     .most_spread = flags.most_spread};
  if (!flags.base.empty()) how.base = machine_from_spec(flags.base);
  how.progress = [&](const std::string& what) {
    if (launch.speaks()) fmt::print(stderr, "{}\n", what);
  };
  how.expects = [&](double seconds) {
    if (launch.speaks())
      fmt::print(stderr, "takes about {:.0f} s{}\n", std::max(seconds, 1.0),
                 flags.budget_s > 0
                     ? fmt::format("; nothing new is begun after {:.0f} s (--budget)", flags.budget_s)
                     : "");
  };
  WorldOptions options = flags.where.options(launch);
  std::string kept;
  if (flags.keep && launch.speaks()) {
    const std::optional<std::string> folder = folder_to_keep("");
    if (!folder) throw Error("--keep: there is no folder to keep the profile in; set XDG_CACHE_HOME to one");
    kept = own_profile_path(flags.where.ranks(launch), options);
  }
  how.timeout_us = options.timeout_us;
  options.link = {};  // the requested link is added to the figures, not measured
  options.engine = {};
  if (flags.chunk_bytes > 0) tell_nccl(flags.chunk_bytes);
  const auto world = make_world(flags.where.ranks(launch), options);
  Profiled measured = profile_steadily(*world, how);
  if (!measured.unsteady.empty())
    throw Error(
        fmt::format("no profile is written: measurements spread too much: {} (limit {:.0f}%); stop other "
                    "programs, or raise --most-spread",
                    describe(measured.unsteady), 100 * flags.most_spread));
  if (!kept.empty() && !measured.left.empty())
    throw Error(
        fmt::format("no profile is kept: the budget of {:g} s ended before {}; give a larger --budget",
                    flags.budget_s, fmt::join(measured.left, ", ")));
  Machine machine = std::move(measured.machine);
  if (!flags.name.empty()) machine.name = flags.name;
  if (!kept.empty()) {
    keep_own_profile(machine, kept);
    fmt::print(stderr, "kept in {}\n", kept);
  }
  const auto asked_for = [&](const auto& given, auto& figure, const char* key) {
    if (!given.paced()) return;
    figure = given;
    std::erase_if(machine.sources, [&](const Source& source) { return source.of == key; });
    machine.sources.push_back({key, Origin::assumed, "emulated, as it was asked for"});
  };
  asked_for(flags.where.link, machine.link, "link");
  asked_for(flags.where.engine, machine.engine, "engine");
  if (!launch.speaks()) return 0;
  if (flags.out.empty()) {
    fmt::print("{}", to_json(machine));
  } else {
    write_file_atomically(flags.out, to_json(machine));
  }
  return 0;
}

}  // namespace shingle::cli
