// Flags that copy engines bring to counts: they store what is there, and cannot add.
#pragma once

#include "cuda/kernels/sync.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

class FlagWords {
 public:
  /// On the current device.
  FlagWords() : memory_(most_flags * sizeof(std::uint32_t)) { flags_.words = memory_.get<std::uint32_t>(); }

  /// The word that is value + epoch · growth in every epoch; null where there are too many already.
  const std::uint32_t* get(std::uint32_t value, std::uint32_t growth) {
    for (int i = 0; i < flags_.count; ++i)
      if (flags_.value[i] == value && flags_.growth[i] == growth) return flags_.words + i;
    if (flags_.count == most_flags) return nullptr;
    flags_.value[flags_.count] = value;
    flags_.growth[flags_.count] = growth;
    return flags_.words + flags_.count++;
  }
  /// All of them, for the begin of an epoch.
  const Flags& all() const { return flags_; }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceMemory memory_;
  Flags flags_;
};

}  // namespace shingle::cuda
