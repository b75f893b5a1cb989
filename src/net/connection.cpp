#include "connection.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "shingle/base/units.hpp"
#include "wire.hpp"

namespace shingle::net {
namespace {

constexpr std::uint32_t ours = 0x53686e68;  // magic number "Shnh"; "Shng" was the protocol without proofs

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

Lost lost(ssize_t moved) {
  return Lost(moved == 0 ? "the connection ended" : std::strerror(errno));
}

void require_fits(std::uint64_t bytes, std::size_t most_bytes) {
  if (bytes > most_bytes)
    throw Broken(fmt::format("a frame of {}; at most {} are expected",
                             format_bytes(static_cast<double>(bytes)),
                             format_bytes(static_cast<double>(most_bytes))));
}

/// Waits for a lock until the deadline. It polls, as two threads rarely send at a time.
std::unique_lock<std::mutex> locked(std::mutex& mutex, Clock::time_point deadline) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (; !lock; lock.try_lock()) {
    if (Clock::now() >= deadline) throw Late("another thread still sends");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return lock;
}

}  // namespace

std::string header_of(Kind kind, std::uint64_t payload_bytes) {
  return Packer().number(ours).number(static_cast<std::uint32_t>(kind)).number(payload_bytes).take();
}

void FrameReader::feed(std::string_view bytes, std::size_t most_bytes) {
  if (header_.size() < header_bytes) {
    header_ += bytes;
    const std::string begin = header_of(Kind::data, 0).substr(0, sizeof ours);
    if (!begin.starts_with(std::string_view(header_).substr(0, begin.size())))
      throw Broken("the other end speaks another protocol");
    if (header_.size() == header_bytes) read_header(most_bytes);
  } else {
    frame_.payload += bytes;
    left_ -= bytes.size();
  }
}

void FrameReader::read_header(std::size_t most_bytes) {
  Parser header(header_);
  header.number<std::uint32_t>();
  const auto kind = header.number<std::uint32_t>();
  const auto bytes = header.number<std::uint64_t>();
  if (kind > static_cast<std::uint32_t>(last_kind))
    throw Broken(fmt::format("a frame of unknown kind {}", kind));
  require_fits(bytes, most_bytes);
  frame_.kind = static_cast<Kind>(kind);
  left_ = static_cast<std::size_t>(bytes);
}

std::optional<Kind> FrameReader::kind() const {
  return header_.size() < header_bytes ? std::nullopt : std::optional(frame_.kind);
}

Frame FrameReader::take() {
  header_.clear();
  return std::exchange(frame_, {});
}

void Connection::send(Kind kind, std::string_view payload, Clock::time_point deadline) const {
  const std::string frame = header_of(kind, payload.size()).append(payload);
  const auto lock = locked(sending_->mutex, deadline);
  if (sending_->cut_short) throw Lost("an earlier frame was cut short");
  for (std::size_t done = 0; done < frame.size();) {
    const ssize_t moved = ::send(fd(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
      sending_->cut_short = done < frame.size();
    } else if (moved < 0 && would_block(errno)) {
      if (!ready(socket_, POLLOUT, deadline)) throw Late("the other end did not receive in time");
    } else if (moved == 0 || errno != EINTR) {
      throw lost(moved);
    }
  }
}

/// Reads once, at most to the end of a frame. Returns false if nothing has arrived.
bool Connection::read_some(std::size_t most_bytes) try {
  if (error_) std::rethrow_exception(error_);
  std::array<char, std::size_t{16} << 10> arrived;
  for (;;) {
    const ssize_t got =
        ::recv(fd(), arrived.data(), std::min(reader_.wanted(), arrived.size()), MSG_DONTWAIT);
    if (got > 0) {
      reader_.feed({arrived.data(), static_cast<std::size_t>(got)}, most_bytes);
      return true;
    }
    if (got < 0 && would_block(errno)) return false;
    if (got == 0 || errno != EINTR) throw lost(got);
  }
} catch (const NetError&) {
  error_ = std::current_exception();
  throw;
}

std::optional<Frame> Connection::try_receive(std::size_t most_bytes) {
  if (!held_.empty()) {
    require_fits(held_.front().payload.size(), most_bytes);
    Frame frame = std::move(held_.front());
    held_.pop_front();
    return frame;
  }
  require_fits(reader_.payload_bytes(), most_bytes);  // arrived() may have read its header
  while (!reader_.complete())
    if (!read_some(most_bytes)) return std::nullopt;
  return reader_.take();
}

Frame Connection::receive(std::size_t most_bytes, Clock::time_point deadline) {
  for (;;) {
    if (auto frame = try_receive(most_bytes)) return *std::move(frame);
    if (!ready(socket_, POLLIN, deadline)) throw Late("nothing was received in time");
  }
}

std::size_t Connection::held_bytes() const {
  std::size_t bytes = reader_.held();
  for (const Frame& frame : held_) bytes += header_bytes + frame.payload.size();
  return bytes;
}

const std::deque<Frame>& Connection::arrived() {
  constexpr std::size_t any = ~std::size_t{0};  // the call that receives the frame knows its bound
  try {
    while (held_bytes() < most_held && read_some(any))
      if (reader_.complete()) held_.push_back(reader_.take());
  } catch (const Lost&) {  // ended() says so
  }
  return held_;
}

std::optional<Kind> Connection::next_kind() {
  if (!arrived().empty()) return held_.front().kind;
  if (!reader_.kind() && error_) std::rethrow_exception(error_);
  return reader_.kind();
}

}  // namespace shingle::net
