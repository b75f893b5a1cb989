// sequential for attention-backward: all-gathers of K and of V, the backward of own queries, all-to-alls of
// the parts of the gradients of K and V to their owners, and sums in rank order.
//
// Only rows that a query of the sender sees travel.
#include "planner/common/gradient_sums.hpp"
#include "sequential.hpp"

namespace shingle::planner {
namespace {

std::int64_t rows_in(const std::vector<TokenRange>& ranges) {
  std::int64_t rows = 0;
  for (const TokenRange& one : ranges) rows += one.count();
  return rows;
}

/// The tokens of an owner whose keys a rank sees, in the order of the owner's rows.
std::vector<TokenRange> returned(const Problem& p, int rank, int owner) {
  std::vector<TokenRange> all;
  for (const GlobalRun& run : p.a_runs(owner))
    for (const TokenRange& seen : seen_from(p, rank, {run.global_row, run.global_row + run.rows}))
      all.push_back(seen);
  return all;
}

/// Rows of parts that ranks exchange: counts[rank][owner].
std::vector<std::vector<std::int64_t>> rows_returned(const Problem& p) {
  std::vector<std::vector<std::int64_t>> counts(static_cast<std::size_t>(p.world));
  for (int rank = 0; rank < p.world; ++rank)
    for (int owner = 0; owner < p.world; ++owner)
      counts[static_cast<std::size_t>(rank)].push_back(rows_in(returned(p, rank, owner)));
  return counts;
}

/// The way of a gradient of K or V to its owners: buffers.
struct WayBack {
  std::int32_t result;    ///< the user's
  std::int32_t computed;  ///< parts by each run of own queries
  std::int32_t sent;      ///< their sum, by owner; the same as `computed` if shards are consecutive tokens
  std::int32_t received;  ///< parts of all ranks, by rank
};

class ReturnedGradients {
 public:
  explicit ReturnedGradients(Builder& build)
      : build_(build), p_(build.problem()), counts_(rows_returned(p_)) {
    std::vector<std::int64_t> computed, sent, received;
    for (int rank = 0; rank < p_.world; ++rank) {
      computed.push_back(0);
      for (const GlobalRun& run : p_.a_runs(rank))
        computed.back() += p_.seen_by(run.global_row, run.rows).count();
      sent.push_back(0), received.push_back(0);
      for (int other = 0; other < p_.world; ++other)
        sent.back() += count(rank, other), received.back() += count(other, rank);
    }
    const auto make = [&](std::int32_t result, const std::string& name) {
      WayBack way{result, build.buffer(name + "_parts", computed, p_.kv_cols()), -1, -1};
      way.sent = direct() ? way.computed : build.buffer(name + "_sent", sent, p_.kv_cols());
      way.received = build.buffer(name + "_received", received, p_.kv_cols());
      return way;
    };
    ways_[0] = make(build.keys_grad, "keys_grad");
    ways_[1] = make(build.values_grad, "values_grad");
  }

  /// Backward of the rank's queries.
  void compute(int rank, const KeysOfAll& all) {
    std::int64_t row = 0;
    for (const GlobalRun& run : p_.a_runs(rank)) {
      const TokenRange seen = p_.seen_by(run.global_row, run.rows);
      const auto keys = [&](std::int32_t buffer) {
        return build_.rows(buffer, rank, seen.first, seen.count());
      };
      const auto part = [&](const WayBack& way) {
        return build_.rows(way.computed, rank, row, seen.count());
      };
      build_.step(rank, compute_lane,
                  build_.attend_backward(rank, run, seen.first, keys(all.keys), keys(all.values),
                                         {build_.rows(build_.out, rank, run.local_row, run.rows),
                                          part(ways_[0]), part(ways_[1])}));
      row += seen.count();
    }
    for (const WayBack& way : ways_)
      if (!direct()) pack(rank, way);
  }

  void send(int rank) {
    std::vector<std::int64_t> received;
    for (int other = 0; other < p_.world; ++other) received.push_back(count(other, rank));
    for (const WayBack& way : ways_)
      build_.collective(rank, CollectiveKind::alltoall, build_.all(way.sent, rank),
                        build_.all(way.received, rank), counts_[static_cast<std::size_t>(rank)], received);
  }

  void sum(int rank) {
    for (const WayBack& way : ways_) {
      std::vector<TokenRows> parts;
      std::int64_t row = 0;
      for (int other = 0; other < p_.world; ++other)
        for (const TokenRange& seen : returned(p_, other, rank)) {
          parts.push_back({seen, build_.rows(way.received, rank, row, seen.count())});
          row += seen.count();
        }
      for (const GlobalRun& run : p_.a_runs(rank))
        sum_parts(build_, rank, parts,
                  {{run.global_row, run.global_row + run.rows},
                   build_.rows(way.result, rank, run.local_row, run.rows)});
    }
  }

 private:
  std::int64_t count(int rank, int owner) const {
    return counts_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(owner)];
  }
  bool direct() const { return p_.row_order == RowOrder::contiguous; }

  /// Sums the parts of the runs of queries, in the order of the owners' rows.
  void pack(int rank, const WayBack& way) {
    std::vector<TokenRows> parts;
    std::int64_t row = 0;
    for (const GlobalRun& run : p_.a_runs(rank)) {
      const TokenRange seen = p_.seen_by(run.global_row, run.rows);
      parts.push_back({seen, build_.rows(way.computed, rank, row, seen.count())});
      row += seen.count();
    }
    row = 0;
    for (int owner = 0; owner < p_.world; ++owner)
      for (const TokenRange& seen : returned(p_, rank, owner)) {
        sum_parts(build_, rank, parts, {seen, build_.rows(way.sent, rank, row, seen.count())});
        row += seen.count();
      }
  }

  Builder& build_;
  const Problem& p_;
  std::vector<std::vector<std::int64_t>> counts_;  // [rank][owner]: rows
  WayBack ways_[2];                                // of K and of V
};

}  // namespace

void attend_backward_in_sequence(Builder& build) {
  const Problem& p = build.problem();
  if (p.world == 1)
    return build.step(
        0, compute_lane,
        build.attend_backward(
            0, {0, 0, p.m}, 0, build.all(build.keys, 0), build.all(build.values, 0),
            {build.all(build.out, 0), build.all(build.keys_grad, 0), build.all(build.values_grad, 0)}));
  const KeysOfAll all = all_gather_keys(build);
  ReturnedGradients gradients(build);
  const std::int32_t computed = build.counter("computed", 1), returned = build.counter("returned", 1);
  for (int r = 0; r < p.world; ++r) {
    gradients.compute(r, all);
    hand_over(build, r, computed, compute_lane, communicate_lane);
    gradients.send(r);
    hand_over(build, r, returned, communicate_lane, compute_lane);
    gradients.sum(r);
  }
}

}  // namespace shingle::planner
