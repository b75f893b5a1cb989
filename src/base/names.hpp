// Tables of the names that enumerators have in files and on the command line.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "shingle/base/error.hpp"

namespace shingle {

/// Names of an enumeration's values, in order from 0 on.
template <class Key, std::size_t count>
using Names = std::array<std::pair<Key, std::string_view>, count>;

template <class Key, std::size_t count>
std::string_view name_in(const Names<Key, count>& names, Key key) {
  return names[static_cast<std::size_t>(key)].second;
}

/// All names, as in "ring, pat".
template <class Key, std::size_t count>
std::string list_of(const Names<Key, count>& names) {
  std::string list;
  for (const auto& [key, label] : names) list += (list.empty() ? "" : ", ") + std::string(label);
  return list;
}

/// The value with the name `text`. Throws InvalidArgument if there is none; `what` then names the kind of
/// value.
template <class Key, std::size_t count>
Key parse_in(const Names<Key, count>& names, std::string_view what, std::string_view text) {
  for (const auto& [key, label] : names)
    if (label == text) return key;
  throw InvalidArgument(fmt::format("unknown {} '{}' (one of {})", what, text, list_of(names)));
}

}  // namespace shingle
