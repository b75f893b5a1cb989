#include "wire.hpp"

namespace shingle::net {

std::string packed(const std::vector<std::string>& all) {
  Packer whole;
  for (const std::string& one : all) whole.number(std::uint64_t{one.size()}).bytes(one);
  return whole.take();
}

std::optional<std::vector<std::string>> unpacked(std::string_view bytes, std::size_t count) {
  std::vector<std::string> all;
  Parser whole(bytes);
  while (all.size() < count && !whole.at_end()) {
    const auto size = whole.number<std::uint64_t>();
    all.emplace_back(whole.bytes(size));
  }
  if (!whole.complete() || all.size() != count) return std::nullopt;
  return all;
}

}  // namespace shingle::net
