// shingle profile: measures the machine that it runs on.
#include "shingle/tune/profile.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "shingle/base/file.hpp"
#include "shingle/commands.hpp"
#include "shingle/cotune/nccl_environment.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle::cli {
namespace {

/// NCCL reads the sizes of its buffers, which bound chunks, from the environment, once a process. LL is for
/// messages that are smaller than what is measured.
void tell_nccl(std::int64_t chunk_bytes) {
  TunedTable table;
  for (const Protocol protocol : {Protocol::simple, Protocol::ll128})
    table.entries.push_back({.key = {}, .config = {.chunk_bytes = chunk_bytes, .protocol = protocol}});
  for (const NcclVariable& variable : nccl_environment(table).variables)
    setenv(variable.name.c_str(), variable.value.c_str(), 1);
}

}  // namespace

int profile(const ProfileFlags& flags, const Launch& launch) {
  require_writable("--out", flags.out);
  ProfileOptions how{.dtype = flags.dtype,
                     .repeat = flags.repeat,
                     .contention_only = flags.contention,
                     .chunk_bytes = flags.chunk_bytes,
                     .budget_us = flags.budget_s * 1e6};
  if (!flags.base.empty()) how.base = machine_from_spec(flags.base);
  how.progress = [&](const std::string& what) {
    if (launch.speaks()) fmt::print(stderr, "{}\n", what);
  };
  WorldOptions options = flags.where.options(launch);
  how.timeout_us = options.timeout_us;
  options.link = {};  // what is asked for is added to the figures, not measured
  options.engine = {};
  if (flags.chunk_bytes > 0) tell_nccl(flags.chunk_bytes);
  const auto world = make_world(flags.where.ranks(launch), options);
  Machine machine = shingle::profile(*world, how);
  if (!flags.name.empty()) machine.name = flags.name;
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
