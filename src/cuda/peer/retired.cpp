#include "retired.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace shingle::cuda {
namespace {

/// Malformed data gives no numbers, so that no memory is freed because of it.
std::vector<std::uint64_t> numbers_in(const std::string& bytes) {
  if (bytes.size() % sizeof(std::uint64_t) != 0) return {};
  std::vector<std::uint64_t> numbers(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(std::uint64_t));
  return numbers;
}

}  // namespace

Retired::~Retired() {
  for (auto& [number, own] : kept_)
    for (DeviceMemory& memory : own) memory.abandon();
}

void Retired::add(std::uint64_t number, std::vector<DeviceMemory> own) {
  kept_.emplace_back(number, std::move(own));
}

void Retired::settle(Processes& processes, double timeout_us) {
  std::string closed;
  for (const auto& [number, own] : kept_)
    closed.append(reinterpret_cast<const char*>(&number), sizeof number);
  std::vector<std::vector<std::uint64_t>> all;
  for (const std::string& theirs : processes.all_gather(closed, timeout_us))
    all.push_back(numbers_in(theirs));
  std::erase_if(kept_, [&](const auto& kept) {
    return std::ranges::all_of(
        all, [&](const auto& numbers) { return std::ranges::find(numbers, kept.first) != numbers.end(); });
  });
}

}  // namespace shingle::cuda
