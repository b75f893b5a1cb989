// Agreement over TCP, for ranks of several hosts. Every rank has a connection to the leader.
//
// The leader commits a proposal when all ranks have acknowledged before its own call E. It aborts if it
// reaches E first. A rank that has acknowledged waits at E for the leader's decision. The leader still has
// calls to make before E. It does not wait for that rank, and decides soon.
//
// That wait is bounded. The leader commits within Patience::decide_us of its proposal or not at all. A rank
// waits Patience::wait_us, twice as long, after its acknowledgement, and takes silence for an abort. The
// proposal is older than the acknowledgement, so a decision sent in time should have arrived. The exception
// is a delay by the difference, in the network or by a stop of the leader between deciding and sending.
//
// If a connection breaks, nothing is proposed any more.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agreement.hpp"
#include "message.hpp"
#include "net/connection.hpp"

namespace shingle::nccl_tuner {

/// Must be the same on all ranks.
struct Patience {
  double decide_us = 5e6, wait_us = 10e6;
};

class RemoteProposals : public Agreement {
 public:
  std::span<const Change> poll(const CallHistory& calls) final;
  bool free() const override { return false; }
  void propose(std::span<const Change>, const CallHistory&, std::uint64_t) override {}
  bool is_open() const final { return open_; }
  bool was_committed() const final { return committed_; }
  std::string_view trouble() const final { return trouble_; }

 protected:
  explicit RemoteProposals(const Patience& patience) : patience_(patience) {}

  /// Called at a call with an open proposal, or when it is time to poll for one.
  virtual std::span<const Change> advance(const CallHistory& calls) = 0;
  /// Ends this rank's part in the proposal.
  std::span<const Change> resolve(bool committed);
  bool broken() const { return !trouble_.empty(); }
  /// Ends agreement for good. The first reason counts.
  void break_off(std::string_view why);

  const Patience patience_;
  Message proposal_;
  bool open_ = false, committed_ = false;

 private:
  std::string trouble_;
};

class RemoteLeader final : public RemoteProposals {
 public:
  explicit RemoteLeader(std::vector<net::Connection> peers, const Patience& patience = {});
  ~RemoteLeader() override;

  bool free() const override { return !broken() && !open_ && all_done(); }
  void propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead) override;

 private:
  struct Peer {
    net::Connection connection;
    bool acknowledged = false, done = true;  // no open proposal yet
  };
  std::span<const Change> advance(const CallHistory& calls) override;
  void listen();
  void listen_to(Peer& peer);
  void tell_all(const Message& message);
  bool all_acknowledged() const;
  bool all_done() const;

  std::vector<Peer> peers_;
  net::Clock::time_point decide_by_{};
  bool decided_ = false;  // has decided to commit
};

class RemoteFollower final : public RemoteProposals {
 public:
  explicit RemoteFollower(net::Connection leader, const Patience& patience = {})
      : RemoteProposals(patience), leader_(std::move(leader)) {}

 private:
  std::span<const Change> advance(const CallHistory& calls) override;
  bool find_proposal();
  std::optional<Message> hear();
  bool hear_word();
  void tell(Message::Kind kind);
  void hang_up(std::string_view why);

  net::Connection leader_;
  bool acknowledged_ = false;
  net::Clock::time_point wait_until_{};
};

}  // namespace shingle::nccl_tuner
