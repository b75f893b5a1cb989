// Rows as JSON objects, to which callers may add keys.
#pragma once

#include <nlohmann/json.hpp>

#include "shingle/common/rows.hpp"

namespace shingle::cli {

/// With the keys that docs/reference/cli.md lists.
nlohmann::ordered_json json_of(const Row& row);

/// Lists under `noise` the fractions of a row that are above 1 (see above_one()).
void flag_noise(nlohmann::ordered_json& object);

}  // namespace shingle::cli
