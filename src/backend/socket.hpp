// TCP with deadlines: frames between two processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace shingle::net {

using Clock = std::chrono::steady_clock;

/// A point in time, `us` from now; beyond three years it is three years.
Clock::time_point deadline_in(double us);
/// For poll(): rounded up, never negative.
int milliseconds_until(Clock::time_point deadline);

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

enum class Kind : std::uint32_t { hello, data, failure, goodbye };

struct Frame {
  Kind kind = Kind::data;
  std::string payload;
};

/// The other end closed the connection, or broke it.
struct Lost {};
/// The deadline passed.
struct Late {};

/// Listens on a port: of this host alone where `host` is a loopback address, else of all its addresses.
/// Throws Error with the reason.
Socket listen_on(const std::string& host, int port);
/// Connects, trying again until somebody listens there. Throws Timeout with the reason after the deadline.
Socket connect_to(const std::string& host, int port, Clock::time_point deadline);
/// Whoever has connected; no socket where nobody has.
Socket accept_from(const Socket& listener);

/// Both throw Late or Lost. A frame that is none of ours counts as lost.
void send(const Socket& to, Kind kind, std::string_view payload, Clock::time_point deadline);
Frame receive(const Socket& from, Clock::time_point deadline);

/// What has arrived, left where it is: the kind of the next frame. False: nothing yet. Throws Lost.
bool peek(const Socket& from, Kind& kind);

}  // namespace shingle::net
