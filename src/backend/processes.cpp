#include "processes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "socket.hpp"

namespace shingle {
namespace {

using net::Clock;
using net::Frame;
using net::Kind;
using net::Socket;

class Alone final : public Processes {
 public:
  std::vector<std::string> all_gather(std::string_view own, double) override { return {std::string(own)}; }
  void tell(std::string_view) noexcept override {}
  void watch() override {}
};

/// What a process says first.
struct Hello {
  std::int32_t rank = 0;
  std::int32_t size = 0;
};

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// A length before each.
std::string packed(const std::vector<std::string>& all) {
  std::string whole;
  for (const std::string& one : all) whole += bytes_of(std::uint64_t{one.size()}) + one;
  return whole;
}

std::vector<std::string> unpacked(std::string_view whole) {
  std::vector<std::string> all;
  while (!whole.empty()) {
    std::uint64_t size = 0;
    std::memcpy(&size, whole.data(), sizeof size);
    all.emplace_back(whole.substr(sizeof size, size));
    whole.remove_prefix(sizeof size + size);
  }
  return all;
}

/// A star around rank 0.
class Star final : public Processes {
 public:
  Star(const Launched& launched, double timeout_us) : rank_(launched.rank), size_(launched.size) {
    if (launched.master_host.empty())
      throw InvalidArgument("MASTER_ADDR does not say which host rank 0 is on: set it on all hosts alike");
    const int port = launched.master_port % 65535 + 1;
    if (rank_ == 0) {
      await_others(net::listen_on(launched.master_host, port), timeout_us);
    } else {
      join(launched.master_host, port, timeout_us);
    }
  }

  /// Who leaves a sound world says so: a connection that just ends is a process that died.
  ~Star() override { broadcast(Kind::goodbye, {}); }

  std::vector<std::string> all_gather(std::string_view own, double timeout_us) override {
    const auto deadline = net::deadline_in(timeout_us);
    if (rank_ != 0) {
      const auto give = [&] {
        look(0);  // for a failure: it says more than a connection that ended
        net::send(peers_[0], Kind::data, own, deadline);
      };
      exchange(0, give, timeout_us);
      return unpacked(from(0, deadline, timeout_us));
    }
    std::vector<std::string> all(static_cast<std::size_t>(size_));
    all[0] = own;
    gather(all, deadline, timeout_us);
    const std::string whole = packed(all);
    for (int rank = 1; rank < size_; ++rank)
      exchange(rank, [&] { net::send(peer(rank), Kind::data, whole, deadline); }, timeout_us);
    return all;
  }

  void tell(std::string_view reason) noexcept override { broadcast(Kind::failure, reason); }

  void watch() override {
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_ && peer(rank)) exchange(rank, [&] { look(rank); }, 0);
  }

 private:
  Socket& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void await_others(const Socket& listener, double timeout_us) {
    const auto deadline = net::deadline_in(timeout_us);
    peers_.resize(static_cast<std::size_t>(size_));
    std::vector<Socket> strangers;
    for (int missing = size_ - 1; missing > 0;) {
      std::vector<pollfd> polled{{listener.fd(), POLLIN, 0}};
      for (const Socket& stranger : strangers) polled.push_back({stranger.fd(), POLLIN, 0});
      if (::poll(polled.data(), polled.size(), net::milliseconds_until(deadline)) == 0)
        throw Timeout(fmt::format("{} did not join within {}", missing_ranks(), format_us(timeout_us)), 0);
      for (std::size_t i = strangers.size(); i-- > 0;)
        if (polled[i + 1].revents != 0) {
          missing -= welcome(std::move(strangers[i]), deadline) ? 1 : 0;
          strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(i));
        }
      if (Socket stranger = net::accept_from(listener)) strangers.push_back(std::move(stranger));
    }
    for (int rank = 1; rank < size_; ++rank)
      exchange(rank, [&] { net::send(peer(rank), Kind::hello, {}, deadline); }, timeout_us);
  }

