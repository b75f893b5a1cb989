// ring for ulysses-attention by copies between ranks (docs/mechanisms/attention.md).
//
// Copy engines, or stores of workers, take rows of a head group's columns from the user's matrices straight
// to where a peer attends to them. Results go straight to the columns of their owner. Where workers store,
// the attention itself does. So no pass packs or unpacks. Workers copy only own keys and values, and results
// for outputs that peers do not reach.
//
// Items and their order are those of ulysses.cpp. The keys and values of a group come ahead of its items, and
// each result leaves while the next item is computed.
//
// Two lanes compute items in turn. Workers that an item leaves idle at its end begin the next one: a block of
// queries over all keys takes up to some hundred us, so idle ends would cost more than what is hidden.
#include <set>
#include <utility>

#include "direct_copies.hpp"
#include "ulysses_cut.hpp"

namespace shingle::planner {
namespace {

/// Buffers and counters, the same on all ranks. Buffers have a row for each group and token. Peers' results
/// come to `returned` if they cannot reach the output.
struct Places {
  std::int32_t kv, queries;                ///< buffers; `kv`: K beside V, of all tokens
  std::int32_t attended = -1;              ///< buffer, for engines: results for other ranks
  std::int32_t returned;                   ///< buffer; or the output
  std::int32_t kv_arrived;                 ///< counter, by group and source
  std::int32_t kept;                       ///< counter, by group: the own keys and values are there
  std::int32_t q_arrived, result_arrived;  ///< counters, by item
  std::int32_t computed = -1;              ///< counter, by item, for engines
};

Places make_places(RingBuilder& build, const Cut& cut, std::int64_t items) {
  const Problem& p = build.problem();
  const CounterKind kind = DirectCopies::counts(build);
  Places s{};
  s.kv = build.buffer("kv", cut.groups * p.m, 2 * cut.kv);
  s.queries = build.buffer("queries", cut.groups * p.m, cut.q);
  s.returned = build.out;
  if (build.params().unregistered) {
    std::vector<std::int64_t> own;
    for (int r = 0; r < p.world; ++r) own.push_back(p.a_rows(r));
    s.returned = build.buffer("returned", std::move(own), p.k);
  }
  s.kv_arrived = build.counter("kv_arrived", cut.groups * p.world, kind);
  s.kept = build.counter("kept", cut.groups);
  s.q_arrived = build.counter("q_arrived", items, kind);
  s.result_arrived = build.counter("result_arrived", items, kind);
  if (by_stores(build)) return s;
  s.attended = build.buffer("attended", cut.groups * p.m, cut.q);
  s.computed = build.counter("computed", items);
  return s;
}

/// The plan of one rank.
class CopyingSide : UlyssesSide {
 public:
  CopyingSide(RingBuilder& build, const Cut& cut, const Places& places, DirectCopies& copies,
              const std::vector<Item>& items, int rank)
      : UlyssesSide(build, cut, items, rank), places_(places), copies_(copies) {
    lanes_[1].lane = build.lane(rank, LaneKind::compute, "compute 1");
  }

  void plan() {
    send_keys_and_values(0);
    for (std::int64_t t = 0; t < 2; ++t) send_queries(t);
    for (std::int64_t t = 0; t < count(); ++t) {
      if (begins_group(t)) {
        if (own_rows_ > 0) {
          keep_keys_and_values(places_.kv, at(t).group);
          build_.notify(rank_, compute_lane, places_.kept, at(t).group);
        }
        send_keys_and_values(at(t).group + 1);
      }
      send_queries(t + 2);
      compute(t);
      if (t >= 3) finish_result(t - 3);  // sent two items ago
    }
    for (std::int64_t t = larger(count() - 3, 0); t < count(); ++t) finish_result(t);
  }

 private:
  /// A compute lane, and the groups and sources whose keys and values it has awaited.
  struct Computing {
    std::int32_t lane = compute_lane;
    std::set<std::pair<std::int64_t, int>> here{};
  };

  /// Begins copies to a peer. Results take the first engine, so that inputs do not wait behind one that is
  /// not computed.
  std::int32_t begin_inputs(int peer) {
    const auto others = static_cast<std::int64_t>(copies_.lanes()) - 1;
    return copies_.begin(rank_, others > 0 ? 1 + turn_++ % others : 0, peer);
  }

