#include "star.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <thread>

#include "net/wire.hpp"
#include "remote_proposals.hpp"

namespace shingle::nccl_tuner {
namespace {

constexpr std::chrono::milliseconds between_tries{5};
constexpr double longest_word_us = 1e5;  // for the kernel to take a message, not for a process to read it
constexpr std::size_t who_bytes = 8, verdict_bytes = 5;

struct Hello {
  std::string_view who;
  std::uint64_t communicator_id = 0;
  std::uint32_t ranks = 0;
  Credentials credentials{};

  std::string packed() const {
    return net::Packer()
        .bytes(who)
        .number(communicator_id)
        .number(ranks)
        .number(credentials.table)
        .number(credentials.communicator)
        .number(credentials.learn)
        .take();
  }
  static std::optional<Hello> parse(std::string_view bytes) {
    net::Parser parser(bytes);
    Hello hello{.who = parser.bytes(who_bytes),
                .communicator_id = parser.number<std::uint64_t>(),
                .ranks = parser.number<std::uint32_t>()};
    hello.credentials = {parser.number<std::uint64_t>(), parser.number<std::uint64_t>(),
                         parser.number<std::uint64_t>()};
    return parser.complete() ? std::optional(hello) : std::nullopt;
  }
};

/// The leader's first answer, then its final message. `other`: the meeting is of another communicator.
enum class Answer : std::uint8_t { other, wait };
enum class Outcome : std::uint8_t { abandoned, complete };

struct Follower {
  std::string who;
  net::Connection connection;
};

/// True if a name belongs to this host: only then can a socket bind to it.
bool is_here(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  bool here = false;
  for (const addrinfo* at = found; at != nullptr && !here; at = at->ai_next) {
    const net::Socket socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    here = socket && ::bind(socket.fd(), at->ai_addr, at->ai_addrlen) == 0;
  }
  ::freeaddrinfo(found);
  return here;
}

/// Nothing if another process listens there.
std::optional<net::Socket> try_to_listen(const net::Address& address) {
  try {
    return net::listen_on(address);
  } catch (const net::Unreachable&) {
    return std::nullopt;
  }
}

}  // namespace

Star::Star(net::Address address, net::Token token, std::uint64_t communicator_id, std::uint32_t ranks,
           const Credentials& credentials, std::chrono::microseconds deadline)
    : address_(std::move(address)),
      meeting_{"shingle tuner 2", std::move(token)},
      communicator_id_(communicator_id),
      ranks_(ranks),
      credentials_(credentials),
      deadline_(deadline),
      who_(net::random_bytes(who_bytes)) {}

bool Star::complete() {
  const auto end = net::deadline_in(static_cast<double>(deadline_.count()));
  const bool here = is_here(address_.host);
  for (;;) {
    if (auto listener = here ? try_to_listen(address_) : std::nullopt) return lead(*std::move(listener), end);
    if (follow(end)) return agreement_ != nullptr;
    if (net::Clock::now() >= end) return false;
    std::this_thread::sleep_for(between_tries);
  }
}

/// Accepts the other ranks, then sends them the outcome.
bool Star::lead(net::Socket listener, net::Clock::time_point end) {
  leads_ = true;
  net::Acceptor acceptor(std::move(listener), meeting_);
  std::vector<Follower> followers;
  while (followers.size() + 1 < ranks_) {
    auto guest = acceptor.next(end);
    if (!guest) break;
    const std::string bytes = guest->hello();
    const auto hello = Hello::parse(bytes);
    if (!hello) continue;
    const bool ours = hello->communicator_id == communicator_id_ && hello->ranks == ranks_;
    try {
      auto connection = (*std::move(guest))
                            .admit(net::Packer()
                                       .number(static_cast<std::uint8_t>(ours ? Answer::wait : Answer::other))
                                       .take());
      if (!ours) continue;
      differences_ |= nccl_tuner::differences(hello->credentials, credentials_);
      std::erase_if(followers, [&](const Follower& earlier) { return earlier.who == hello->who; });
      followers.push_back({std::string(hello->who), std::move(connection)});
    } catch (const net::NetError&) {  // closed meanwhile
    }
  }
  const bool all = followers.size() + 1 == ranks_;
  const auto outcome = all ? Outcome::complete : Outcome::abandoned;
  const std::string word =
      net::Packer().number(static_cast<std::uint8_t>(outcome)).number(differences_).take();
  std::vector<net::Connection> peers;
  for (Follower& follower : followers) {
    try {
      follower.connection.send(net::Kind::data, word, net::deadline_in(longest_word_us));
    } catch (const net::NetError&) {  // its process is gone
    }
    peers.push_back(std::move(follower.connection));
  }
  if (all) agreement_ = std::make_unique<RemoteLeader>(std::move(peers));
  trouble_ += acceptor.turned_away();
  return all;
}

/// Returns true if the leader was found. Agreement needs all ranks to have come.
bool Star::follow(net::Clock::time_point end) {
  const Hello hello{who_, communicator_id_, ranks_, credentials_};
  try {
    auto [leader, reply] = net::join(address_, meeting_, hello.packed(), end);
    if (reply != net::Packer().number(static_cast<std::uint8_t>(Answer::wait)).take()) return false;
    // The leader came earlier, so its deadline passes before twice this rank's deadline.
    const net::Frame word = leader.receive(verdict_bytes, end + deadline_);
    net::Parser parser(word.payload);
    const auto outcome = parser.number<std::uint8_t>();
    differences_ = parser.number<std::uint32_t>();
    if (word.kind != net::Kind::data || !parser.complete()) throw net::Broken("a malformed message");
    if (outcome == static_cast<std::uint8_t>(Outcome::complete))
      agreement_ = std::make_unique<RemoteFollower>(std::move(leader));
    return true;
  } catch (const net::Late& error) {  // the deadline may have cut a try short; earlier errors say more
    if (trouble_.empty()) trouble_ = fmt::format("; {}:{}: {}", address_.host, address_.port, error.what());
  } catch (const net::NetError& error) {
    trouble_ = fmt::format("; {}:{}: {}", address_.host, address_.port, error.what());
  }
  return false;
}

}  // namespace shingle::nccl_tuner
