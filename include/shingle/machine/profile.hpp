// Machine profiles: a machine as a JSON file, with the source of every figure (docs/reference/machines.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shingle/machine/machine.hpp"

namespace shingle {

inline constexpr std::string_view profile_format = "shingle-machine";
inline constexpr int profile_version = 1;

/// Parses a profile. Throws InvalidArgument with one line that names the field. Reasons: another format or
/// version, a missing or unknown key, a value out of range, samples that do not ascend, a figure without a
/// source.
Machine machine_from_json(std::string_view text);

/// The profile's text. Equal machines have equal texts, whatever they were read from.
std::string to_json(const Machine& machine);

/// Reads a profile from a file; error messages hold the path. Throws IoError, InvalidArgument.
Machine read_machine(const std::string& path);

/// The names that machine_from_spec() knows, ascending: profiles in the folder SHINGLE_MACHINES, and profiles
/// that ship with Shingle.
std::vector<std::string> machine_names();

/// A machine of `nodes` nodes. Each node has `link` to all others, shared by its ranks; within a node nothing
/// changes. Throws InvalidArgument if the machine does not give its ranks or already has nodes, or above 2^20
/// ranks.
Machine machine_of_nodes(Machine node, int nodes, const Link& link);

/// A machine from its specification:
/// - "h200x8": a profile by name
/// - "own/h200x8.json": a profile by file; the text holds a '/' or ends in ".json"
/// - "h200x8 * 512, 8x400Gb/s": 512 nodes of either, eight 400 Gb/s links each; 5 us, or as ",3us" says
///
/// Throws IoError, InvalidArgument. The message for an unknown name lists the known ones.
Machine machine_from_spec(std::string_view spec);

}  // namespace shingle
