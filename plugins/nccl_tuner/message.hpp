// Messages between ranks of several hosts while they agree.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "agreement.hpp"

namespace shingle::nccl_tuner {

struct Message {
  enum class Kind : std::uint8_t { propose, acknowledge, commit, abort, done };
  Kind kind = Kind::done;
  std::uint64_t number = 0;  ///< of the proposal
  // Fields of a proposal only:
  std::uint64_t seen_call = 0, seen_hash = 0;  ///< last call that the leader has made, and the hash up to it
  std::uint64_t effective_call = 0;            ///< call E
  std::uint32_t changes = 0;
  std::array<Change, most_changes> change{};
};

inline constexpr std::size_t most_message_bytes = 1 + 4 * 8 + 4 + most_changes * 9;

std::string packed(const Message& message);
/// Nothing if the bytes are not a message, or not one that a rank sends. Such messages have invalid kinds of
/// calls or choices, or a call too far away.
std::optional<Message> parse_message(std::string_view bytes);

}  // namespace shingle::nccl_tuner
