#include "socket.hpp"

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
#include <thread>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::net {
namespace {

constexpr std::uint32_t ours = 0x53686e67;  // "Shng"
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;

struct Header {
  std::uint32_t magic = ours;
  Kind kind = Kind::data;
  std::uint64_t bytes = 0;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Empty, with the reason, where the name is not known.
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

bool ready(const Socket& socket, short events, Clock::time_point deadline) {
  pollfd polled{socket.fd(), events, 0};
  int found = 0;
  do {
    found = ::poll(&polled, 1, milliseconds_until(deadline));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

/// Whether it is connected by the deadline; errno says why not.
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

/// Moves all bytes by `step`, which is send or recv.
template <class Step>
void transfer(const Socket& socket, short events, std::size_t bytes, Clock::time_point deadline, Step step) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t moved = step(done);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
    } else if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!ready(socket, events, deadline)) throw Late{};
    } else if (moved == 0 || errno != EINTR) {
      throw Lost{};
    }
  }
}

void send_bytes(const Socket& to, const void* data, std::size_t bytes, Clock::time_point deadline) {
  transfer(to, POLLOUT, bytes, deadline, [&](std::size_t done) {
    return ::send(to.fd(), static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
  });
}

void receive_bytes(const Socket& from, void* data, std::size_t bytes, Clock::time_point deadline) {
  transfer(from, POLLIN, bytes, deadline, [&](std::size_t done) {
    return ::recv(from.fd(), static_cast<char*>(data) + done, bytes - done, 0);
  });
}

}  // namespace

Clock::time_point deadline_in(double us) {
  constexpr double longest_us = 1e14;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double, std::micro>(std::min(us, longest_us)));
}

int milliseconds_until(Clock::time_point deadline) {
  constexpr std::int64_t a_day = 24 * 3600 * 1000;  // longer waits look again
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, a_day));
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket listen_on(const std::string& host, int port) {
  const bool local = host == "localhost" || host.starts_with("127.") || host == "::1";
  std::string why = "no address";
  const Addresses addresses = resolve(local ? host.c_str() : nullptr, port, AI_PASSIVE, why);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Socket socket = open(*at);
    if (socket) {
      set(socket, SOL_SOCKET, SO_REUSEADDR);
      if (::bind(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.fd(), SOMAXCONN) == 0)
        return socket;
    }
    why = std::strerror(errno);
  }
  throw Error(fmt::format("rank 0 cannot listen on port {}: {} (MASTER_PORT chooses another)", port, why), 0);
}

Socket connect_to(const std::string& host, int port, Clock::time_point deadline) {
  constexpr std::chrono::milliseconds pause{50};
  std::string why;
  for (;;) {
    const Addresses addresses = resolve(host.c_str(), port, 0, why);
    for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
      Socket socket = open(*at);
      if (socket && connect(socket, *at, deadline)) {
        set(socket, IPPROTO_TCP, TCP_NODELAY);
        return socket;
      }
      why = std::strerror(errno);
    }
    if (Clock::now() + pause >= deadline)
      throw Timeout(fmt::format("rank 0 cannot be reached at {}:{}: {}", host, port, why));
    std::this_thread::sleep_for(pause);
  }
}

Socket accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) set(socket, IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

void send(const Socket& to, Kind kind, std::string_view payload, Clock::time_point deadline) {
  const Header header{ours, kind, payload.size()};
  std::string frame(sizeof header + payload.size(), '\0');
  std::memcpy(frame.data(), &header, sizeof header);
  std::copy(payload.begin(), payload.end(), frame.begin() + sizeof header);
  send_bytes(to, frame.data(), frame.size(), deadline);
}

Frame receive(const Socket& from, Clock::time_point deadline) {
  Header header;
  receive_bytes(from, &header, sizeof header, deadline);
  if (header.magic != ours || header.bytes > most_bytes) throw Lost{};
  Frame frame{header.kind, std::string(header.bytes, '\0')};
  receive_bytes(from, frame.payload.data(), frame.payload.size(), deadline);
  return frame;
}

bool peek(const Socket& from, Kind& kind) {
  Header header;
  const ssize_t got = ::recv(from.fd(), &header, sizeof header, MSG_PEEK);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) throw Lost{};
  if (got < static_cast<ssize_t>(sizeof header)) return false;
  kind = header.kind;
  return true;
}

}  // namespace shingle::net
