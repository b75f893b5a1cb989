#include "star.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "neighbours.hpp"
#include "net/wire.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle {

using net::Clock;
using net::Connection;
using net::Frame;
using net::Kind;

/// The first message of a process.
struct Star::Hello {
  std::int32_t rank = 0;
  std::int32_t size = 0;

  std::string packed() const { return net::Packer().number(rank).number(size).take(); }
  static std::optional<Hello> parse(std::string_view bytes) {
    net::Parser parser(bytes);
    const Hello hello{parser.number<std::int32_t>(), parser.number<std::int32_t>()};
    return parser.complete() ? std::optional(hello) : std::nullopt;
  }
};

/// Runs an action on the connection to `rank`. Turns its network errors into Timeouts that name the rank.
template <class Action>
void Star::exchange(int rank, double timeout_us, Action action) {
  try {
    action();
  } catch (const net::Late&) {
    throw Timeout(
        fmt::format("rank {} did not come within {}{}", rank, format_us(timeout_us), stopped_neighbours()));
  } catch (const net::Broken& error) {
    throw Timeout(fmt::format("rank {} sent a malformed message: {}", rank, error.what()));
  } catch (const net::NetError&) {
    throw Timeout(fmt::format("rank {} is gone: its connection ended", rank));
  }
}

namespace {

net::Address address_of(const Launched& launched) {
  if (launched.master_host.empty())
    throw InvalidArgument("MASTER_ADDR is not set: set it to the host of rank 0, on all hosts");
  return {launched.master_host, launched.master_port % 65535 + 1};
}

net::Socket listener_of(const Launched& launched) {
  if (launched.rank != 0) return {};
  try {
    return net::listen_on(address_of(launched));
  } catch (const net::Unreachable& error) {
    throw Error(fmt::format("rank 0 {} (MASTER_PORT chooses another)", error.what()), 0);
  }
}

}  // namespace

Star::Star(const Launched& launched, double timeout_us, const net::Token& token)
    : Star(launched.rank, launched.size, listener_of(launched), address_of(launched), timeout_us, token) {}

Star::Star(int rank, int size, net::Socket listener, const net::Address& at, double timeout_us,
           const net::Token& token)
    : rank_(rank), size_(size), peers_(static_cast<std::size_t>(size)) {
  const net::Meeting meeting{"shingle world 1", token};
  if (rank_ == 0) {
    await_others(std::move(listener), meeting, timeout_us);
  } else {
    join(at, meeting, timeout_us);
  }
  at_exit_.emplace([this](int status) { leave(status); });
}

Star::~Star() {
  broadcast(Kind::goodbye, {});
}

void Star::tell(std::string_view reason) noexcept {
  broadcast(Kind::failure, reason.substr(0, most_reason));
}

void Star::watch() {
  for (int rank = 0; rank < size_; ++rank)
    if (peer(rank)) exchange(rank, 0, [&] { look(rank); });
}

void Star::peek() {
  for (int rank = 0; rank < size_; ++rank)
    if (peer(rank)) exchange(rank, 0, [&] { require_sound(rank); });
}

/// Tells the others that this process exits.
void Star::leave(int status) noexcept try {
  if (status == 0) return broadcast(Kind::goodbye, {});
  tell(fmt::format("rank {} has exited with status {}", rank_, status));
} catch (...) {  // no memory: the others see that the connection ends
}

// Rendezvous.

void Star::await_others(net::Socket listener, const net::Meeting& meeting, double timeout_us) {
  const auto deadline = net::deadline_in(timeout_us);
  net::Acceptor acceptor(std::move(listener), meeting);
  for (int missing = size_ - 1; missing > 0;) {
    auto guest = acceptor.next(deadline);
    if (!guest)
      throw Timeout(fmt::format("{} did not join within {}{}{}", missing_ranks(), format_us(timeout_us),
                                acceptor.turned_away(), stopped_neighbours()),
                    0);
    if (admit(*std::move(guest), meeting.token)) --missing;
  }
  for (int rank = 1; rank < size_; ++rank)
    exchange(rank, timeout_us, [&] { peer(rank).send(Kind::hello, {}, deadline); });
}

