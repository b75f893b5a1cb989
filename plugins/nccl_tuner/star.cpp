#include "star.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <type_traits>

#include "shingle/base/error.hpp"

namespace shingle::nccl_tuner {
namespace {

constexpr std::chrono::milliseconds between_tries{5};
constexpr double longest_greeting_us = 1e6;  // whoever connects and says nothing is none of ours
constexpr double longest_connect_us = 200e3;

struct Hello {
  std::uint64_t communicator_id = 0;
  std::uint32_t ranks = 0, unused = 0;
  Credentials credentials;
};

struct Welcome {
  enum Word : std::uint32_t { other, wait, complete, abandoned };  // other: another communicator's meeting
  std::uint32_t word = other;
  std::uint32_t differences = 0;
};

template <class Words>
void say(const net::Socket& to, const Words& words) {
  static_assert(std::is_trivially_copyable_v<Words>);
  net::send(to, net::Kind::hello, {reinterpret_cast<const char*>(&words), sizeof words},
            net::deadline_in(longest_greeting_us));
}

template <class Words>
Words hear(const net::Socket& from, net::Clock::time_point end) {
  const net::Frame frame = net::receive(from, end);
  Words words;
  if (frame.kind != net::Kind::hello || frame.payload.size() != sizeof words) throw net::Lost{};
  std::memcpy(&words, frame.payload.data(), sizeof words);
  return words;
}

/// Whether a name is one of this host: only then can it be bound to.
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

/// Nothing: somebody else listens there.
std::optional<net::Socket> try_to_listen(const Address& address) {
  try {
    return net::listen_on(address.host, address.port);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<net::Socket> try_to_connect(const Address& address) {
  try {
    return net::connect_to(address.host, address.port, net::deadline_in(longest_connect_us));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool Star::complete() {
  const auto end = net::deadline_in(static_cast<double>(deadline_.count()));
  const bool here = is_here(address_.host);
  for (;;) {
    if (const auto listener = here ? try_to_listen(address_) : std::nullopt) return lead(*listener, end);
    if (follow(end)) return agreement_ != nullptr;
    if (net::Clock::now() >= end) return false;
    std::this_thread::sleep_for(between_tries);
  }
}

/// Takes in the others, and tells them what came of it.
bool Star::lead(const net::Socket& listener, net::Clock::time_point end) {
  leads_ = true;
  std::vector<net::Socket> peers;
  while (peers.size() + 1 < ranks_ && net::Clock::now() < end) {
    net::Socket peer = net::accept_from(listener);
    if (!peer) {
      std::this_thread::sleep_for(between_tries);
      continue;
    }
    try {
      const auto hello = hear<Hello>(peer, net::deadline_in(longest_greeting_us));
      const bool ours = hello.communicator_id == communicator_id_ && hello.ranks == ranks_;
      say(peer, Welcome{ours ? Welcome::wait : Welcome::other, 0});
      if (!ours) continue;
      differences_ |= nccl_tuner::differences(hello.credentials, credentials_);
      peers.push_back(std::move(peer));
    } catch (const net::Lost&) {
    } catch (const net::Late&) {
    }
  }
  const bool all = peers.size() + 1 == ranks_;
  for (const net::Socket& peer : peers) {
    try {
      say(peer, Welcome{all ? Welcome::complete : Welcome::abandoned, differences_});
    } catch (const net::Lost&) {  // its process is gone
    } catch (const net::Late&) {
    }
  }
  if (all) agreement_ = std::make_unique<RemoteLeader>(std::move(peers));
  return all;
}

/// Whether the leader was found; only where all came is there an agreement then.
bool Star::follow(net::Clock::time_point end) {
  auto leader = try_to_connect(address_);
  if (!leader) return false;
  try {
    say(*leader, Hello{communicator_id_, ranks_, 0, credentials_});
    if (hear<Welcome>(*leader, end).word != Welcome::wait) return false;
    // The leader came earlier, so that its deadline is over before twice this one's.
    const auto welcome = hear<Welcome>(*leader, end + deadline_);
    differences_ = welcome.differences;
    if (welcome.word == Welcome::complete) agreement_ = std::make_unique<RemoteFollower>(std::move(*leader));
    return true;
  } catch (const net::Lost&) {
  } catch (const net::Late&) {
  }
  return false;
}

}  // namespace shingle::nccl_tuner
