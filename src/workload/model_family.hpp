// Known model families, by the model_type of their config.json.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/json_fields.hpp"

namespace shingle::config {

/// Form of a family's feed-forward, if `hidden_act` alone does not define it.
enum class Form : std::uint8_t {
  plain,      ///< act(x·up)
  gated,      ///< act(x·gate) · (x·up)
  gated_own,  ///< gated, by a function that is not act(gate) · up
};

/// Properties that a family's code defines and its files do not.
struct Family {
  Form form;
  std::string_view activation;  ///< if the file states none
  /// True if each mixture of experts has one shared expert of the routed experts' size.
  bool shared_expert;
  std::span<const std::string_view> names;  ///< values of model_type
};

/// The family of a config: by model_type without a trailing "_text", or else by the class in `architectures`.
/// Null if the file states neither. Throws InvalidArgument if the stated one is unknown.
const Family* find_family(const Fields& fields);

}  // namespace shingle::config
