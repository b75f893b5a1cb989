// Frames between two processes, each read as it arrives and within a bound that its reader states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

/// Takes a frame as its bytes come. A header claims how many there will be; memory is taken for those that
/// are there.
class FrameReader {
 public:
  /// Bytes until the header, or then the frame, is complete; 0: it is.
  std::size_t wanted() const { return header_.size() < header_bytes ? header_bytes - header_.size() : left_; }
  /// At most `wanted()` bytes. Throws Broken where they begin no frame, or one whose payload would be more
  /// than `most_bytes`.
  void feed(std::string_view bytes, std::size_t most_bytes);
  bool complete() const { return wanted() == 0; }
  bool empty() const { return header_.empty(); }
  /// The complete frame; the next begins.
  Frame take();

 private:
  void read_header(std::size_t most_bytes);

  std::string header_;
  Frame frame_;
  std::size_t left_ = 0;  // of the payload
};

/// A connected socket. Reads and writes may come from different threads; whatever throws leaves a connection
/// that is of no more use, but for Late while nothing of a frame was sent or received.
class Connection {
 public:
  Connection() = default;
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.fd(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }

  /// Throws Late or Lost. A deadline that is over: what the system does not take at once is late.
  void send(Kind kind, std::string_view payload, Clock::time_point deadline) const;
  /// A frame if all of it has arrived; never waits. Throws Lost or Broken.
  std::optional<Frame> try_receive(std::size_t most_bytes);
  /// Throws Late, too.
  Frame receive(std::size_t most_bytes, Clock::time_point deadline);
  /// Of the next frame, which stays where it is; nothing where it has not arrived. Throws Lost.
  std::optional<Kind> next_kind() const;
  /// Whether nothing has come yet of the next frame, that try_receive() has seen.
  bool silent() const { return reader_.empty(); }

 private:
  Socket socket_;
  FrameReader reader_;
};

}  // namespace shingle::net
