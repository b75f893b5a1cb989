// Kinds of computations that run beside collectives.
#pragma once

#include <cstdint>
#include <string_view>

namespace shingle {

enum class ComputationKind : std::uint8_t {
  product,
  attention,  ///< scores and weighted sums of all heads
  pass        ///< element-wise: norms, activations, residuals
};
inline constexpr int computation_kinds = 3;
inline constexpr ComputationKind all_computation_kinds[computation_kinds] = {
    ComputationKind::product, ComputationKind::attention, ComputationKind::pass};
/// "product", "attention", "pass".
std::string_view name(ComputationKind kind);
/// Throws InvalidArgument.
ComputationKind parse_computation_kind(std::string_view text);

}  // namespace shingle
