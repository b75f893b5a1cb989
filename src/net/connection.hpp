// Frames between two processes. A frame is read as it arrives, within a bound that the reader sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"
#include "socket.hpp"

namespace shingle::net {

enum class Kind : std::uint32_t { challenge, hello, welcome, data, failure, goodbye, summons };
inline constexpr Kind last_kind = Kind::summons;

struct Frame {
  Kind kind = Kind::data;
  std::string payload;
};

inline constexpr std::size_t header_bytes = 16;
std::string header_of(Kind kind, std::uint64_t payload_bytes);

/// Assembles a frame from its bytes as they arrive. It allocates memory for bytes that have arrived, not for
/// the size that a header claims.
class FrameReader {
 public:
  /// Bytes missing from the header, or after it from the frame. 0: the frame is complete.
  std::size_t wanted() const { return header_.size() < header_bytes ? header_bytes - header_.size() : left_; }
  /// Takes at most `wanted()` bytes. Throws Broken if they do not begin a frame, or if its payload exceeds
  /// `most_bytes`.
  void feed(std::string_view bytes, std::size_t most_bytes);
  bool complete() const { return wanted() == 0; }
  bool empty() const { return header_.empty(); }
  /// Returns the complete frame and starts the next.
  Frame take();

 private:
  void read_header(std::size_t most_bytes);

  std::string header_;
  Frame frame_;
  std::size_t left_ = 0;  // of the payload
};

/// A connected socket. Reads and writes may come from different threads. After an error the connection is
/// unusable, except after Late while no part of a frame was sent or received.
class Connection {
 public:
  Connection() = default;
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.fd(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }

  /// Throws Late or Lost. With a deadline in the past, it sends only what the kernel takes at once, and
  /// otherwise throws Late.
  void send(Kind kind, std::string_view payload, Clock::time_point deadline) const;
  /// Returns a frame if all of it has arrived; never waits. Throws Lost or Broken.
  std::optional<Frame> try_receive(std::size_t most_bytes);
  /// As try_receive(), but waits until the deadline. Also throws Late.
  Frame receive(std::size_t most_bytes, Clock::time_point deadline);
  /// Kind of the next frame, without consuming it. Nothing if it has not arrived. Throws Lost.
  std::optional<Kind> next_kind() const;
  /// Complete frames that have arrived, without consuming them, as far as the first 16 KiB hold them. For use
  /// while silent(). Throws Lost or Broken.
  std::vector<Frame> arrived() const;
  /// True if the other end sends nothing more. Frames that it sent before may still be unread.
  bool ended() const;
  /// True if try_receive() has seen no byte of the next frame yet.
  bool silent() const { return reader_.empty(); }

 private:
  Socket socket_;
  FrameReader reader_;
};

}  // namespace shingle::net
