#include "connection.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

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
  if (bytes > most_bytes)
    throw Broken(fmt::format("a frame of {}; at most {} are expected",
                             format_bytes(static_cast<double>(bytes)),
                             format_bytes(static_cast<double>(most_bytes))));
  frame_.kind = static_cast<Kind>(kind);
  left_ = static_cast<std::size_t>(bytes);
}

Frame FrameReader::take() {
  header_.clear();
  return std::exchange(frame_, {});
}

void Connection::send(Kind kind, std::string_view payload, Clock::time_point deadline) const {
  const std::string frame = header_of(kind, payload.size()).append(payload);
  for (std::size_t done = 0; done < frame.size();) {
    const ssize_t moved = ::send(fd(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
    } else if (moved < 0 && would_block(errno)) {
      if (!ready(socket_, POLLOUT, deadline)) throw Late("the other end did not receive in time");
    } else if (moved == 0 || errno != EINTR) {
      throw lost(moved);
    }
  }
}

std::optional<Frame> Connection::try_receive(std::size_t most_bytes) {
  std::array<char, std::size_t{16} << 10> arrived;
  while (!reader_.complete()) {
    const ssize_t got =
        ::recv(fd(), arrived.data(), std::min(reader_.wanted(), arrived.size()), MSG_DONTWAIT);
    if (got > 0) {
      reader_.feed({arrived.data(), static_cast<std::size_t>(got)}, most_bytes);
    } else if (got < 0 && would_block(errno)) {
      return std::nullopt;
    } else if (got == 0 || errno != EINTR) {
      throw lost(got);
    }
  }
  return reader_.take();
}

Frame Connection::receive(std::size_t most_bytes, Clock::time_point deadline) {
  for (;;) {
    if (auto frame = try_receive(most_bytes)) return *std::move(frame);
    if (!ready(socket_, POLLIN, deadline)) throw Late("nothing was received in time");
  }
}

std::optional<Kind> Connection::next_kind() const {
  std::array<char, header_bytes> header;
  const ssize_t got = ::recv(fd(), header.data(), header.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got == 0 || (got < 0 && !would_block(errno) && errno != EINTR)) throw lost(got);
  if (got < static_cast<ssize_t>(header.size())) return std::nullopt;
  Parser parser({header.data(), header.size()});
  parser.number<std::uint32_t>();
  return static_cast<Kind>(parser.number<std::uint32_t>());
}

std::vector<Frame> Connection::arrived() const {
  constexpr std::size_t any = ~std::size_t{0};  // memory is allocated only for bytes that have arrived
  std::array<char, std::size_t{16} << 10> bytes;
  const ssize_t got = ::recv(fd(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got == 0 || (got < 0 && !would_block(errno) && errno != EINTR)) throw lost(got);
  std::vector<Frame> frames;
  FrameReader reader;
  for (std::string_view left(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
       !left.empty();) {
    const std::size_t next = std::min(reader.wanted(), left.size());
    reader.feed(left.substr(0, next), any);
    left.remove_prefix(next);
    if (reader.complete()) frames.push_back(reader.take());
  }
  return frames;
}

bool Connection::ended() const {
  pollfd polled{fd(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) > 0;
}

}  // namespace shingle::net
