// Machine profiles: a machine as a JSON file, every figure with where it comes from
// (docs/reference/machines.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shingle/machine/machine.hpp"

namespace shingle {

inline constexpr std::string_view profile_format = "shingle-machine";
inline constexpr int profile_version = 1;

/// The machine of a profile's text. Throws InvalidArgument, one line that names the field: another format or
/// version, a missing or unknown key, a value out of range, samples that do not ascend, a figure without a
/// source.
Machine machine_from_json(std::string_view text);

/// The same text for the same machine, whatever it was read from.
std::string to_json(const Machine& machine);

/// Reads a file; adds its name to what is wrong with it. Throws IoError, InvalidArgument.
Machine read_machine(const std::string& path);

/// The names that machine_from_spec() knows, ascending: those of the profiles in the folder SHINGLE_MACHINES,
/// and of those that ship.
std::vector<std::string> machine_names();

/// So many nodes of a machine, each with `link` to all others, shared by its ranks; within a node nothing
/// changes. Throws InvalidArgument: a machine that does not say its ranks or already consists of nodes, more
/// than 2^20 ranks.
Machine machine_of_nodes(Machine node, int nodes, const Link& link);

/// "h200x8", a profile by its name; "own/h200x8.json", one by its file (it holds a '/' or ends so);
/// "h200x8 * 512, 8x400Gb/s", 512 nodes of either, each with eight links of 400 Gb/s (and 5 us; ",3us" says
/// other). Throws IoError, InvalidArgument; of an unknown name, with the known ones.
Machine machine_from_spec(std::string_view spec);

}  // namespace shingle
