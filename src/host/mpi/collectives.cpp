// The data of collectives between processes: point-to-point messages between each two ranks, so that errors
// can name a late rank. Sums are computed here, in fp32 in rank order, and rounded once. The result therefore
// has the same bits on all ranks, in all runs and in the thread world.
#include "transport.hpp"

#ifdef SHINGLE_WITH_MPI
#include <algorithm>
#include <cstring>

#include "host/compute/vector.hpp"

namespace shingle::host {
namespace {

/// Elements to or from a peer, split into messages whose count fits an int.
struct Messages {
  MPI_Comm comm;
  int tag;
  DType type;
  Requests& requests;

  void send(const std::byte* from, std::int64_t count, int peer) {
    in_pieces(count, [&](std::int64_t first, int n) {
      mpi("MPI_Isend", MPI_Isend, from + first * size(), n, mpi_type(type), peer, tag, comm,
          requests.add(peer));
    });
  }
  void receive(std::byte* to, std::int64_t count, int peer) {
    in_pieces(count, [&](std::int64_t first, int n) {
      mpi("MPI_Irecv", MPI_Irecv, to + first * size(), n, mpi_type(type), peer, tag, comm,
          requests.add(peer));
    });
  }

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(size_bytes(type)); }
  template <class Post>
  static void in_pieces(std::int64_t count, Post post) {
    constexpr std::int64_t most = std::int64_t{1} << 30;
    for (std::int64_t first = 0; first < count; first += most)
      post(first, static_cast<int>(std::min(count - first, most)));
  }
};

void keep_own(const std::byte* from, std::byte* to, std::int64_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

/// Two phases: each rank sums one part for all ranks, then every rank receives the other parts' sums.
void MpiTransport::allreduce(Room& room, const Call& call) const {
  const std::size_t ranks = room.ranks.size(), me = room.me;
  const auto size = static_cast<std::int64_t>(size_bytes(call.send.type));
  const std::int64_t count = call.send.rows * call.send.cols;
  const auto first = [&](std::size_t i) {
    return count * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(ranks);
  };
  const auto part = [&](std::size_t i) { return first(i + 1) - first(i); };
  std::byte* parts = room.scratch.reserve(static_cast<std::int64_t>(ranks) * part(me) * size);
  Requests halves[2];
  Messages exchange{process_.comm(), tag(room, Tag::part), call.send.type, halves[0]},
      sums{process_.comm(), tag(room, Tag::sum), call.send.type, halves[1]};
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < ranks; ++i) {
    std::byte* to = parts + static_cast<std::int64_t>(i) * part(me) * size;
    sources.push_back(i == me ? call.send.data + first(me) * size : to);
    if (i != me) exchange.receive(to, part(me), room.ranks[i]);
  }
  for (std::size_t i = 0; i < ranks; ++i)
    if (i != me) exchange.send(call.send.data + first(i) * size, part(i), room.ranks[i]);
  finish(halves[0], call.caller);

  std::byte* const target[] = {call.recv.data + first(me) * size};
  sum(call.send.type, sources, target, part(me));
  for (std::size_t i = 0; i < ranks; ++i)
    if (i != me) sums.receive(call.recv.data + first(i) * size, part(i), room.ranks[i]);
  for (std::size_t i = 0; i < ranks; ++i)
    if (i != me) sums.send(target[0], part(me), room.ranks[i]);
  finish(halves[1], call.caller);
}

void MpiTransport::reducescatter(Room& room, const Call& call) const {
  const std::int64_t count = call.recv.rows * call.recv.cols;
  std::byte* parts = room.scratch.reserve(static_cast<std::int64_t>(room.ranks.size()) * call.recv.bytes());
  Requests requests;
  Messages messages{process_.comm(), tag(room, Tag::part), call.send.type, requests};
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < room.ranks.size(); ++i) {
    std::byte* to = parts + static_cast<std::int64_t>(i) * call.recv.bytes();
    sources.push_back(i == room.me ? call.send.data + static_cast<std::int64_t>(i) * call.recv.bytes() : to);
    if (i != room.me) messages.receive(to, count, room.ranks[i]);
  }
  for (std::size_t i = 0; i < room.ranks.size(); ++i)
    if (i != room.me)
      messages.send(call.send.data + static_cast<std::int64_t>(i) * call.recv.bytes(), count, room.ranks[i]);
  finish(requests, call.caller);
  std::byte* const target[] = {call.recv.data};
  sum(call.send.type, sources, target, count);
}

void MpiTransport::allgather(Room& room, const Call& call) const {
  const std::int64_t count = call.send.rows * call.send.cols;
  const auto place = [&](std::size_t i) {
    return call.recv.data + static_cast<std::int64_t>(i) * call.send.bytes();
  };
  Requests requests;
  Messages messages{process_.comm(), tag(room, Tag::part), call.send.type, requests};
  for (std::size_t i = 0; i < room.ranks.size(); ++i)
    if (i != room.me) messages.receive(place(i), count, room.ranks[i]);
  for (std::size_t i = 0; i < room.ranks.size(); ++i)
    if (i != room.me) messages.send(call.send.data, count, room.ranks[i]);
  keep_own(call.send.data, place(room.me), call.send.bytes());
  finish(requests, call.caller);
}

void MpiTransport::alltoall(Room& room, const Call& call) const {
  Requests requests;
  Messages messages{process_.comm(), tag(room, Tag::part), call.send.type, requests};
  std::byte* to = call.recv.data;
  std::byte* own_to = nullptr;
  for (std::size_t i = 0; i < room.ranks.size(); ++i) {
    const std::int64_t rows = call.step.recv_rows[i];
    if (i == room.me)
      own_to = to;
    else
      messages.receive(to, rows * call.recv.cols, room.ranks[i]);
    to += rows * call.recv.row_bytes();
  }
  const std::byte* from = call.send.data;
  for (std::size_t i = 0; i < room.ranks.size(); ++i) {
    const std::int64_t rows = call.step.send_rows[i];
    if (i == room.me)
      keep_own(from, own_to, rows * call.send.row_bytes());
    else
      messages.send(from, rows * call.send.cols, room.ranks[i]);
    from += rows * call.send.row_bytes();
  }
  finish(requests, call.caller);
}

}  // namespace shingle::host
#endif
