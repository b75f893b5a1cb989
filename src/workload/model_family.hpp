// The families of models that are known, by the model_type of their config.json.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/json_fields.hpp"

namespace shingle::config {

/// How a family builds its feed-forward, where `hidden_act` alone does not say.
enum class Form : std::uint8_t {
  plain,      ///< act(x·up)
  gated,      ///< act(x·gate) · (x·up)
  gated_own,  ///< gated, by a function that is not act(gate) · up
};

/// What the families' own code says and their files do not.
struct Family {
  Form form;
  std::string_view activation;  ///< where the file states none
  /// Each mixture of experts has one shared expert of the routed ones' size.
  bool shared_expert;
  std::span<const std::string_view> names;  ///< each a model_type
};

/// The family of a config: by model_type (a "_text" at its end is ignored), or without one by the class in
/// `architectures`. Null if the file states neither. Throws InvalidArgument if it states an unknown one.
const Family* find_family(const Fields& fields);

}  // namespace shingle::config
