// Machine profiles: a machine as a JSON file, every figure with where it comes from (docs/machines.md).
#pragma once

#include <string>
#include <string_view>

#include "shingle/machine/machine.hpp"

namespace shingle {

inline constexpr int profile_version = 1;

/// The machine of a profile's text. Throws InvalidArgument, one line that names the field: another format or
/// version, a missing or unknown key, a value out of range, samples that do not ascend, a figure without a
/// source.
Machine machine_from_json(std::string_view text);

/// The same text for the same machine, whatever it was read from.
std::string to_json(const Machine& machine);

/// Reads a file; adds its name to what is wrong with it. Throws IoError, InvalidArgument.
Machine read_machine(const std::string& path);

}  // namespace shingle