  void send_keys_and_values(std::int64_t group) {
    if (group >= cut_.groups || own_rows_ == 0) return;
    for (int distance = 1; distance < build_.world(); ++distance) {
      const int peer = cut_.ahead(rank_, distance);
      const std::int32_t lane = begin_inputs(peer);
      const Slice to = tokens(places_.kv, peer, group, first_token(rank_), own_rows_);
      copies_.copy(rank_, lane, heads(build_.keys, rank_, peer, group, cut_.kv, 0, own_rows_), keys(to));
      copies_.copy(rank_, lane, heads(build_.values, rank_, peer, group, cut_.kv, 0, own_rows_), values(to));
      build_.notify_peer(rank_, lane, places_.kv_arrived, peer, group * build_.world() + rank_);
    }
  }

  void send_queries(std::int64_t t) {
    if (t >= count() || at(t).behind == 0) return;
    const Item& item = at(t);
    const std::int64_t rows = cut_.rows(rank_, item.piece);
    if (rows == 0) return;
    const int peer = cut_.ahead(rank_, item.behind);
    const std::int32_t lane = begin_inputs(peer);
    copies_.copy(rank_, lane, heads(build_.a, rank_, peer, item.group, cut_.q, cut_.begin(item.piece), rows),
                 tokens(places_.queries, peer, item.group, first_token(rank_, item.piece), rows));
    build_.notify_peer(rank_, lane, places_.q_arrived, peer, t);
  }

  /// Awaits K and V of the tokens that some queries see.
  void await_keys_and_values(Computing& on, std::int64_t group, const TokenRange& seen) {
    for (int source = 0; source < build_.world(); ++source) {
      const std::int64_t first = first_token(source), end = first + build_.problem().a_rows(source);
      if (end <= seen.first || seen.end <= first || !on.here.emplace(group, source).second) continue;
      if (source != rank_)
        build_.await(rank_, on.lane, places_.kv_arrived, group * build_.world() + source);
      else if (on.lane != compute_lane)
        build_.await(rank_, on.lane, places_.kept, group);
    }
  }

  void compute(std::int64_t t) {
    const Item& item = at(t);
    const int shard = cut_.behind(rank_, item.behind);
    const std::int64_t rows = cut_.rows(shard, item.piece);
    if (rows == 0) return;
    Computing& on = lanes_[t % 2];
    const std::int64_t first = first_token(shard, item.piece);
    await_keys_and_values(on, item.group, build_.problem().seen_by(first, rows));
    const Slice kv = tokens(places_.kv, rank_, item.group, 0, build_.problem().m);
    const auto attend = [&](const Slice& q, const Slice& to) {
      build_.step(rank_, on.lane, build_.attend(first, q, keys(kv), values(kv), to));
    };
    if (item.behind == 0) return attend(own(build_.a, item), own(build_.out, item));
    build_.await(rank_, on.lane, places_.q_arrived, t);
    const Slice q = tokens(places_.queries, rank_, item.group, first, rows);
    const Slice home =
        heads(places_.returned, shard, rank_, item.group, cut_.q, cut_.begin(item.piece), rows);
    if (by_stores(build_)) {
      copies_.await_begin(rank_, on.lane, shard);
      attend(q, home);
      return build_.notify_peer(rank_, on.lane, places_.result_arrived, shard, t);
    }
    const Slice attended = tokens(places_.attended, rank_, item.group, first, rows);
    attend(q, attended);
    build_.notify(rank_, on.lane, places_.computed, t);
    const std::int32_t engine = copies_.begin(rank_, 0, shard);
    build_.await(rank_, engine, places_.computed, t);
    copies_.copy(rank_, engine, attended, home);
    build_.notify_peer(rank_, engine, places_.result_arrived, shard, t);
  }

  /// Awaits a result for own queries, and stores it if its sender could not.
  void finish_result(std::int64_t t) {
    const Item& item = at(t);
    const std::int64_t rows = cut_.rows(rank_, item.piece);
    if (item.behind == 0 || rows == 0) return;
    build_.await(rank_, compute_lane, places_.result_arrived, t);
    if (places_.returned == build_.out) return;
    const auto part = [&](std::int32_t buffer) {
      return heads(buffer, rank_, cut_.ahead(rank_, item.behind), item.group, cut_.q, cut_.begin(item.piece),
                   rows);
    };
    copy(part(places_.returned), part(build_.out));
  }

  const Places& places_;
  DirectCopies& copies_;
  Computing lanes_[2];
  std::int64_t turn_ = 0;  ///< of the engines of inputs
};

}  // namespace

void ulysses_by_copies(RingBuilder& build) {
  const Cut cut(build);
  const std::vector<Item> items = cut.items();
  const Places places = make_places(build, cut, static_cast<std::int64_t>(items.size()));
  DirectCopies copies(build);
  for (int r = 0; r < build.world(); ++r) CopyingSide(build, cut, places, copies, items, r).plan();
}

}  // namespace shingle::planner
