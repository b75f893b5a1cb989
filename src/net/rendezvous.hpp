// How processes of a job find each other at a port that strangers can reach too.
//
// The listener sends a nonce. The connecting process answers with its own nonce, its hello, and the
// HMAC-SHA256 of all that under the job's token. The listener replies with an HMAC of the reply and
// everything before it.
//
// Both sides thus prove that they know the token without revealing it, and a recorded answer cannot be
// replayed. Later data on the connection is neither signed nor encrypted. This stops strangers who can
// connect, not those who can alter packets.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "connection.hpp"
#include "token.hpp"

namespace shingle::net {

/// The purpose of a rendezvous. Processes only meet others with the same purpose.
struct Meeting {
  std::string purpose;
  Token token;
};

inline constexpr std::size_t most_hello_bytes = 256, most_reply_bytes = 256;
/// A connection is dropped if it has not proved itself after this time.
inline constexpr double longest_handshake_us = 3e6;
/// Max. pending connections. Beyond it, the oldest silent one is dropped.
inline constexpr std::size_t most_pending = 128;

/// A connected process that has proved that it knows the token.
class Guest {
 public:
  Guest(Connection connection, std::string hello, std::string transcript, const Token& token)
      : connection_(std::move(connection)),
        hello_(std::move(hello)),
        transcript_(std::move(transcript)),
        token_(&token) {}

  const std::string& hello() const { return hello_; }
  /// Proves this side's knowledge of the token in turn. Throws Late or Lost.
  Connection admit(std::string_view reply) &&;

 private:
  Connection connection_;
  std::string hello_, transcript_;
  const Token* token_;
};

/// The listening side.
class Acceptor {
 public:
  Acceptor(Socket listener, Meeting meeting) : listener_(std::move(listener)), meeting_(std::move(meeting)) {}

  /// The next guest, or nothing at the deadline, whatever strangers do. Guests must not outlive the acceptor.
  std::optional<Guest> next(Clock::time_point deadline);
  /// Returns "; turned away: 20 that said nothing, 1 without this job's token (SHINGLE_TOKEN)", or nothing.
  std::string turned_away() const;

 private:
  struct Pending {
    Connection connection;
    std::string nonce;
    Clock::time_point until;
  };
  void take_in();
  void make_room();
  void drop_late();
  std::optional<Guest> hear();
  std::optional<Guest> judge(Pending& from, const Frame& frame);
  void wait(Clock::time_point deadline) const;

  Socket listener_;
  Meeting meeting_;
  std::vector<Pending> pending_;  // oldest first
  std::size_t silent_ = 0, foreign_ = 0, untrusted_ = 0;
};

struct Joined {
  Connection connection;
  std::string reply;
};

/// The connecting side. Returns once both sides have proved that they know the token. One try, within
/// longest_handshake_us. Throws NetError.
Joined join(const Address& address, const Meeting& meeting, std::string_view hello,
            Clock::time_point deadline);

// Parts of the proofs, public so that tests can forge them.
inline constexpr std::size_t nonce_bytes = 16, proof_bytes = 32;
std::string random_bytes(std::size_t count);
std::string hello_transcript(std::string_view purpose, std::string_view listeners_nonce,
                             std::string_view own_nonce, std::string_view hello);
std::string reply_transcript(std::string_view hello_transcript, std::string_view reply);
std::string proof(const Token& token, std::string_view transcript);

}  // namespace shingle::net