  /// Whether it is one of ours. Who connects by mistake is turned away.
  bool welcome(Socket stranger, Clock::time_point deadline) {
    constexpr double patience_us = 1e6;  // for the rest of a first message
    Frame frame;
    try {
      frame = net::receive(stranger, std::min(deadline, net::deadline_in(patience_us)));
    } catch (const net::Lost&) {
      return false;
    } catch (const net::Late&) {
      return false;
    }
    Hello hello;
    if (frame.kind != Kind::hello || frame.payload.size() != sizeof hello) return false;
    std::memcpy(&hello, frame.payload.data(), sizeof hello);
    if (hello.size != size_ || hello.rank < 1 || hello.rank >= size_ || peer(hello.rank))
      throw InvalidArgument(
          fmt::format("rank {} of {} wants to join {} processes a second time, or is of "
                      "another job: check the launcher's variables",
                      hello.rank, hello.size, size_));
    peer(hello.rank) = std::move(stranger);
    return true;
  }

  void join(const std::string& host, int port, double timeout_us) {
    const auto deadline = net::deadline_in(timeout_us);
    peers_.push_back(net::connect_to(host, port, deadline));
    peers_.resize(static_cast<std::size_t>(size_));
    exchange(
        0,
        [&] {
          net::send(peers_[0], Kind::hello, bytes_of(Hello{rank_, size_}), deadline);
          net::receive(peers_[0], deadline);
        },
        timeout_us);
  }

  /// Of everybody, whoever comes first.
  void gather(std::vector<std::string>& all, Clock::time_point deadline, double timeout_us) {
    std::vector<int> waiting;
    for (int rank = 1; rank < size_; ++rank) waiting.push_back(rank);
    while (!waiting.empty()) {
      std::vector<pollfd> polled;
      for (const int rank : waiting) polled.push_back({peer(rank).fd(), POLLIN, 0});
      if (::poll(polled.data(), polled.size(), net::milliseconds_until(deadline)) == 0)
        throw Timeout(fmt::format("rank{} {} did not come within {}", waiting.size() == 1 ? "" : "s",
                                  fmt::join(waiting, ", "), format_us(timeout_us)));
      std::size_t i = 0;
      std::erase_if(waiting, [&](int rank) {
        if (polled[i++].revents == 0) return false;
        all[static_cast<std::size_t>(rank)] = from(rank, deadline, timeout_us);
        return true;
      });
    }
  }

  std::string from(int rank, Clock::time_point deadline, double timeout_us) {
    std::string payload;
    exchange(
        rank,
        [&] {
          Frame frame = net::receive(peer(rank), deadline);
          if (frame.kind == Kind::failure) throw Timeout(frame.payload);
          if (frame.kind != Kind::data) throw Timeout(fmt::format("rank {} has left the world", rank));
          payload = std::move(frame.payload);
        },
        timeout_us);
    return payload;
  }

  void look(int rank) {
    Kind kind = Kind::data;
    if (net::peek(peer(rank), kind) && kind == Kind::failure)
      throw Timeout(net::receive(peer(rank), net::deadline_in(1e6)).payload);
  }

  /// What fails in it, said so that a user understands it.
  template <class Action>
  void exchange(int rank, Action action, double timeout_us) {
    try {
      action();
    } catch (const net::Lost&) {
      throw Timeout(fmt::format("rank {} is gone: its connection ended", rank));
    } catch (const net::Late&) {
      throw Timeout(fmt::format("rank {} did not come within {}", rank, format_us(timeout_us)));
    }
  }

  /// To whoever still listens; nobody waits for it long.
  void broadcast(Kind kind, std::string_view payload) noexcept {
    constexpr double patience_us = 1e5;
    for (const Socket& socket : peers_) try {
        if (socket) net::send(socket, kind, payload, net::deadline_in(patience_us));
      } catch (...) {  // it is gone itself
      }
  }

  std::string missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank)
      if (!peers_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    return fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
  }

  int rank_;
  int size_;
  std::vector<Socket> peers_;  // by rank; of all but rank 0 only its own
};

}  // namespace

std::vector<double> Processes::all_max(std::vector<double> values, double timeout_us) {
  const std::string_view own(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  const std::vector<std::string> all = all_gather(own, timeout_us);
  for (const std::string& one : all) {
    if (one.size() != own.size())
      throw Error("the processes are not at the same step: they compare unlike values");
    for (std::size_t i = 0; i < values.size(); ++i) {
      double other = 0;
      std::memcpy(&other, one.data() + i * sizeof other, sizeof other);
      values[i] = std::max(values[i], other);
    }
  }
  return values;
}

std::unique_ptr<Processes> alone() {
  return std::make_unique<Alone>();
}

std::unique_ptr<Processes> connect(const Launched& launched, double timeout_us) {
  if (!launched.several()) return alone();
  return std::make_unique<Star>(launched, timeout_us);
}

}  // namespace shingle
