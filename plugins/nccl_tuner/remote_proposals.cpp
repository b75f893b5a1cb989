#include "remote_proposals.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

namespace shingle::nccl_tuner {
namespace {

constexpr std::uint64_t calls_between_looks = 8;  // a look is a call of the system
constexpr double longest_send_us = 1e6;
constexpr double longest_wait_us = 600e6;  // the leader may be about something else, a checkpoint, say

static_assert(std::is_trivially_copyable_v<Message>);

/// Whether it is on its way.
bool send(const net::Socket& to, const Message& message) {
  try {
    net::send(to, net::Kind::data, {reinterpret_cast<const char*>(&message), sizeof message},
              net::deadline_in(longest_send_us));
    return true;
  } catch (const net::Lost&) {
  } catch (const net::Late&) {
  }
  return false;
}

/// What has come, or, where it waits, what comes.
std::optional<Message> receive(const net::Socket& from, bool wait) {
  net::Kind kind;
  if (!wait && !net::peek(from, kind)) return std::nullopt;
  const net::Frame frame = net::receive(from, net::deadline_in(wait ? longest_wait_us : longest_send_us));
  Message message;
  if (frame.payload.size() != sizeof message) throw net::Lost{};
  std::memcpy(&message, frame.payload.data(), sizeof message);
  if (message.changes > most_changes) throw net::Lost{};
  return message;
}

}  // namespace

std::span<const Change> RemoteProposals::poll(const CallHistory& calls) {
  if (!open_ && (broken_ || calls.now() % calls_between_looks != 0)) return {};
  return advance(calls);
}

std::span<const Change> RemoteProposals::resolve(bool committed) {
  open_ = false;
  committed_ = committed;
  return std::span(proposal_.change).first(committed ? proposal_.changes : 0);
}

// ---- The leader.

RemoteLeader::~RemoteLeader() {
  if (open_ && !decided_) tell_all({.kind = Message::Kind::abort, .number = proposal_.number});
}

void RemoteLeader::propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead) {
  proposal_ = {.kind = Message::Kind::propose,
               .changes = static_cast<std::uint32_t>(std::min(changes.size(), most_changes)),
               .number = proposal_.number + 1,
               .seen_call = calls.now(),
               .seen_hash = *calls.hash(calls.now()),
               .effective_call = calls.now() + ahead};
  std::ranges::copy(changes.first(proposal_.changes), proposal_.change.begin());
  acknowledged_ = done_ = 0;
  decided_ = false;
  open_ = true;
  tell_all(proposal_);
}

void RemoteLeader::tell_all(const Message& message) {
  for (const net::Socket& peer : peers_)
    if (!send(peer, message)) broken_ = true;  // the others hear it all the same
}

void RemoteLeader::listen() {
  try {
    for (const net::Socket& peer : peers_) {
      while (const auto message = receive(peer, false)) {
        acknowledged_ += message->kind == Message::Kind::acknowledge;
        done_ += message->kind == Message::Kind::done;
      }
    }
    return;
  } catch (const net::Lost&) {
  } catch (const net::Late&) {
  }
  broken_ = true;
}

std::span<const Change> RemoteLeader::advance(const CallHistory& calls) {
  if (!open_ && done_ == peers_.size()) return {};
  if (!broken_) listen();
  if (!open_) return {};
  const bool early = calls.now() < proposal_.effective_call;
  if (early && !decided_ && !broken_ && acknowledged_ == peers_.size()) {
    decided_ = true;  // for itself too, whoever can be told
    tell_all({.kind = Message::Kind::commit, .number = proposal_.number});
  }
  if (early) return {};
  if (!decided_) tell_all({.kind = Message::Kind::abort, .number = proposal_.number});
  return resolve(decided_);
}

// ---- The others.

void RemoteFollower::tell(Message::Kind kind) {
  if (!send(leader_, {.kind = kind, .number = proposal_.number})) hang_up();
}

/// Nobody is to take half of what was said for all of it.
void RemoteFollower::hang_up() {
  broken_ = true;
  leader_ = {};
}

std::optional<Message> RemoteFollower::hear(bool wait) {
  try {
    if (!broken_) return receive(leader_, wait);
  } catch (const net::Lost&) {
    hang_up();
  } catch (const net::Late&) {
    hang_up();
  }
  return std::nullopt;
}

std::span<const Change> RemoteFollower::advance(const CallHistory& calls) {
  while (!open_) {
    const auto message = hear(false);
    if (!message) return {};
    if (message->kind != Message::Kind::propose) continue;  // the end of what this rank refused
    proposal_ = *message;
    open_ = true;
    acknowledged_ = false;
  }
  if (!acknowledged_) {
    if (calls.now() < proposal_.seen_call) return {};  // this rank is behind the leader
    if (calls.hash(proposal_.seen_call) != proposal_.seen_hash || calls.now() >= proposal_.effective_call) {
      tell(Message::Kind::done);
      return resolve(false);
    }
    tell(Message::Kind::acknowledge);
    acknowledged_ = true;
  }
  if (calls.now() < proposal_.effective_call) return {};
  std::optional<Message> word;
  do word = hear(true);
  while (word && word->number != proposal_.number);
  const bool committed = word && word->kind == Message::Kind::commit;
  tell(Message::Kind::done);
  return resolve(committed);
}

}  // namespace shingle::nccl_tuner
