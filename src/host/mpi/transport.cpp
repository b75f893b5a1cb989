#include "transport.hpp"

#ifdef SHINGLE_WITH_MPI
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "backend/neighbours.hpp"
#include "host/executor/diagnosis.hpp"
#include "shingle/base/error.hpp"

namespace shingle::host {
namespace {

/// Sleep between polls: while other ranks compute, and while data moves, which MPI does only inside its
/// calls.
constexpr double waiting_nap_us = 200, moving_nap_us = 20;

}  // namespace

MpiTransport::MpiTransport(Engine& engine, MpiProcess& process, MpiControl& control)
    : engine_(engine), process_(process), control_(control), rooms_(std::make_unique<std::deque<Room>>()) {
  std::map<std::vector<int>, int> same;
  for (const Communicator& communicator : engine.plan.communicators) {
    Room& room = rooms_->emplace_back();
    room.ranks = communicator.ranks;
    room.first_tag = process.channel(room.ranks, same[room.ranks]++);
    room.me = static_cast<std::size_t>(std::max(index_in(communicator, process.rank()), 0));
    room.sent.resize(room.ranks.size());
    room.received.resize(room.ranks.size());
  }
}

MpiTransport::~MpiTransport() {
  if (engine_.health().stopped()) (void)rooms_.release();  // messages may still arrive in its memory
}

void MpiTransport::begin_run() {
  MpiControl::hold_sigterm();
  control_.barrier(engine_.timeout_us);
}

void MpiTransport::end_run(RunReport& report) {
  report.elapsed_us = control_.all_max({report.elapsed_us}, engine_.timeout_us)[0];
  if (engine_.trace) report.spans = control_.gather(report.spans, engine_.timeout_us);
  MpiControl::release_sigterm();
}

void MpiTransport::begin_calls() {
  MpiControl::hold_sigterm();
}

void MpiTransport::require_same_call(const CallTag& tag) {
  const std::vector<CallTag> tags = control_.gather_one(tag, engine_.timeout_us, "the begin of a call");
  for (std::size_t rank = 0; rank < tags.size(); ++rank)
    if (tags[rank] != tag)
      throw InvalidArgument(
          fmt::format("call {} of rank {} is operator {} with m = {}; rank {} calls operator {} with m = {} "
                      "(its call {}): all ranks must make the same calls in the same order",
                      tag.number, process_.rank(), tag.op, tag.m, rank, tags[rank].op, tags[rank].m,
                      tags[rank].number),
          static_cast<int>(rank));
}

void MpiTransport::end_calls() {
  MpiControl::release_sigterm();
}

void MpiTransport::watch() {
  control_.watch([&] { return standing(engine_); });
}

void MpiTransport::abandon(const std::string& reason) {
  control_.tell(reason);
}

std::vector<int> MpiTransport::missing(std::int32_t communicator, int) {
  Room& room = (*rooms_)[static_cast<std::size_t>(communicator)];
  const std::lock_guard lock(room.mutex);
  const std::uint64_t pending = room.pending.load();
  std::vector<int> ranks;
  for (std::size_t i = 0; i < std::min<std::size_t>(room.awaited.size(), 64); ++i)
    if ((pending >> i & 1) != 0 && std::ranges::find(ranks, room.awaited[i]) == ranks.end())
      ranks.push_back(room.awaited[i]);
  return ranks;
}

void MpiTransport::await_ranks(Room& room, Requests& requests, std::vector<std::int32_t> ranks,
                               const Caller& caller, std::int32_t communicator) const {
  {
    const std::lock_guard lock(room.mutex);
    room.pending = ranks.size() >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << ranks.size()) - 1;
    room.awaited = std::move(ranks);
  }
  if (!requests.wait(engine_.health(), engine_.deadline(), waiting_nap_us, &room.pending)) {
    const auto late = const_cast<MpiTransport*>(this)->missing(communicator, caller.rank);
    throw Timeout(missing_ranks(engine_, caller, communicator, late), caller.rank);
  }
  room.pending = 0;
}

void MpiTransport::finish(Requests& requests, const Caller& caller) const {
  if (requests.wait(engine_.health(), engine_.deadline(), moving_nap_us)) return;
  const std::vector<int> late = requests.late();
  throw Timeout(fmt::format("{}: waited {} for data to or from rank{} {}, which came to the step{}",
                            describe(engine_, caller), format_us(engine_.timeout_us),
                            late.size() == 1 ? "" : "s", fmt::join(late, ", "), stopped_neighbours()),
                caller.rank);
}

void MpiTransport::collective(const Caller& caller, const Collective& step, const View& send,
                              const View& recv) {
  Room& room = (*rooms_)[static_cast<std::size_t>(step.communicator)];
  const Call call{caller, step, send, recv};
  if (const std::string reason = misfit(step, static_cast<int>(room.ranks.size()), send, recv);
      !reason.empty())
    throw InvalidArgument(describe(engine_, caller) + ": " + reason, caller.rank);
  meet(room, call);
  double bytes = 0;
  for (const Note& note : room.received) bytes = std::max(bytes, note.wire_bytes);
  const int own[] = {caller.rank};
  const auto now = Clock::now();
  const auto done = room.ranks.size() > 1 ? engine_.world->links.book(own, now, bytes) : now;
  switch (step.kind) {
    case CollectiveKind::allreduce:
      allreduce(room, call);
      break;
    case CollectiveKind::reducescatter:
      reducescatter(room, call);
      break;
    case CollectiveKind::allgather:
      allgather(room, call);
      break;
    case CollectiveKind::alltoall:
      alltoall(room, call);
      break;
  }
  sleep_until(done, engine_.health());
}

