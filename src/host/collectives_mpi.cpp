// The data of collectives between processes. What is only moved, MPI's collectives move. What is summed is
// exchanged and summed here in rank order in fp32 and rounded once, so that the result has the same bits on
// all ranks, in all runs and in the world of threads.
#include "transport_mpi.hpp"

#ifdef SHINGLE_WITH_MPI
#include <algorithm>
#include <numeric>

#include "vector.hpp"

namespace shingle::host {
namespace {

constexpr int part_tag = 3, sum_tag = 4;

/// A row of a view as one element, so that MPI's int counts are counts of rows.
class RowType {
 public:
  explicit RowType(const View& view) {
    mpi("MPI_Type_contiguous", MPI_Type_contiguous, static_cast<int>(view.cols), mpi_type(view.type), &type_);
    mpi("MPI_Type_commit", MPI_Type_commit, &type_);
  }
  ~RowType() { mpi("MPI_Type_free", MPI_Type_free, &type_); }
  RowType(const RowType&) = delete;
  RowType& operator=(const RowType&) = delete;
  operator MPI_Datatype() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// Elements to or from a peer, in messages whose count is an int.
struct Messages {
  MPI_Comm comm;
  DType type;
  Requests& requests;

  void send(const std::byte* from, std::int64_t count, std::size_t peer, int tag) {
    in_pieces(count, [&](std::int64_t first, int n) {
      mpi("MPI_Isend", MPI_Isend, from + first * size(), n, mpi_type(type), static_cast<int>(peer), tag, comm,
          requests.add());
    });
  }
  void receive(std::byte* to, std::int64_t count, std::size_t peer, int tag) {
    in_pieces(count, [&](std::int64_t first, int n) {
      mpi("MPI_Irecv", MPI_Irecv, to + first * size(), n, mpi_type(type), static_cast<int>(peer), tag, comm,
          requests.add());
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

std::vector<int> counts_of(const std::vector<std::int64_t>& rows) {
  return {rows.begin(), rows.end()};
}

std::vector<int> firsts_of(const std::vector<int>& counts) {
  std::vector<int> firsts(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), firsts.begin(), 0);
  return firsts;
}

}  // namespace

/// In two halves: each rank sums one part for all, then all receive the sums.
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
  Messages exchange{room.comm, call.send.type, halves[0]}, sums{room.comm, call.send.type, halves[1]};
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < ranks; ++i) {
    std::byte* to = parts + static_cast<std::int64_t>(i) * part(me) * size;
    sources.push_back(i == me ? call.send.data + first(me) * size : to);
    if (i != me) exchange.receive(to, part(me), i, part_tag);
  }
  for (std::size_t i = 0; i < ranks; ++i)
    if (i != me) exchange.send(call.send.data + first(i) * size, part(i), i, part_tag);
  finish(halves[0], call.caller);

  std::byte* const target[] = {call.recv.data + first(me) * size};
  sum(call.send.type, sources, target, part(me));
  for (std::size_t i = 0; i < ranks; ++i)
    if (i != me) sums.receive(call.recv.data + first(i) * size, part(i), i, sum_tag);
  for (std::size_t i = 0; i < ranks; ++i)
    if (i != me) sums.send(target[0], part(me), i, sum_tag);
  finish(halves[1], call.caller);
}

void MpiTransport::reducescatter(Room& room, const Call& call) const {
  const std::int64_t count = call.recv.rows * call.recv.cols;
  std::byte* parts = room.scratch.reserve(static_cast<std::int64_t>(room.ranks.size()) * call.recv.bytes());
  Requests requests;
  Messages messages{room.comm, call.send.type, requests};
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < room.ranks.size(); ++i) {
    std::byte* to = parts + static_cast<std::int64_t>(i) * call.recv.bytes();
    sources.push_back(i == room.me ? call.send.data + static_cast<std::int64_t>(i) * call.recv.bytes() : to);
    if (i != room.me) messages.receive(to, count, i, part_tag);
  }
  for (std::size_t i = 0; i < room.ranks.size(); ++i)
    if (i != room.me)
      messages.send(call.send.data + static_cast<std::int64_t>(i) * call.recv.bytes(), count, i, part_tag);
  finish(requests, call.caller);
  std::byte* const target[] = {call.recv.data};
  sum(call.send.type, sources, target, count);
}

void MpiTransport::allgather(const Room& room, const Call& call) const {
  if (call.recv.bytes() == 0) return;
  const RowType send_row(call.send), recv_row(call.recv);
  const bool in_place =
      call.send.data == call.recv.data + static_cast<std::int64_t>(room.me) * call.send.bytes();
  const auto rows = static_cast<int>(call.recv.rows / static_cast<std::int64_t>(room.ranks.size()));
  Requests requests;
  mpi("MPI_Iallgather", MPI_Iallgather, in_place ? MPI_IN_PLACE : call.send.data,
      static_cast<int>(call.send.rows), send_row, call.recv.data, rows, recv_row, room.comm, requests.add());
  finish(requests, call.caller);
}

void MpiTransport::alltoall(const Room& room, const Call& call) const {
  const RowType send_row(call.send), recv_row(call.recv);
  struct Counts {
    std::vector<int> sends, send_first, receives, recv_first;
  };
  const auto sends = counts_of(call.step.send_rows), receives = counts_of(call.step.recv_rows);
  Lent<Counts> counts({sends, firsts_of(sends), receives, firsts_of(receives)});
  Requests requests;
  mpi("MPI_Ialltoallv", MPI_Ialltoallv, call.send.data, counts->sends.data(), counts->send_first.data(),
      send_row, call.recv.data, counts->receives.data(), counts->recv_first.data(), recv_row, room.comm,
      requests.add());
  finish(requests, call.caller);
}

}  // namespace shingle::host
#endif
