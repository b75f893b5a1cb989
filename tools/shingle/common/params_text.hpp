// Params in readable form.
#pragma once

#include <string>

namespace shingle::cli {

/// Converts params from JSON to the flags of `run`, such as "groups=1,2,4 tile=128x256 one-shot". Empty if
/// all are the planner's.
std::string params_text(const std::string& json);

}  // namespace shingle::cli
