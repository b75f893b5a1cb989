#include "planner/common/pools.hpp"
#include "sequential.hpp"

namespace shingle::planner {
namespace {

/// Copies the first `rows` rows of one matrix to another, with workers.
void copy_rows(Builder& build, int rank, std::int32_t from, std::int32_t to, std::int64_t rows) {
  if (rows == 0) return;
  Elementwise pass;
  pass.grid = build.row_blocks(rows, build.problem().n);
  pass.from.push_back(Builder::in_place(build.rows(from, rank, 0, rows)));
  pass.to = Builder::in_place(build.rows(to, rank, 0, rows));
  build.step(rank, compute_lane, std::move(pass));
}

/// Buffers of equal parts for a collective. They are the user's matrices if these have the required shape.
class EqualParts {
 public:
  EqualParts(Builder& build, std::int64_t send_rows, std::int64_t recv_rows)
      : send_(build.a),
        recv_(build.out),
        first_(build.problem().a_rows(0) != send_rows || !even(build)),
        last_(build.problem().out_rows(0) != recv_rows || !even(build) || build.needs_finishing()) {
    if (first_)
      send_ = build.buffer("padded", send_rows, build.problem().n), ready_ = build.counter("padded", 1);
    if (last_)
      recv_ = build.buffer("received", recv_rows, build.problem().n), arrived_ = build.counter("received", 1);
  }

  void call(Builder& build, int rank, CollectiveKind kind) const {
    if (first_) {
      copy_rows(build, rank, build.a, send_, build.problem().a_rows(rank));
      hand_over(build, rank, ready_, compute_lane, communicate_lane);
    }
    build.collective(rank, kind, build.all(send_, rank), build.all(recv_, rank));
    if (last_) {
      hand_over(build, rank, arrived_, communicate_lane, compute_lane);
      finish_rows(build, rank, recv_, build.problem().out_rows(rank));
    }
  }

 private:
  static bool even(const Builder& build) { return build.problem().m % build.world() == 0; }

  std::int32_t send_, recv_, ready_ = -1, arrived_ = -1;
  bool first_, last_;
};

void exchange_rows(Builder& build) {
  const Routing& routing = *build.problem().routing;
  std::vector<std::int64_t> sent;
  for (int r = 0; r < build.world(); ++r) sent.push_back(routing.rows(r));
  const std::int32_t packed = build.buffer("packed", sent, build.problem().n);
  const std::int32_t ready = build.counter("packed", 1);
  for (int r = 0; r < build.world(); ++r) {
    build.step(r, compute_lane,
               pack(routing, r, build.row_blocks(sent[r], build.problem().n),
                    Builder::in_place(build.all(build.a, r)), build.all(packed, r)));
    hand_over(build, r, ready, compute_lane, communicate_lane);
    std::vector<std::int64_t> send_rows, recv_rows;
    for (int peer = 0; peer < build.world(); ++peer) {
      send_rows.push_back(routing.count(r, peer));
      recv_rows.push_back(routing.count(peer, r));
    }
    build.collective(r, CollectiveKind::alltoall, build.all(packed, r), build.all(build.out, r), send_rows,
                     recv_rows);
  }
}

}  // namespace

void call_library(Builder& build) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows(), all = p.world * shard;
  if (p.traits().routes()) return exchange_rows(build);
  if (p.traits().reduces() && !p.traits().scatters()) {
    const bool finishes = build.needs_finishing();
    const std::int32_t sums = finishes ? build.buffer("sums", p.m, p.n) : build.out;
    const std::int32_t received = finishes ? build.counter("received", 1) : -1;
    for (int r = 0; r < build.ranks(); ++r) {
      build.collective(r, CollectiveKind::allreduce, build.all(build.a, r), build.all(sums, r));
      if (!finishes) continue;
      hand_over(build, r, received, communicate_lane, compute_lane);
      finish_rows(build, r, sums, p.m);
    }
    return;
  }
  const bool gather = p.traits().gathers();
  const EqualParts parts(build, gather ? shard : all, gather ? all : shard);
  for (int r = 0; r < build.ranks(); ++r)
    parts.call(build, r, gather ? CollectiveKind::allgather : CollectiveKind::reducescatter);
}

}  // namespace shingle::planner
