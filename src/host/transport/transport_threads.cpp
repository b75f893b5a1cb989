#include "transport_threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "host/compute/vector.hpp"
#include "host/executor/diagnosis.hpp"
#include "shingle/base/error.hpp"

namespace shingle::host {
namespace {

std::size_t offset(const std::vector<std::int64_t>& rows, std::size_t index, std::int64_t row_bytes) {
  return static_cast<std::size_t>(
      std::accumulate(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(index), std::int64_t{0}) *
      row_bytes);
}

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

ThreadTransport::ThreadTransport(Engine& engine) : engine_(engine), rooms_(engine.plan.communicators.size()) {
  for (std::size_t c = 0; c < rooms_.size(); ++c)
    rooms_[c].calls.resize(engine.plan.communicators[c].ranks.size());
}

void ThreadTransport::collective(const Caller& caller, const Collective& step, const View& send,
                                 const View& recv) {
  const Communicator& communicator = engine_.plan.communicators[static_cast<std::size_t>(step.communicator)];
  Room& room = rooms_[static_cast<std::size_t>(step.communicator)];
  const auto me = static_cast<std::size_t>(index_in(communicator, caller.rank));
  const std::size_t ranks = communicator.ranks.size();
  const auto deadline = engine_.deadline();

  std::unique_lock lock(room.mutex);
  const std::uint64_t call = room.calls[me]++;
  Meeting& meeting = room.meetings[call];
  meeting.parts.resize(ranks);
  meeting.parts[me] = {&step, send, recv, caller};
  if (++meeting.arrived == ranks) {
    require_agreement(meeting);
    double bytes = 0;
    for (std::size_t i = 0; i < ranks; ++i)
      bytes = std::max(bytes, wire_bytes(*meeting.parts[i].step, static_cast<int>(i), static_cast<int>(ranks),
                                         meeting.parts[i].send, meeting.parts[i].recv));
    meeting.done =
        ranks > 1 ? engine_.world->links.book(communicator.ranks, Clock::now(), bytes) : Clock::now();
    meeting.agreed = true;
    room.changed.notify_all();
  } else if (!wait_until(lock, room.changed, engine_.health(), deadline, [&] { return meeting.agreed; })) {
    lock.unlock();
    throw Timeout(missing_ranks(engine_, caller, step.communicator, missing(step.communicator, caller.rank)),
                  caller.rank);
  }

  lock.unlock();
  move_share(meeting, me);
  lock.lock();
  if (++meeting.moved == ranks) {
    room.changed.notify_all();
  } else if (!wait_until(lock, room.changed, engine_.health(), engine_.deadline(),
                         [&] { return meeting.moved == ranks; })) {
    lock.unlock();
    throw Timeout(describe(engine_, caller) + ": another rank arrived, but did not move its share",
                  caller.rank);
  }
  const auto done = meeting.done;
  if (++meeting.left == ranks) room.meetings.erase(call);
  lock.unlock();
  sleep_until(done, engine_.health());
}

std::vector<int> ThreadTransport::missing(std::int32_t communicator, int rank) {
  const Communicator& members = engine_.plan.communicators[static_cast<std::size_t>(communicator)];
  const auto me = static_cast<std::size_t>(index_in(members, rank));
  Room& room = rooms_[static_cast<std::size_t>(communicator)];
  const std::lock_guard lock(room.mutex);
  std::vector<int> ranks;
  for (const auto& [call, meeting] : room.meetings)
    if (meeting.parts[me].step != nullptr)
      for (std::size_t i = 0; i < meeting.parts.size(); ++i)
        if (meeting.parts[i].step == nullptr) ranks.push_back(members.ranks[i]);
  if (const auto peer = room.awaited.find(rank); peer != room.awaited.end()) ranks.push_back(peer->second);
  return ranks;
}

/// Throws InvalidArgument if the ranks' calls are not one collective.
void ThreadTransport::require_agreement(const Meeting& meeting) const {
  const auto fail = [&](const Part& part, const std::string& what) {
    throw InvalidArgument(describe(engine_, part.caller) + ": " + what, part.caller.rank);
  };
  const Part& first = meeting.parts.front();
  const auto ranks = static_cast<int>(meeting.parts.size());
  for (std::size_t i = 0; i < meeting.parts.size(); ++i) {
    const Part& part = meeting.parts[i];
    const std::string peer = describe(engine_, first.caller);
    if (part.step->kind != first.step->kind || part.send.type != first.send.type)
      fail(part, fmt::format("{} of {} meets {} of {} at {}", name(part.step->kind), name(part.send.type),
                             name(first.step->kind), name(first.send.type), peer));
    if (const std::string reason = misfit(*part.step, ranks, part.send, part.recv); !reason.empty())
      fail(part, reason);
    if (part.step->kind != CollectiveKind::alltoall) {
      if (part.send.bytes() != first.send.bytes())
        fail(part, fmt::format("sends {} bytes where {} at {} are sent", part.send.bytes(),
                               first.send.bytes(), peer));
      continue;
    }
    for (std::size_t j = 0; j < meeting.parts.size(); ++j) {
      const Part& to = meeting.parts[j];
      const std::int64_t sent = part.step->send_rows[j] * part.send.row_bytes(),
                         expected = to.step->recv_rows[i] * to.recv.row_bytes();
      if (sent != expected)
        fail(part,
             fmt::format("sends {} bytes to rank {}, which expects {}", sent, to.caller.rank, expected));
    }
  }
}

/// Every rank writes its own memory only. For an allreduce, each rank sums one part and writes it to all
/// ranks.
void ThreadTransport::move_share(const Meeting& meeting, std::size_t index) {
  const Part& own = meeting.parts[index];
  const std::size_t ranks = meeting.parts.size();
  const auto size = static_cast<std::int64_t>(size_bytes(own.send.type));
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  switch (own.step->kind) {
    case CollectiveKind::allreduce: {
      const std::int64_t count = own.send.rows * own.send.cols,
                         lines = ceil_div(count, 64);  // no cache line has two writers
      const auto at = [&](std::size_t i) {
        return smaller(lines * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(ranks) * 64, count);
      };
      for (const Part& part : meeting.parts) {
        sources.push_back(part.send.data + at(index) * size);
        targets.push_back(part.recv.data + at(index) * size);
      }
      sum(own.send.type, sources, targets, at(index + 1) - at(index));
      return;
    }
    case CollectiveKind::reducescatter:
      for (const Part& part : meeting.parts)
        sources.push_back(part.send.data + static_cast<std::int64_t>(index) * own.recv.bytes());
      targets.push_back(own.recv.data);
      sum(own.send.type, sources, targets, own.recv.rows * own.recv.cols);
      return;
    case CollectiveKind::allgather:
      for (std::size_t i = 0; i < ranks; ++i)
        copy_bytes(own.recv.data + static_cast<std::int64_t>(i) * own.send.bytes(),
                   meeting.parts[i].send.data, own.send.bytes());
      return;
    case CollectiveKind::alltoall:
      for (std::size_t i = 0; i < ranks; ++i) {
        const Part& from = meeting.parts[i];
        copy_bytes(own.recv.data + offset(own.step->recv_rows, i, own.recv.row_bytes()),
                   from.send.data + offset(from.step->send_rows, index, from.send.row_bytes()),
                   own.step->recv_rows[i] * own.recv.row_bytes());
      }
  }
}

}  // namespace shingle::host