/// Returns true if one more rank has joined. Rejects a process that is not of this world. With a secret
/// token, such a process is the user's mistake: an error. Otherwise it may be a stranger, and is ignored.
bool Star::admit(net::Guest guest, const net::Token& token) {
  const auto hello = Hello::parse(guest.hello());
  if (!hello) return false;
  const Verdict verdict = judge(*hello);
  try {
    Connection connection =
        std::move(guest).admit(net::Packer().number(static_cast<std::uint8_t>(verdict)).number(size_).take());
    if (verdict == Verdict::welcome) {
      const bool again = static_cast<bool>(peer(hello->rank));
      peer(hello->rank) = std::move(connection);
      return !again;
    }
  } catch (const net::NetError&) {  // closed meanwhile
    return false;
  }
  if (token.is_secret)
    throw InvalidArgument(
        fmt::format("rank {} of {} joined {} processes a second time, or belongs to another job: check the "
                    "launcher's variables",
                    hello->rank, hello->size, size_));
  return false;
}

Star::Verdict Star::judge(const Hello& hello) {
  if (hello.size != size_) return Verdict::other_size;
  if (hello.rank < 1 || hello.rank >= size_) return Verdict::no_rank;
  if (!peer(hello.rank)) return Verdict::welcome;
  try {  // the rank may have connected before and given up
    peer(hello.rank).next_kind();
  } catch (const net::NetError&) {
    return Verdict::welcome;
  }
  return Verdict::taken;
}

/// Retries until the deadline: rank 0 may still start, and a stranger on its port may leave.
void Star::join(const net::Address& at, const net::Meeting& meeting, double timeout_us) {
  constexpr std::chrono::milliseconds pause{50};
  const auto deadline = net::deadline_in(timeout_us);
  std::string reply, why;
  for (;;) try {
      net::Joined joined = net::join(at, meeting, Hello{rank_, size_}.packed(), deadline);
      peer(0) = std::move(joined.connection);
      reply = std::move(joined.reply);
      break;
    } catch (const net::NetError& error) {
      // The deadline may have cut the last try short; errors of earlier tries say more.
      if (why.empty() || dynamic_cast<const net::Late*>(&error) == nullptr) why = error.what();
      if (Clock::now() + pause >= deadline)
        throw Timeout(fmt::format("rank 0 cannot be reached at {}:{} within {}: {}{}", at.host, at.port,
                                  format_us(timeout_us), why, stopped_neighbours()));
      std::this_thread::sleep_for(pause);
    }
  net::Parser parser(reply);
  const auto verdict = parser.number<std::uint8_t>();
  const auto size = parser.number<std::int32_t>();
  if (!parser.complete() || verdict != static_cast<std::uint8_t>(Verdict::welcome))
    throw InvalidArgument(
        fmt::format("rank {} of {} cannot join: rank 0 at {}:{} awaits {} processes, each once: check the "
                    "launcher's variables",
                    rank_, size_, at.host, at.port, size));
  exchange(0, timeout_us, [&] { peer(0).receive(0, deadline); });  // all processes have joined
}

std::string Star::missing_ranks() const {
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank)
    if (!peer(rank)) missing.push_back(rank);
  return fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
}

// Exchange.

std::vector<std::string> Star::gather(std::string_view own, double timeout_us, std::size_t most_bytes) {
  if (rank_ == 0) try {
      return gather_at_first(own, timeout_us, most_bytes);
    } catch (const Timeout& missing) {
      if (!parting_) tell(missing.what());  // all ranks report the same
      throw;
    }
  const auto deadline = net::deadline_in(timeout_us);
  const auto count = static_cast<std::size_t>(size_);
  const std::size_t most = count * (sizeof(std::uint64_t) + most_bytes);
  most_frame_ = std::max(most_frame_, most);
  std::optional<std::vector<std::string>> all;
  exchange(0, timeout_us, [&] {
    look(0);  // a failure message says more than a closed connection
    peer(0).send(Kind::data, own, deadline);
    all = net::unpacked(payload_of(0, reply_of_first(deadline + grace, timeout_us), most), count);
    if (!all) throw net::Broken("a malformed reply");
  });
  return *std::move(all);
}

/// Waits for rank 0's reply. If rank 0 came later, its deadline is later too, and it knows the missing ranks:
/// asks it then.
Frame Star::reply_of_first(Clock::time_point deadline, double timeout_us) {
  try {
    return peer(0).receive(most_frame_, deadline);
  } catch (const net::Late&) {
    if (!parting_) silent(fmt::format("rank {} waited {}", rank_, format_us(timeout_us)), roll_call_us);
    throw;
  }
}

