// Agreement over TCP, for ranks of several hosts: every rank has a connection to the leader.
//
// The leader decides: it commits when all have acknowledged and it has not come to call E itself, aborts when
// it comes there before. A rank that has acknowledged and comes to E first waits for the leader's word. The
// leader has then calls to make before E, so it does not wait for that rank, and is about to speak.
//
// That wait is bounded. The leader commits within Patience::decide_us of its proposal or not at all. A rank
// that has heard nothing for Patience::wait_us, twice as long, after it acknowledged takes that for an abort:
// the proposal is older than the acknowledgement, so no word that was sent in time is still to come, unless
// the network, or a stop of the leader between deciding and sending, held it up for the difference. Where a
// connection breaks nothing is proposed any more.
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

/// The same on all ranks.
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

  /// At a call with a proposal before this rank, or where it is time to look for one.
  virtual std::span<const Change> advance(const CallHistory& calls) = 0;
  /// This rank is done with the proposal.
  std::span<const Change> resolve(bool committed);
  bool broken() const { return !trouble_.empty(); }
  /// Nothing is agreed on any more; the first reason counts.
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
    bool acknowledged = false, done = true;  // none has a proposal before it
  };
  std::span<const Change> advance(const CallHistory& calls) override;
  void listen();
  void listen_to(Peer& peer);
  void tell_all(const Message& message);
  bool all_acknowledged() const;
  bool all_done() const;

  std::vector<Peer> peers_;
  net::Clock::time_point decide_by_{};
  bool decided_ = false;  // to commit
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
