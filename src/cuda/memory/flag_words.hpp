// Source words for copies that notify: a copy engine can set a counter, but cannot add to it.
#pragma once

#include "cuda/kernels/sync.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

class FlagWords {
 public:
  /// Allocates on the current device.
  FlagWords() : memory_(most_flags * sizeof(std::uint32_t)) { flags_.words = memory_.get<std::uint32_t>(); }

  /// The word that holds value + epoch · growth in every epoch; null if all words are in use for other
  /// values.
  const std::uint32_t* get(std::uint32_t value, std::uint32_t growth) {
    for (int i = 0; i < flags_.count; ++i)
      if (flags_.value[i] == value && flags_.growth[i] == growth) return flags_.words + i;
    if (flags_.count == most_flags) return nullptr;
    flags_.value[flags_.count] = value;
    flags_.growth[flags_.count] = growth;
    return flags_.words + flags_.count++;
  }
  /// All words, for launch_begin().
  const Flags& all() const { return flags_; }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceMemory memory_;
  Flags flags_;
};

}  // namespace shingle::cuda
