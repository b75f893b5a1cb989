// Rows as JSON objects, for those that have more to say of a row.
#pragma once

#include <nlohmann/json.hpp>

#include "shingle/common/rows.hpp"

namespace shingle::cli {

/// With the keys that docs/reference/cli.md lists.
nlohmann::ordered_json json_of(const Row& row);

/// Lists as `noise` which fractions of a row are above 1 (see above_one()).
void flag_noise(nlohmann::ordered_json& object);

}  // namespace shingle::cli
