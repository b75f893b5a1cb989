#include "rendezvous.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "hmac.hpp"
#include "shingle/base/error.hpp"
#include "wire.hpp"

namespace shingle::net {
namespace {

constexpr std::size_t most_hello_frame = nonce_bytes + proof_bytes + most_hello_bytes;
// A past deadline: the socket's buffer takes these small frames without waiting
constexpr Clock::time_point at_once{};

/// Prefixes variable parts with their length, so that two transcripts never have the same bytes.
std::string with_length(std::string_view bytes) {
  return Packer().number(std::uint64_t{bytes.size()}).bytes(bytes).take();
}

}  // namespace

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count))
    throw Error("getrandom returned no random bytes");
  return bytes;
}

std::string hello_transcript(std::string_view purpose, std::string_view listeners_nonce,
                             std::string_view own_nonce, std::string_view hello) {
  return with_length("hello") + with_length(purpose) + with_length(listeners_nonce) + with_length(own_nonce) +
         with_length(hello);
}

std::string reply_transcript(std::string_view hello_transcript, std::string_view reply) {
  return with_length("reply") + with_length(hello_transcript) + with_length(reply);
}

std::string proof(const Token& token, std::string_view transcript) {
  return std::string(bytes_of(hmac_sha256(token.value, transcript)));
}

Connection Guest::admit(std::string_view reply) && {
  const std::string own = proof(*token_, reply_transcript(transcript_, reply));
  connection_.send(Kind::welcome, Packer().bytes(own).bytes(reply).take(), at_once);
  return std::move(connection_);
}

std::optional<Guest> Acceptor::next(Clock::time_point deadline) {
  for (;;) {
    take_in();
    if (auto guest = hear()) return guest;
    drop_late();
    if (Clock::now() >= deadline) return std::nullopt;
    wait(deadline);
  }
}

/// Accepts a bounded number of connections, so that pending ones are read in between.
void Acceptor::take_in() {
  constexpr int at_a_time = 32;
  constexpr std::chrono::milliseconds until_one_is_closed{5};
  for (int i = 0; i < at_a_time; ++i) {
    Socket socket = accept_from(listener_);
    if (!socket) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      if (pending_.empty()) return std::this_thread::sleep_for(until_one_is_closed);
      make_room();
      continue;
    }
    if (pending_.size() == most_pending) make_room();
    Pending one{Connection(std::move(socket)), random_bytes(nonce_bytes), deadline_in(longest_handshake_us)};
    try {
      one.connection.send(Kind::challenge, one.nonce, at_once);
      pending_.push_back(std::move(one));
    } catch (const NetError&) {
      ++silent_;
    }
  }
}

void Acceptor::make_room() {
  auto oldest = std::ranges::find_if(pending_, [](const Pending& one) { return one.connection.silent(); });
  if (oldest == pending_.end()) oldest = pending_.begin();
  pending_.erase(oldest);
  ++silent_;
}

void Acceptor::drop_late() {
  silent_ += std::erase_if(pending_, [now = Clock::now()](const Pending& one) { return one.until <= now; });
}

std::optional<Guest> Acceptor::hear() {
  for (std::size_t i = 0; i < pending_.size();) {
    try {
      auto frame = pending_[i].connection.try_receive(most_hello_frame);
      if (!frame) {
        ++i;
        continue;
      }
      Pending from = std::move(pending_[i]);
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      if (auto guest = judge(from, *frame)) return guest;
    } catch (const NetError& error) {
      ++(dynamic_cast<const Broken*>(&error) != nullptr ? foreign_ : silent_);
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return std::nullopt;
}

std::optional<Guest> Acceptor::judge(Pending& from, const Frame& frame) {
  Parser parser(frame.payload);
  const std::string_view nonce = parser.bytes(nonce_bytes), given = parser.bytes(proof_bytes);
  const std::string_view hello =
      parser.bytes(frame.payload.size() - std::min(frame.payload.size(), nonce_bytes + proof_bytes));
  if (frame.kind != Kind::hello || !parser.complete()) {
    ++foreign_;
    return std::nullopt;
  }
  std::string transcript = hello_transcript(meeting_.purpose, from.nonce, nonce, hello);
  if (!equal(given, proof(meeting_.token, transcript))) {
    ++untrusted_;
    return std::nullopt;
  }
  return Guest(std::move(from.connection), std::string(hello), std::move(transcript), meeting_.token);
}

void Acceptor::wait(Clock::time_point deadline) const {
  std::vector<pollfd> polled{{listener_.fd(), POLLIN, 0}};
  for (const Pending& one : pending_) {
    polled.push_back({one.connection.fd(), POLLIN, 0});
    deadline = std::min(deadline, one.until);
  }
  ::poll(polled.data(), polled.size(), milliseconds_until(deadline));
}

std::string Acceptor::turned_away() const {
  std::vector<std::string> all;
  if (silent_ > 0) all.push_back(fmt::format("{} that said nothing", silent_));
  if (foreign_ > 0) all.push_back(fmt::format("{} of another protocol", foreign_));
  if (untrusted_ > 0) all.push_back(fmt::format("{} without this job's token (SHINGLE_TOKEN)", untrusted_));
  return all.empty() ? "" : fmt::format("; turned away: {}", fmt::join(all, ", "));
}

Joined join(const Address& address, const Meeting& meeting, std::string_view hello,
            Clock::time_point deadline) {
  deadline = std::min(deadline, deadline_in(longest_handshake_us));
  Connection connection(connect_to(address, deadline));
  const Frame challenge = connection.receive(nonce_bytes, deadline);
  if (challenge.kind != Kind::challenge || challenge.payload.size() != nonce_bytes)
    throw Broken("the other end speaks another protocol");
  const std::string nonce = random_bytes(nonce_bytes);
  const std::string transcript = hello_transcript(meeting.purpose, challenge.payload, nonce, hello);
  connection.send(Kind::hello,
                  Packer().bytes(nonce).bytes(proof(meeting.token, transcript)).bytes(hello).take(),
                  deadline);
  Frame welcome;
  try {
    welcome = connection.receive(proof_bytes + most_reply_bytes, deadline);
  } catch (const Lost&) {
    throw Untrusted("turned away: the listener there belongs to another job, or has another SHINGLE_TOKEN");
  }
  Parser parser(welcome.payload);
  const std::string given(parser.bytes(proof_bytes));
  std::string reply = welcome.payload.substr(std::min(welcome.payload.size(), proof_bytes));
  if (welcome.kind != Kind::welcome ||
      !equal(given, proof(meeting.token, reply_transcript(transcript, reply))))
    throw Untrusted("the listener there does not know this job's token (SHINGLE_TOKEN)");
  return {std::move(connection), std::move(reply)};
}

}  // namespace shingle::net
