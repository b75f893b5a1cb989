// Ranks that are threads of one process. They meet under a lock and read each other's memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host/executor/engine.hpp"

namespace shingle::host {

class ThreadTransport final : public Transport {
 public:
  explicit ThreadTransport(Engine& engine);

  void collective(const Caller& caller, const Collective& step, const View& send, const View& recv) override;
  void exchange(const Caller& caller, const Exchange& step, std::span<const View> sends,
                std::span<const View> receives) override;
  std::vector<int> missing(std::int32_t communicator, int rank) override;

 private:
  /// One rank's part in a collective.
  struct Part {
    const Collective* step = nullptr;
    View send, recv;
    Caller caller;
  };
  /// One collective: every rank arrives, moves its share, and leaves when all shares are moved.
  struct Meeting {
    std::vector<Part> parts;
    std::size_t arrived = 0, moved = 0, left = 0;
    bool agreed = false;     ///< all have arrived, with calls that match
    Clock::time_point done;  ///< when the links have carried the data
  };
  struct Message {
    View view;
    Clock::time_point sender_came, receiver_came;
    bool taken = false;
  };
  using Channel = std::deque<std::shared_ptr<Message>>;  ///< posted and not yet taken, by sender and receiver

  struct Room {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::uint64_t> calls;  ///< collectives so far, by rank of the communicator
    std::map<std::uint64_t, Meeting> meetings;
    std::map<std::pair<int, int>, Channel> channels;
    std::map<int, int> awaited;  ///< in an exchange, by rank: the peer that it waits for
  };

  void require_agreement(const Meeting& meeting) const;
  static void move_share(const Meeting& meeting, std::size_t index);
  template <class Done>
  void await_peer(std::unique_lock<std::mutex>& lock, Room& room, const Caller& caller, const Exchange& step,
                  int peer, Clock::time_point deadline, const Done& done) const;

  Engine& engine_;
  std::vector<Room> rooms_;  // by communicator
};

}  // namespace shingle::host
