// Structs of callers that were compiled against an older or a newer shingle.h.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "status.hpp"

namespace shingle::c {

/// Larger sizes are garbage: no version of a struct reaches this.
inline constexpr std::size_t most_struct_bytes = 4096;

/// A copy of the caller's struct. Fields that an older caller lacks are 0, their default. `name` is that of
/// the argument. Throws InvalidArgument if a newer caller sets a field that this version lacks.
template <class Struct>
Struct read_struct(const void* given, const char* name) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  require_not_null(given, name);
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < sizeof size || size > most_struct_bytes)
    throw InvalidArgument(
        fmt::format("{}.struct_size = {} must be sizeof the struct, {}", name, size, sizeof(Struct)));
  Struct known{};
  std::memcpy(&known, given, std::min(size, sizeof known));
  const auto* const bytes = static_cast<const std::byte*>(given);
  for (std::size_t i = sizeof known; i < size; ++i)
    if (bytes[i] != std::byte{0})
      throw InvalidArgument(fmt::format(
          "{}.struct_size = {}: byte {} is set, but libshingle {} knows {} bytes; update the library", name,
          size, i, shingle_version(), sizeof known));
  return known;
}

/// As above; null: all defaults.
template <class Struct>
Struct read_options(const Struct* given, const char* name) {
  if (given == nullptr) return {};
  return read_struct<Struct>(given, name);
}

/// Copies of the structs of an array. The first one's size is the distance from each to the next.
template <class Struct>
std::vector<Struct> read_array(const Struct* given, std::int32_t count, const std::string& name) {
  if (count < 0) throw InvalidArgument(fmt::format("{} structs in {}: must not be negative", count, name));
  if (count > 0) require_not_null(given, name.c_str());
  std::vector<Struct> all;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::size_t distance = given->struct_size;
    const auto* const at = reinterpret_cast<const std::byte*>(given) + static_cast<std::size_t>(i) * distance;
    const std::string element = fmt::format("{}[{}]", name, i);
    all.push_back(read_struct<Struct>(at, element.c_str()));
    if (all.back().struct_size != distance)
      throw InvalidArgument(fmt::format("{}.struct_size = {} differs from the {} of {}[0]", element,
                                        all.back().struct_size, distance, name));
  }
  return all;
}

}  // namespace shingle::c
