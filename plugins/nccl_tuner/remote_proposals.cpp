#include "remote_proposals.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/base/units.hpp"

namespace shingle::nccl_tuner {
namespace {

constexpr std::uint64_t calls_between_looks = 8;  // polling for messages is a system call
constexpr int most_at_a_look = 16;                // more messages than correct peers send
// A past deadline: a peer whose buffer does not take a small message at once gets none
constexpr net::Clock::time_point at_once{};

/// Throws net::NetError.
void send(const net::Connection& to, const Message& message) {
  to.send(net::Kind::data, packed(message), at_once);
}

Message message_in(const net::Frame& frame) {
  const auto message = parse_message(frame.payload);
  if (frame.kind != net::Kind::data || !message) throw net::Broken("a malformed message");
  return *message;
}

}  // namespace

std::span<const Change> RemoteProposals::poll(const CallHistory& calls) {
  if (!open_ && (broken() || calls.now() % calls_between_looks != 0)) return {};
  return advance(calls);
}

std::span<const Change> RemoteProposals::resolve(bool committed) {
  open_ = false;
  committed_ = committed;
  return std::span(proposal_.change).first(committed ? proposal_.changes : 0);
}

void RemoteProposals::break_off(std::string_view why) {
  if (trouble_.empty()) trouble_ = why;
}

// The leader.

RemoteLeader::RemoteLeader(std::vector<net::Connection> peers, const Patience& patience)
    : RemoteProposals(patience) {
  for (net::Connection& peer : peers) peers_.push_back({std::move(peer)});
}

RemoteLeader::~RemoteLeader() {
  if (open_ && !decided_) try {
      tell_all({.kind = Message::Kind::abort, .number = proposal_.number});
    } catch (const std::exception&) {  // out of memory: closing the connections tells the peers
    }
}

void RemoteLeader::propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead) {
  proposal_ = {.kind = Message::Kind::propose,
               .number = proposal_.number + 1,
               .seen_call = calls.now(),
               .seen_hash = *calls.hash(calls.now()),
               .effective_call = calls.now() + ahead,
               .changes = static_cast<std::uint32_t>(std::min(changes.size(), most_changes))};
  std::ranges::copy(changes.first(proposal_.changes), proposal_.change.begin());
  for (Peer& peer : peers_) peer.acknowledged = peer.done = false;
  decided_ = false;
  open_ = true;
  decide_by_ = net::deadline_in(patience_.decide_us);
  tell_all(proposal_);
}

void RemoteLeader::tell_all(const Message& message) {
  for (const Peer& peer : peers_) try {
      send(peer.connection, message);
    } catch (const net::NetError& error) {  // the other peers still get the message
      break_off(fmt::format("sending to a rank failed: {}", error.what()));
    }
}

void RemoteLeader::listen() {
  for (Peer& peer : peers_) try {
      listen_to(peer);
    } catch (const net::NetError& error) {
      break_off(fmt::format("receiving from a rank failed: {}", error.what()));
      return;
    }
}

/// For each proposal a rank may acknowledge once, and report once that it is done.
void RemoteLeader::listen_to(Peer& peer) {
  for (int i = 0; i < most_at_a_look; ++i) {
    const auto frame = peer.connection.try_receive(most_message_bytes);
    if (!frame) return;
    const Message message = message_in(*frame);
    const bool acknowledges = message.kind == Message::Kind::acknowledge;
    bool& said = acknowledges ? peer.acknowledged : peer.done;
    if (message.number != proposal_.number || said || peer.done ||
        (!acknowledges && message.kind != Message::Kind::done))
      throw net::Broken("an unexpected message");
    said = true;
  }
}

bool RemoteLeader::all_acknowledged() const {
  return std::ranges::all_of(peers_, &Peer::acknowledged);
}

bool RemoteLeader::all_done() const {
  return std::ranges::all_of(peers_, &Peer::done);
}

std::span<const Change> RemoteLeader::advance(const CallHistory& calls) {
  if (!open_ && all_done()) return {};
  if (!broken()) listen();
  if (!open_) return {};
  const bool early = calls.now() < proposal_.effective_call;
  const bool in_time = net::Clock::now() < decide_by_;
  if (early && in_time && !decided_ && !broken() && all_acknowledged()) {
    decided_ = true;  // also decides for itself, even if no peer can be told
    tell_all({.kind = Message::Kind::commit, .number = proposal_.number});
  }
  if (early && (decided_ || in_time)) return {};
  if (!decided_) tell_all({.kind = Message::Kind::abort, .number = proposal_.number});
  return resolve(decided_);
}

// The followers.

void RemoteFollower::tell(Message::Kind kind) {
  if (!broken()) try {
      send(leader_, {.kind = kind, .number = proposal_.number});
    } catch (const net::NetError& error) {
      hang_up(error.what());
    }
}

/// Closes the connection, so that the peer never takes part of a message for a whole one.
void RemoteFollower::hang_up(std::string_view why) {
  break_off(fmt::format("receiving from the leader failed: {}", why));
  leader_ = {};
}

/// The next message that has arrived, if any.
std::optional<Message> RemoteFollower::hear() {
  if (!broken()) try {
      if (const auto frame = leader_.try_receive(most_message_bytes)) return message_in(*frame);
    } catch (const net::NetError& error) {
      hang_up(error.what());
    }
  return std::nullopt;
}

/// True if the leader has committed. Any other message, or none, is an abort.
bool RemoteFollower::hear_word() {
  if (!broken()) try {
      const Message word = message_in(leader_.receive(most_message_bytes, wait_until_));
      if (word.number != proposal_.number) throw net::Broken("an unexpected message");
      if (word.kind == Message::Kind::commit || word.kind == Message::Kind::abort)
        return word.kind == Message::Kind::commit;
      throw net::Broken("an unexpected message");
    } catch (const net::Late&) {
      hang_up(fmt::format("no decision within {}", format_us(patience_.wait_us)));
    } catch (const net::NetError& error) {
      hang_up(error.what());
    }
  return false;
}

bool RemoteFollower::find_proposal() {
  for (int i = 0; i < most_at_a_look; ++i) {
    const auto message = hear();
    if (!message) return false;
    if (message->kind != Message::Kind::propose) continue;  // the end of a proposal that this rank refused
    if (message->number <= proposal_.number) {
      hang_up("an unexpected message");
      return false;
    }
    proposal_ = *message;
    open_ = true;
    acknowledged_ = false;
    return true;
  }
  return false;
}

std::span<const Change> RemoteFollower::advance(const CallHistory& calls) {
  if (!open_ && !find_proposal()) return {};
  if (!acknowledged_) {
    if (calls.now() < proposal_.seen_call) return {};  // this rank is behind the leader
    if (calls.hash(proposal_.seen_call) != proposal_.seen_hash || calls.now() >= proposal_.effective_call) {
      tell(Message::Kind::done);
      return resolve(false);
    }
    tell(Message::Kind::acknowledge);
    acknowledged_ = true;
    wait_until_ = net::deadline_in(patience_.wait_us);
  }
  if (calls.now() < proposal_.effective_call) return {};
  const bool committed = hear_word();
  tell(Message::Kind::done);
  return resolve(committed);
}

}  // namespace shingle::nccl_tuner
