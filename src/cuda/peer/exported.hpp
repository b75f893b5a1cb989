// The address of device memory as another process can open it: bytes, without CUDA types.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/wire.hpp"

namespace shingle::cuda {

/// The allocation that holds an address, and the offset of the address in it.
struct Exported {
  bool any = false;               ///< false for a null address
  std::array<char, 64> handle{};  ///< CUDA's inter-process handle of the allocation
  std::uint64_t offset = 0;       ///< bytes
};

inline std::string packed(std::span<const Exported> all) {
  net::Packer bytes;
  for (const Exported& one : all)
    bytes.number(static_cast<std::uint8_t>(one.any))
        .bytes({one.handle.data(), one.handle.size()})
        .number(one.offset);
  return bytes.take();
}

/// The inverse of packed(); nothing unless the bytes hold exactly `count` entries.
inline std::optional<std::vector<Exported>> parse_exported(std::string_view bytes, std::size_t count) {
  net::Parser parser(bytes);
  std::vector<Exported> all;
  while (all.size() < count && !parser.at_end()) {
    Exported one;
    one.any = parser.number<std::uint8_t>() != 0;
    std::ranges::copy(parser.bytes(one.handle.size()), one.handle.begin());
    one.offset = parser.number<std::uint64_t>();
    all.push_back(one);
  }
  if (!parser.complete() || all.size() != count) return std::nullopt;
  return all;
}

}  // namespace shingle::cuda
