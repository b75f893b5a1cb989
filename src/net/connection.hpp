// Frames between two processes. A frame is read as it arrives, within a bound that the reader sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
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
  /// Kind of the frame. Nothing until its header has arrived.
  std::optional<Kind> kind() const;
  /// Bytes of the payload as its header claims. 0 until the header has arrived.
  std::size_t payload_bytes() const { return frame_.payload.size() + left_; }
  /// Bytes of the payload that have arrived.
  std::size_t held() const { return frame_.payload.size(); }
  /// Returns the complete frame and starts the next.
  Frame take();

 private:
  void read_header(std::size_t most_bytes);

  std::string header_;
  Frame frame_;
  std::size_t left_ = 0;  // of the payload
};

/// A connected socket. One thread may receive while others send; frames of several senders do not mix. After
/// an error the connection is unusable, except after Late while no part of a frame was sent. Receiving may go
/// on after Late.
class Connection {
 public:
  Connection() = default;
  explicit Connection(Socket socket) : socket_(std::move(socket)), sending_(std::make_unique<Sending>()) {}

  int fd() const { return socket_.fd(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }

  /// Throws Late or Lost. With a deadline in the past, it sends only what the kernel takes at once, and
  /// otherwise throws Late. It also throws Late if another thread still sends at the deadline, and Lost if an
  /// earlier frame was cut short.
  void send(Kind kind, std::string_view payload, Clock::time_point deadline) const;
  /// Returns a frame if all of it has arrived; never waits. Throws Lost or Broken.
  std::optional<Frame> try_receive(std::size_t most_bytes);
  /// As try_receive(), but waits until the deadline. Also throws Late.
  Frame receive(std::size_t most_bytes, Clock::time_point deadline);
  /// Complete frames that have arrived; try_receive() still returns each of them. Throws Broken.
  ///
  /// It reads ahead into memory, so that no frame hides behind one that is larger than the kernel's buffer.
  /// It stops at `most_held` bytes.
  const std::deque<Frame>& arrived();
  /// True if arrived() holds a complete frame.
  bool holds_frame() const { return !held_.empty(); }
  /// Kind of the next frame, of which perhaps only the header has arrived. try_receive() still returns the
  /// frame. Nothing if it has not arrived. Throws Lost or Broken.
  std::optional<Kind> next_kind();
  /// True if a call that reads has found that the other end sends nothing more. Frames may still be held.
  bool ended() const { return error_ != nullptr; }
  /// True if no byte of the next frame has been read yet.
  bool silent() const { return reader_.empty() && held_.empty(); }

  static constexpr std::size_t most_held = std::size_t{64} << 20;  ///< bytes that arrived() may read ahead

 private:
  struct Sending {
    std::mutex mutex;        // held while a frame is sent
    bool cut_short = false;  // a frame was sent only in part: what follows would be taken for the rest
  };
  bool read_some(std::size_t most_bytes);
  std::size_t held_bytes() const;

  Socket socket_;
  std::unique_ptr<Sending> sending_;
  FrameReader reader_;
  std::deque<Frame> held_;    // read by arrived()
  std::exception_ptr error_;  // of reading; each later read throws it again
};

}  // namespace shingle::net
