// Values on the wire: little-endian numbers, and bytes whose count both sides know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace shingle::net {

class Packer {
 public:
  template <class T>
  Packer& number(T value) {
    static_assert(std::is_integral_v<T>);
    auto rest = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof value; ++i, rest >>= 8) bytes_ += static_cast<char>(rest & 0xff);
    return *this;
  }
  Packer& bytes(std::string_view some) {
    bytes_ += some;
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Never reads beyond the end: missing values are zero or empty, and make complete() false. Check complete()
/// before using any value.
class Parser {
 public:
  explicit Parser(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_integral_v<T>);
    std::uint64_t value = 0;
    const std::string_view from = bytes(sizeof(T));
    for (std::size_t i = from.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(from[i]);
    return static_cast<T>(value);
  }
  std::string_view bytes(std::uint64_t count) {
    if (count > rest_.size()) {
      short_ = true;
      rest_ = {};
      return {};
    }
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  bool at_end() const { return rest_.empty(); }
  /// True if every value was there and nothing is left.
  bool complete() const { return !short_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool short_ = false;
};

/// Writes a length before each string.
std::string packed(const std::vector<std::string>& all);
/// Reverses packed(). Nothing unless there are exactly `count` strings.
std::optional<std::vector<std::string>> unpacked(std::string_view bytes, std::size_t count);

}  // namespace shingle::net
