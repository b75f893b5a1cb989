// A call for which NCCL asks the tuner.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "choice.hpp"

namespace shingle::nccl_tuner {

struct Call {
  std::uint8_t collective = 0;
  std::uint64_t bytes = 0;
  std::uint32_t operations = 1;  ///< number of operations that NCCL runs as one

  CallKind kind() const {
    return {collective, static_cast<std::uint8_t>(bytes == 0 ? 0 : std::bit_width(bytes) - 1)};
  }
  /// Distinct for distinct calls, except for impossible sizes.
  std::uint64_t signature() const {
    return bytes << 11 | std::min(operations, 255u) << 3 | (collective & 7u);
  }
  static Call of_signature(std::uint64_t signature) {
    return {static_cast<std::uint8_t>(signature & 7), signature >> 11,
            static_cast<std::uint32_t>(signature >> 3 & 255)};
  }
};

}  // namespace shingle::nccl_tuner
