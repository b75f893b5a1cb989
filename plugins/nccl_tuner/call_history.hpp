// The calls of one communicator, as a running hash. It is equal on two ranks as long as they made the same
// calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace shingle::nccl_tuner {

class CallHistory {
 public:
  /// Number of past calls whose hash is kept.
  static constexpr std::uint64_t span = 8192;

  /// Records the current call. Calls are numbered from 0.
  void push(std::uint64_t signature) {
    hash_ = (hash_ ^ signature) * 0x9e3779b97f4a7c15u;
    hash_ ^= hash_ >> 29;
    hashes_[count_++ % span] = hash_;
  }

  /// Number of the last call.
  std::uint64_t now() const { return count_ - 1; }
  /// Hash of all calls up to `call`. Nothing if that call is in the future or too old.
  std::optional<std::uint64_t> hash(std::uint64_t call) const {
    if (call >= count_ || count_ - call > span) return std::nullopt;
    return hashes_[call % span];
  }

 private:
  std::uint64_t count_ = 0, hash_ = 0;
  std::array<std::uint64_t, span> hashes_;
};

}  // namespace shingle::nccl_tuner
