// Params as people read them.
#pragma once

#include <string>

namespace shingle::cli {

/// Params from their JSON as the flags of `run` say them, "groups=1,2,4 tile=128x256 one-shot"; empty where
/// all are the planner's.
std::string params_text(const std::string& json);

}  // namespace shingle::cli
