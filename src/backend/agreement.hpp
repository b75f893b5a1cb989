// Whether all processes of a world have the same value.
#pragma once

#include <functional>
#include <string>

#include "shingle/backend/backend.hpp"

namespace shingle {

/// Collective.
inline bool all_same(World& world, double value) {
  const auto most = world.all_max({value, -value});
  return most[0] == -most[1];
}
/// As above, of a text; compares hashes.
inline bool all_same(World& world, const std::string& text) {
  return all_same(world, static_cast<double>(std::hash<std::string>{}(text) >> 12));
}

}  // namespace shingle
