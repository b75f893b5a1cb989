// Ranks that are MPI processes. A rank that reaches a collective first tells the others which call it makes.
// Once all have come, they agree or report the difference, and the link's time starts. Errors can therefore
// name a late rank.
#pragma once

#ifdef SHINGLE_WITH_MPI
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "control.hpp"
#include "host/executor/engine.hpp"
#include "host/executor/worker.hpp"

namespace shingle::host {

class MpiTransport final : public Transport {
 public:
  /// Collective over the world.
  MpiTransport(Engine& engine, MpiProcess& process, MpiControl& control);
  ~MpiTransport() override;

  void collective(const Caller& caller, const Collective& step, const View& send, const View& recv) override;
  void exchange(const Caller& caller, const Exchange& step, std::span<const View> sends,
                std::span<const View> receives) override;
  std::vector<int> missing(std::int32_t communicator, int rank) override;

  void begin_run() override;
  void end_run(RunReport& report) override;
  void begin_calls() override;
  void require_same_call(const CallTag& tag) override;
  void end_calls() override;
  void watch() override;
  void abandon(const std::string& reason) override;

 private:
  /// What a rank tells each other rank on arrival.
  struct Note {
    std::int32_t kind = 0, type = 0, lane = 0, step = 0;
    std::uint32_t epoch = 0;
    std::int32_t unused = 0;
    std::int64_t bytes = 0;  ///< sent to the reader (alltoall), or in all
    double wire_bytes = 0;   ///< on the sender's own link
  };
  /// A communicator of the plan. Only one lane uses it.
  struct Room {
    int first_tag = 0;  ///< first tag of its channel
    std::vector<std::int32_t> ranks;
    std::size_t me = 0;
    std::vector<Note> sent, received;
    Scratch scratch;
    std::mutex mutex;  ///< guards `awaited` and `pending`, for missing()
    std::vector<std::int32_t> awaited;
    std::atomic<std::uint64_t> pending{0};  ///< bit i: awaited[i] has not come
  };
  struct Call {
    const Caller& caller;
    const Collective& step;
    const View& send;
    const View& recv;
  };

  void meet(Room& room, const Call& call);
  void require_agreement(const Room& room, const Call& call) const;
  void allreduce(Room& room, const Call& call) const;
  void reducescatter(Room& room, const Call& call) const;
  void allgather(Room& room, const Call& call) const;
  void alltoall(Room& room, const Call& call) const;
  /// Tags of a room's channel, one for each kind of message.
  enum class Tag : int { note, exchange, part, sum };
  static int tag(const Room& room, Tag kind) { return room.first_tag + static_cast<int>(kind); }
  /// Waits for `ranks`, the peers of the first requests. Throws Timeout with the names of late ranks.
  void await_ranks(Room& room, Requests& requests, std::vector<std::int32_t> ranks, const Caller& caller,
                   std::int32_t communicator) const;
  /// Waits for data in flight. Throws Timeout with the ranks that it comes from or goes to.
  void finish(Requests& requests, const Caller& caller) const;

  Engine& engine_;
  MpiProcess& process_;
  MpiControl& control_;
  std::unique_ptr<std::deque<Room>> rooms_;
};

}  // namespace shingle::host
#endif
