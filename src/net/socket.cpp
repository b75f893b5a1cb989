#include "socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "error.hpp"

namespace shingle::net {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Resolves a host. Empty, with the reason in `why`, if the name is unknown.
Addresses resolve(const char* host, int port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = gai_strerror(error);
  return {error == 0 ? found : nullptr, freeaddrinfo};
}

void set(const Socket& socket, int level, int option) {
  const int on = 1;
  setsockopt(socket.fd(), level, option, &on, sizeof on);  // an optimisation: may fail
}

Socket open(const addrinfo& address) {
  return Socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// True if it is connected by the deadline; else errno holds the reason.
bool connect(const Socket& socket, const addrinfo& address, Clock::time_point deadline) {
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  if (!ready(socket, POLLOUT, deadline)) {
    errno = ETIMEDOUT;
    return false;
  }
  socklen_t size = sizeof errno;
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &errno, &size);
  return errno == 0;
}

}  // namespace

Clock::time_point deadline_in(double us) {
  constexpr double longest_us = 1e14;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double, std::micro>(std::min(us, longest_us)));
}

int milliseconds_until(Clock::time_point deadline) {
  constexpr std::int64_t a_day = 24 * 3600 * 1000;  // ms; longer waits poll again
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, a_day));
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket listen_on(const Address& address) {
  const std::string& host = address.host;
  const bool local = host == "localhost" || host.starts_with("127.") || host == "::1";
  std::string why = "no address";
  const Addresses addresses = resolve(local ? host.c_str() : nullptr, address.port, AI_PASSIVE, why);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Socket socket = open(*at);
    if (socket) {
      set(socket, SOL_SOCKET, SO_REUSEADDR);
      if (::bind(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.fd(), SOMAXCONN) == 0)
        return socket;
    }
    why = std::strerror(errno);
  }
  throw Unreachable(fmt::format("cannot listen on port {}: {}", address.port, why));
}

int port_of(const Socket& listener) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
    throw Unreachable(fmt::format("the port of a socket is unknown: {}", std::strerror(errno)));
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(at).sin_port);
}

Socket connect_to(const Address& address, Clock::time_point deadline) {
  std::string why;
  const Addresses addresses = resolve(address.host.c_str(), address.port, 0, why);
  int left = 0;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) ++left;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next, --left) {
    // An address that nobody answers leaves time for the others.
    const Clock::time_point now = Clock::now(), until = now + (deadline - now) / left;
    Socket socket = open(*at);
    if (socket && connect(socket, *at, until)) {
      set(socket, IPPROTO_TCP, TCP_NODELAY);
      return socket;
    }
    why = std::strerror(errno);
  }
  throw Unreachable(why);
}

Socket accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) set(socket, IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

bool ready(const Socket& socket, short events, Clock::time_point deadline) {
  pollfd polled{socket.fd(), events, 0};
  int found = 0;
  do {
    found = ::poll(&polled, 1, milliseconds_until(deadline));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

}  // namespace shingle::net
