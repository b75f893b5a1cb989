// TCP with deadlines.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace shingle::net {

using Clock = std::chrono::steady_clock;

/// Time point `us` from now, capped at three years.
Clock::time_point deadline_in(double us);
/// Timeout for poll(), in ms: rounded up, never negative.
int milliseconds_until(Clock::time_point deadline);

/// A host and a port.
struct Address {
  std::string host;
  int port = 0;
};

/// Owner of a socket.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Listens on a port: only for this host if `address` is a loopback address, else on all of this host's
/// addresses. Port 0: any free port. Throws Unreachable with the reason.
Socket listen_on(const Address& address);
/// The port on which a socket listens. Throws Unreachable.
int port_of(const Socket& listener);
/// Tries each address of the host once, for an equal share of the time that is left. Throws Unreachable with
/// the reason.
Socket connect_to(const Address& address, Clock::time_point deadline);
/// Accepts a waiting connection. If there is none, returns no socket and sets errno.
Socket accept_from(const Socket& listener);

/// Waits for events of poll(). Returns false at the deadline.
bool ready(const Socket& socket, short events, Clock::time_point deadline);

}  // namespace shingle::net
