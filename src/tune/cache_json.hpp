// The text of a cache file.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "cache.hpp"

namespace shingle::tuning {

/// Key of an entry: equal for equal problems and mechanisms, whatever the routing.
std::string key_of(Problem problem, Mechanism mechanism);

/// One line per entry, in the order of their keys.
std::string cache_text(const std::string& fingerprint, const std::map<std::string, TuneEntry>& entries);

/// Empty if the text is of another version or machine. Throws InvalidArgument if it is not a cache file.
std::map<std::string, TuneEntry> cache_entries(const std::string& fingerprint, std::string_view text);

}  // namespace shingle::tuning