/// Every rank tells every other that it has come, and for which call.
void MpiTransport::meet(Room& room, const Call& call) {
  const std::size_t ranks = room.ranks.size();
  const double wire =
      wire_bytes(call.step, static_cast<int>(room.me), static_cast<int>(ranks), call.send, call.recv);
  for (std::size_t i = 0; i < ranks; ++i) {
    const std::int64_t bytes = call.step.kind == CollectiveKind::alltoall
                                   ? call.step.send_rows[i] * call.send.row_bytes()
                                   : call.send.bytes();
    room.sent[i] = {static_cast<std::int32_t>(call.step.kind),
                    static_cast<std::int32_t>(call.send.type),
                    call.caller.lane,
                    call.caller.step,
                    call.caller.epoch,
                    0,
                    bytes,
                    wire};
  }
  room.received[room.me] = room.sent[room.me];
  Requests requests;
  for (std::size_t i = 0; i < ranks; ++i) {
    const int peer = room.ranks[i];
    MPI_Request* request = requests.add(peer);  // the i-th, even if nothing is received
    if (i != room.me)
      mpi("MPI_Irecv", MPI_Irecv, &room.received[i], sizeof(Note), MPI_BYTE, peer, tag(room, Tag::note),
          process_.comm(), request);
  }
  for (std::size_t i = 0; i < ranks; ++i)
    if (i != room.me)
      mpi("MPI_Isend", MPI_Isend, &room.sent[i], sizeof(Note), MPI_BYTE, room.ranks[i], tag(room, Tag::note),
          process_.comm(), requests.add(room.ranks[i]));
  auto others = room.ranks;
  await_ranks(room, requests, std::move(others), call.caller, call.step.communicator);
  require_agreement(room, call);
}

/// Throws InvalidArgument if another rank's call is not the same collective.
void MpiTransport::require_agreement(const Room& room, const Call& call) const {
  const Note& own = room.received[room.me];
  for (std::size_t i = 0; i < room.ranks.size(); ++i) {
    const Note& other = room.received[i];
    const auto fail = [&](const std::string& what) {
      const Caller peer{room.ranks[i], other.lane, other.step, other.epoch};
      throw InvalidArgument(
          fmt::format("{}: {} at {}", describe(engine_, call.caller), what, describe(engine_, peer)),
          call.caller.rank);
    };
    if (other.kind != own.kind || other.type != own.type)
      fail(fmt::format("{} of {} meets {} of {}", name(call.step.kind), name(call.send.type),
                       name(static_cast<CollectiveKind>(other.kind)), name(static_cast<DType>(other.type))));
    const bool alltoall = call.step.kind == CollectiveKind::alltoall;
    const std::int64_t expected = alltoall ? call.step.recv_rows[i] * call.recv.row_bytes() : own.bytes;
    if (other.bytes != expected)
      fail(alltoall ? fmt::format("expects {} bytes where {} are sent", expected, other.bytes)
                    : fmt::format("sends {} bytes where {} are sent", expected, other.bytes));
  }
}

void MpiTransport::exchange(const Caller& caller, const Exchange& step, std::span<const View> sends,
                            std::span<const View> receives) {
  Room& room = (*rooms_)[static_cast<std::size_t>(step.communicator)];
  const auto shape_of = [](const View& view) {
    MPI_Datatype row = MPI_DATATYPE_NULL, rows = MPI_DATATYPE_NULL;
    mpi("MPI_Type_contiguous", MPI_Type_contiguous, static_cast<int>(view.cols), mpi_type(view.type), &row);
    mpi("MPI_Type_create_hvector", MPI_Type_create_hvector, static_cast<int>(view.rows), 1,
        view.ld * static_cast<MPI_Aint>(size_bytes(view.type)), row, &rows);
    mpi("MPI_Type_commit", MPI_Type_commit, &rows);
    mpi("MPI_Type_free", MPI_Type_free, &row);
    return rows;
  };
  Requests requests;
  std::vector<std::int32_t> peers;
  std::int64_t sent = 0, received = 0;
  const auto post = [&](bool sending, const Exchange::Message& message, const View& view) {
    MPI_Datatype shape = shape_of(view);
    mpi(sending ? "MPI_Isend" : "MPI_Irecv", [&] {
      return sending ? MPI_Isend(view.data, 1, shape, message.peer, tag(room, Tag::exchange), process_.comm(),
                                 requests.add(message.peer))
                     : MPI_Irecv(view.data, 1, shape, message.peer, tag(room, Tag::exchange), process_.comm(),
                                 requests.add(message.peer));
    });
    mpi("MPI_Type_free", MPI_Type_free, &shape);  // MPI keeps the type until the message is done
    peers.push_back(message.peer);
    if (message.peer != caller.rank) (sending ? sent : received) += view.bytes();
  };
  for (std::size_t i = 0; i < receives.size(); ++i) post(false, step.receives[i], receives[i]);
  for (std::size_t i = 0; i < sends.size(); ++i) post(true, step.sends[i], sends[i]);
  await_ranks(room, requests, std::move(peers), caller, step.communicator);
  if (sent + received == 0) return;
  // The peers' arrival times are unknown, so the link's time starts when the messages are through.
  const int own[] = {caller.rank};
  sleep_until(engine_.world->links.book(own, Clock::now(), static_cast<double>(std::max(sent, received))),
              engine_.health());
}

}  // namespace shingle::host
#endif
