// Split-K of a kernel.
#pragma once

#include <cstdint>

namespace shingle {

/// How a kernel can cut K; later values include earlier ones.
enum class KSplit : std::uint8_t {
  none,
  all,   ///< only all tiles alike
  some,  ///< some tiles, while it computes the others whole
};

}  // namespace shingle
