#include "message.hpp"

#include "net/wire.hpp"

namespace shingle::nccl_tuner {
namespace {

constexpr std::uint8_t kinds = static_cast<std::uint8_t>(Message::Kind::done) + 1;

bool is_sound(const Message& proposal) {
  const std::uint64_t ahead = proposal.effective_call - proposal.seen_call;
  if (proposal.effective_call <= proposal.seen_call || ahead > CallHistory::span) return false;
  for (std::uint32_t i = 0; i < proposal.changes; ++i)
    if (!valid(proposal.change[i])) return false;
  return true;
}

}  // namespace

std::string packed(const Message& message) {
  net::Packer bytes;
  bytes.number(static_cast<std::uint8_t>(message.kind)).number(message.number);
  if (message.kind != Message::Kind::propose) return bytes.take();
  bytes.number(message.seen_call).number(message.seen_hash).number(message.effective_call);
  bytes.number(message.changes);
  for (std::uint32_t i = 0; i < message.changes; ++i) {
    const auto& [kind, choice] = message.change[i];
    bytes.number(kind.collective).number(kind.size_class);
    bytes.number(choice.algorithm).number(choice.protocol).number(choice.channels);
    bytes.number(choice.chunk_bytes);
  }
  return bytes.take();
}

std::optional<Message> parse_message(std::string_view bytes) {
  net::Parser parser(bytes);
  const auto kind = parser.number<std::uint8_t>();
  if (kind >= kinds) return std::nullopt;
  Message message{.kind = static_cast<Message::Kind>(kind), .number = parser.number<std::uint64_t>()};
  if (message.kind != Message::Kind::propose)
    return parser.complete() ? std::optional(message) : std::nullopt;
  message.seen_call = parser.number<std::uint64_t>();
  message.seen_hash = parser.number<std::uint64_t>();
  message.effective_call = parser.number<std::uint64_t>();
  message.changes = parser.number<std::uint32_t>();
  if (message.changes > most_changes) return std::nullopt;
  for (std::uint32_t i = 0; i < message.changes; ++i) {
    auto& [call, choice] = message.change[i];
    call.collective = parser.number<std::uint8_t>();
    call.size_class = parser.number<std::uint8_t>();
    choice.algorithm = parser.number<std::int8_t>();
    choice.protocol = parser.number<std::int8_t>();
    choice.channels = parser.number<std::uint8_t>();
    choice.chunk_bytes = parser.number<std::uint32_t>();
  }
  return parser.complete() && is_sound(message) ? std::optional(message) : std::nullopt;
}

}  // namespace shingle::nccl_tuner