/// Rank 0's part: receives from all ranks, then sends the whole to each.
std::vector<std::string> Star::gather_at_first(std::string_view own, double timeout_us,
                                               std::size_t most_bytes) {
  const auto deadline = net::deadline_in(timeout_us);
  std::vector<std::string> all(static_cast<std::size_t>(size_));
  all[0] = own;
  most_frame_ = std::max(most_frame_, most_bytes);
  gather_here(all, deadline, timeout_us, most_bytes);
  const std::string whole = net::packed(all);
  for (int rank = 1; rank < size_; ++rank)
    exchange(rank, timeout_us, [&] { peer(rank).send(Kind::data, whole, deadline); });
  return all;
}

/// Receives from all ranks as frames arrive, so that a slow rank delays no other. A rank may still fail after
/// sending its data.
void Star::gather_here(std::vector<std::string>& all, Clock::time_point deadline, double timeout_us,
                       std::size_t most_bytes) {
  std::vector<int> waiting = others();
  const auto receive = [&](int rank) {
    if (auto frame = peer(rank).try_receive(most_frame_)) {
      std::string payload = payload_of(rank, *std::move(frame), most_bytes);
      if (std::erase(waiting, rank) == 0) throw net::Broken("data twice");
      all[static_cast<std::size_t>(rank)] = std::move(payload);
    }
  };
  for (;;) {
    for (const int rank : others()) exchange(rank, timeout_us, [&] { receive(rank); });
    if (waiting.empty()) return;
    if (Clock::now() >= deadline)
      throw Timeout(fmt::format("rank{} {} did not come within {}{}", waiting.size() == 1 ? "" : "s",
                                fmt::join(waiting, ", "), format_us(timeout_us), stopped_neighbours()));
    await_any(others(), deadline);
  }
}

/// Waits until one of these ranks has sent something.
void Star::await_any(const std::vector<int>& ranks, Clock::time_point deadline) {
  std::vector<pollfd> polled;
  for (const int rank : ranks) {
    if (peer(rank).holds_frame()) return;  // poll() does not report what was read ahead
    polled.push_back({peer(rank).fd(), POLLIN, 0});
  }
  ::poll(polled.data(), polled.size(), net::milliseconds_until(deadline));
}

std::vector<int> Star::others() const {
  std::vector<int> ranks(static_cast<std::size_t>(size_ - 1));
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

std::string Star::payload_of(int rank, Frame frame, std::size_t most_bytes) {
  if (frame.kind == Kind::failure) throw Timeout(frame.payload);
  if (frame.kind == Kind::summons) answer(frame.payload);
  if (frame.kind == Kind::goodbye) throw Timeout(fmt::format("rank {} has left the world", rank));
  if (frame.kind != Kind::data || frame.payload.size() > most_bytes)
    throw net::Broken(fmt::format("an unexpected frame of kind {} and {}", static_cast<int>(frame.kind),
                                  format_bytes(static_cast<double>(frame.payload.size()))));
  return std::move(frame.payload);
}

void Star::look(int rank) {
  constexpr double rest_us = 1e6;  // for a frame whose beginning has arrived
  const auto kind = peer(rank).next_kind();
  if (kind != Kind::failure && kind != Kind::summons) return require_sound(rank);
  const std::string reason = peer(rank).receive(most_reason, net::deadline_in(rest_us)).payload;
  if (kind == Kind::summons) answer(reason);
  throw Timeout(reason);
}

/// Looks also behind data: the rank may have failed, or ended, after it came to a collective call for which
/// this process is late. The connection reads ahead for that: a failure, or the goodbye before an end, may
/// lie behind more data than the kernel's buffer takes. Until it has arrived the rank counts as sound. The
/// end of a connection arrives behind all data, so that it is never taken for a failure too early.
void Star::require_sound(int rank) {
  for (const Frame& frame : peer(rank).arrived()) {
    if (frame.kind == Kind::failure) throw Timeout(frame.payload);
    if (frame.kind == Kind::goodbye) return;
  }
  if (peer(rank).ended()) throw net::Lost("the connection ended");
}

/// Sends to all connected processes that still read, with a short limit for each.
void Star::broadcast(Kind kind, std::string_view payload) noexcept {
  constexpr double patience_us = 1e5;
  for (const Connection& connection : peers_) try {
      if (connection) connection.send(kind, payload, net::deadline_in(patience_us));
    } catch (...) {  // the process is gone
    }
}

}  // namespace shingle
