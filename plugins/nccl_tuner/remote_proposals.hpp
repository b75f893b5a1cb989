// Agreement over TCP, for ranks of several hosts: every rank has a connection to the leader.
//
// The leader decides: it commits when all have acknowledged and it has not come to call E itself, aborts when
// it comes there before. A rank that has acknowledged and comes to E first waits for the leader's word. The
// leader has then calls to make before E, so it does not wait for that rank, and is about to speak. Where a
// connection breaks nothing is proposed any more.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "agreement.hpp"
#include "backend/socket.hpp"

namespace shingle::nccl_tuner {

/// What ranks tell each other, in the bytes of the host: they have the same processor.
struct Message {
  enum class Kind : std::uint32_t { propose, acknowledge, commit, abort, done };
  Kind kind = Kind::done;
  std::uint32_t changes = 0;
  std::uint64_t number = 0;                    ///< of the proposal
  std::uint64_t seen_call = 0, seen_hash = 0;  ///< what calls have been made until when
  std::uint64_t effective_call = 0;            ///< E
  std::array<Change, most_changes> change{};
};

class RemoteProposals : public Agreement {
 public:
  std::span<const Change> poll(const CallHistory& calls) final;
  bool free() const override { return false; }
  void propose(std::span<const Change>, const CallHistory&, std::uint64_t) override {}
  bool is_open() const final { return open_; }
  bool was_committed() const final { return committed_; }

 protected:
  /// At a call with a proposal before this rank, or where it is time to look for one.
  virtual std::span<const Change> advance(const CallHistory& calls) = 0;
  /// This rank is done with the proposal.
  std::span<const Change> resolve(bool committed);

  Message proposal_;
  bool open_ = false, committed_ = false, broken_ = false;
};

class RemoteLeader final : public RemoteProposals {
 public:
  explicit RemoteLeader(std::vector<net::Socket> peers) : peers_(std::move(peers)) {}
  ~RemoteLeader() override;

  bool free() const override { return !broken_ && !open_ && done_ == peers_.size(); }
  void propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead) override;

 private:
  std::span<const Change> advance(const CallHistory& calls) override;
  void listen();
  void tell_all(const Message& message);

  std::vector<net::Socket> peers_;
  std::size_t acknowledged_ = 0;
  std::size_t done_ = peers_.size();  // none has a proposal before it
  bool decided_ = false;              // to commit
};

class RemoteFollower final : public RemoteProposals {
 public:
  explicit RemoteFollower(net::Socket leader) : leader_(std::move(leader)) {}

 private:
  std::span<const Change> advance(const CallHistory& calls) override;
  std::optional<Message> hear(bool wait);
  void tell(Message::Kind kind);
  void hang_up();

  net::Socket leader_;
  bool acknowledged_ = false;
};

}  // namespace shingle::nccl_tuner
