// Exchanges between threads. Senders post, receivers take and copy. A sender leaves only after its messages
// are taken.
#include <fmt/format.h>

#include <cstring>

#include "host/executor/diagnosis.hpp"
#include "shingle/base/error.hpp"
#include "transport_threads.hpp"

namespace shingle::host {

/// Waits for a peer until done(). Throws Timeout with the diagnosis, then without the lock.
template <class Done>
void ThreadTransport::await_peer(std::unique_lock<std::mutex>& lock, Room& room, const Caller& caller,
                                 const Exchange& step, int peer, Clock::time_point deadline,
                                 const Done& done) const {
  room.awaited[caller.rank] = peer;
  if (!wait_until(lock, room.changed, engine_.health(), deadline, done)) {
    lock.unlock();
    const int late[] = {peer};
    throw Timeout(missing_ranks(engine_, caller, step.communicator, late), caller.rank);
  }
  room.awaited.erase(caller.rank);
}

void ThreadTransport::exchange(const Caller& caller, const Exchange& step, std::span<const View> sends,
                               std::span<const View> receives) {
  Room& room = rooms_[static_cast<std::size_t>(step.communicator)];
  const auto deadline = engine_.deadline();
  auto ready = Clock::now();
  const auto came = ready;
  std::int64_t sent = 0, received = 0;

  std::unique_lock lock(room.mutex);
  std::vector<std::shared_ptr<Message>> posted;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const int peer = step.sends[i].peer;
    posted.push_back(std::make_shared<Message>(Message{sends[i], came, {}, false}));
    room.channels[{caller.rank, peer}].push_back(posted.back());
    if (peer != caller.rank) sent += sends[i].bytes();
  }
  room.changed.notify_all();
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const int peer = step.receives[i].peer;
    Channel& channel = room.channels[{peer, caller.rank}];
    await_peer(lock, room, caller, step, peer, deadline, [&] { return !channel.empty(); });
    const auto message = std::move(channel.front());
    channel.pop_front();
    const View &from = message->view, &to = receives[i];
    if (from.rows != to.rows || from.cols != to.cols || from.type != to.type)
      throw InvalidArgument(
          fmt::format("{}: expects {}x{} {} of rank {}, which sends {}x{} {}", describe(engine_, caller),
                      to.rows, to.cols, name(to.type), peer, from.rows, from.cols, name(from.type)),
          caller.rank);
    lock.unlock();
    for (std::int64_t row = 0; row < to.rows; ++row)
      std::memcpy(to.at(row), from.at(row), static_cast<std::size_t>(to.row_bytes()));
    lock.lock();
    message->receiver_came = came;
    message->taken = true;
    room.changed.notify_all();
    ready = std::max(ready, message->sender_came);
    if (peer != caller.rank) received += to.bytes();
  }
  for (std::size_t i = 0; i < posted.size(); ++i) {
    await_peer(lock, room, caller, step, step.sends[i].peer, deadline, [&] { return posted[i]->taken; });
    ready = std::max(ready, posted[i]->receiver_came);
  }
  lock.unlock();
  if (sent + received == 0) return;
  const int own[] = {caller.rank};
  sleep_until(engine_.world->links.book(own, ready, static_cast<double>(std::max(sent, received))),
              engine_.health());
}

}  // namespace shingle::host
