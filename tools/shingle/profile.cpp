// shingle profile: measures the machine that it runs on.
#include "shingle/tune/profile.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "shingle/base/file.hpp"
#include "shingle/commands.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle::cli {

int profile(const ProfileFlags& flags, const Launch& launch) {
  require_writable("--out", flags.out);
  WorldOptions options = flags.where.options(launch);
  options.link = {};  // what is asked for is added to the figures, not measured
  options.engine = {};
  const auto world = make_world(flags.where.ranks(launch), options);
  Machine machine = shingle::profile(
      *world, {.dtype = flags.dtype, .repeat = flags.repeat, .progress = [&](const std::string& what) {
                 if (launch.speaks()) fmt::print(stderr, "{}\n", what);
               }});
  machine.name = flags.name;
  machine.link = flags.where.link;
  machine.engine = flags.where.engine;
  const auto asked_for = [&](bool there, const char* key) {
    if (there) machine.sources.push_back({key, Origin::assumed, "emulated, as it was asked for"});
  };
  asked_for(machine.link.paced(), "link");
  asked_for(machine.engine.paced(), "engine");
  if (!launch.speaks()) return 0;
  if (flags.out.empty()) {
    fmt::print("{}", to_json(machine));
  } else {
    write_file_atomically(flags.out, to_json(machine));
  }
  return 0;
}

}  // namespace shingle::cli
