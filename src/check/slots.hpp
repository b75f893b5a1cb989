// What a rank's top-k ids make of its slots: the reference of routing on the device.
#pragma once

#include <vector>

#include "inputs.hpp"

namespace shingle {

/// A choice of a token of the rank.
struct TokenChoice {
  std::int64_t token = 0;
  std::int64_t choice = 0;
};

/// Choices that each expert takes, in the order of their slots, and what is left over.
struct TakenChoices {
  std::vector<std::vector<TokenChoice>> of_expert;
  std::int64_t full = 0;     ///< choices that found no slot
  std::int64_t unknown = 0;  ///< ids that are neither an expert nor -1
};
TakenChoices taken_choices(const Inputs& inputs, int rank);

/// What Role::dropped or Role::counts must hold, row-major.
std::vector<std::int32_t> wanted_numbers(const Inputs& inputs, Role role, int rank);

}  // namespace shingle
