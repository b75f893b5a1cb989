// ring for ulysses-attention by copy engines (docs/mechanisms/attention.md).
//
// Engines copy rows of a head group's columns from the user's matrices straight to where a peer attends to
// them, and results straight to the columns of their owner. So no pass packs or unpacks. Workers copy only
// own keys and values, and results for outputs that peers do not reach. Items and their order are those of
// ulysses.cpp. The keys and values of a group come ahead of its items, and each result leaves while the next
// item is computed.
//
// Two lanes compute items in turn. Workers that an item leaves idle at its end begin the next one: a block of
// queries over all keys takes up to some hundred us, so idle ends would cost more than what is hidden.
#include <fmt/format.h>

#include <set>
#include <utility>

#include "planner/common/handshake.hpp"
#include "ring.hpp"
#include "ulysses_cut.hpp"

namespace shingle::planner {
namespace {

/// Buffers and counters, the same on all ranks. Buffers have a row for each token, and the columns of all
/// groups. Peers' results come to `returned` if they cannot reach the output.
struct Places {
  std::int32_t keys, values, queries, attended;
  std::int32_t returned;                             ///< buffer; or the output
  std::int32_t kv_arrived;                           ///< counter, by group and source
  std::int32_t kept;                                 ///< counter, by group: the own keys and values are there
  std::int32_t q_arrived, computed, result_arrived;  ///< counters, by item
};

Places make_places(RingBuilder& build, const Cut& cut, std::int64_t items) {
  const Problem& p = build.problem();
  Places s{};
  s.keys = build.buffer("keys_of_all", p.m, cut.groups * cut.kv);
  s.values = build.buffer("values_of_all", p.m, cut.groups * cut.kv);
  s.queries = build.buffer("queries", p.m, cut.groups * cut.q);
  s.attended = build.buffer("attended", p.m, cut.groups * cut.q);
  s.returned = build.out;
  if (build.params().unregistered) {
    std::vector<std::int64_t> own;
    for (int r = 0; r < p.world; ++r) own.push_back(p.a_rows(r));
    s.returned = build.buffer("returned", std::move(own), p.k);
  }
  s.kv_arrived = build.counter("kv_arrived", cut.groups * p.world, CounterKind::set);
  s.kept = build.counter("kept", cut.groups);
  s.q_arrived = build.counter("q_arrived", items, CounterKind::set);
  s.computed = build.counter("computed", items);
  s.result_arrived = build.counter("result_arrived", items, CounterKind::set);
  return s;
}

/// The plan of one rank.
class EngineSide {
 public:
  EngineSide(RingBuilder& build, const Cut& cut, const Places& places, const Handshake& handshake,
             const std::vector<Item>& items, int rank)
      : build_(build),
        cut_(cut),
        places_(places),
        handshake_(handshake),
        items_(items),
        rank_(rank),
        own_rows_(build.problem().a_rows(rank)) {
    lanes_[1].lane = build.lane(rank, LaneKind::compute, "compute 1");
    for (std::int32_t e = 0; e < build.params().engines; ++e)
      engines_.push_back({build.lane(rank, LaneKind::copy, fmt::format("engine {}", e)), {}});
  }

  void plan() {
    const auto count = static_cast<std::int64_t>(items_.size());
    send_keys_and_values(0);
    for (std::int64_t t = 0; t < 2; ++t) send_queries(t);
    for (std::int64_t t = 0; t < count; ++t) {
      if (t == 0 || at(t).group != at(t - 1).group) {
        keep_keys_and_values(at(t).group);
        send_keys_and_values(at(t).group + 1);
      }
      send_queries(t + 2);
      compute(t);
      send_result(t);
      if (t >= 3) finish_result(t - 3);  // sent two items ago
    }
    for (std::int64_t t = larger(count - 3, 0); t < count; ++t) finish_result(t);
  }

 private:
  /// A copy lane, and the ranks that it knows to have begun.
  struct Engine {
    std::int32_t lane;
    std::set<int> begun;
  };

  /// A compute lane, and the groups and sources whose keys and values it has awaited.
  struct Computing {
    std::int32_t lane = compute_lane;
    std::set<std::pair<std::int64_t, int>> here{};
  };

  const Item& at(std::int64_t t) const { return items_[static_cast<std::size_t>(t)]; }
  bool is_item(std::int64_t t) const { return t < static_cast<std::int64_t>(items_.size()); }
  std::int64_t first_token(int shard, std::int64_t piece = 0) const {
    return shard * build_.problem().shard_rows() + cut_.begin(piece);
  }
  /// A group's columns of some tokens, in a rank's buffer of all tokens.
  Slice tokens(std::int32_t buffer, int rank, std::int64_t group, std::int64_t cols, std::int64_t first,
               std::int64_t rows) const {
    return columns(build_.rows(buffer, rank, first, rows), group * cols, cols);
  }
  /// The columns that rank `by` attends to in a group, of some rows of the user's matrix on rank `of`.
  Slice heads(std::int32_t buffer, int of, int by, std::int64_t group, std::int64_t cols, std::int64_t first,
              std::int64_t rows) const {
    return columns(build_.rows(buffer, of, first, rows), (group * build_.world() + by) * cols, cols);
  }

  /// Results take the first engine, so that copies of inputs do not wait behind one that is not computed.
  Engine& engine(bool inputs) {
    const std::size_t of_inputs = engines_.size() - 1;
    return engines_[inputs && of_inputs > 0 ? 1 + turn_++ % of_inputs : 0];
  }
  void begin_batch(Engine& on, int peer) {
    if (!on.begun.empty()) build_.ring_doorbell(rank_, on.lane);
    if (on.begun.insert(peer).second) handshake_.await(build_, rank_, on.lane, peer);
  }

  void send_keys_and_values(std::int64_t group) {
    if (group >= cut_.groups || own_rows_ == 0) return;
    const std::int64_t first = first_token(rank_);
    for (int distance = 1; distance < build_.world(); ++distance) {
      const int peer = cut_.ahead(rank_, distance);
      Engine& on = engine(true);
      begin_batch(on, peer);
      build_.step(rank_, on.lane,
                  Copy{heads(build_.keys, rank_, peer, group, cut_.kv, 0, own_rows_),
                       tokens(places_.keys, peer, group, cut_.kv, first, own_rows_)});
      build_.step(rank_, on.lane,
                  Copy{heads(build_.values, rank_, peer, group, cut_.kv, 0, own_rows_),
                       tokens(places_.values, peer, group, cut_.kv, first, own_rows_)});
      build_.notify_peer(rank_, on.lane, places_.kv_arrived, peer, group * build_.world() + rank_);
    }
  }

  void send_queries(std::int64_t t) {
    if (!is_item(t) || at(t).behind == 0) return;
    const Item& item = at(t);
    const std::int64_t rows = cut_.rows(rank_, item.piece);
    if (rows == 0) return;
    const int peer = cut_.ahead(rank_, item.behind);
    Engine& on = engine(true);
    begin_batch(on, peer);
    build_.step(
        rank_, on.lane,
        Copy{heads(build_.a, rank_, peer, item.group, cut_.q, cut_.begin(item.piece), rows),
             tokens(places_.queries, peer, item.group, cut_.q, first_token(rank_, item.piece), rows)});
    build_.notify_peer(rank_, on.lane, places_.q_arrived, peer, t);
  }

  void send_result(std::int64_t t) {
    const Item& item = at(t);
    const int owner = cut_.behind(rank_, item.behind);
    const std::int64_t rows = cut_.rows(owner, item.piece);
    if (item.behind == 0 || rows == 0) return;
    Engine& on = engine(false);
    begin_batch(on, owner);
    build_.await(rank_, on.lane, places_.computed, t);
    build_.step(
        rank_, on.lane,
        Copy{tokens(places_.attended, rank_, item.group, cut_.q, first_token(owner, item.piece), rows),
             heads(places_.returned, owner, rank_, item.group, cut_.q, cut_.begin(item.piece), rows)});
    build_.notify_peer(rank_, on.lane, places_.result_arrived, owner, t);
  }

  void copy(const Slice& from, const Slice& to) { build_.step(rank_, compute_lane, build_.copy(from, to)); }

  /// The own tokens' part of a group.
  void keep_keys_and_values(std::int64_t group) {
    if (own_rows_ == 0) return;
    const std::int64_t first = first_token(rank_);
    copy(heads(build_.keys, rank_, rank_, group, cut_.kv, 0, own_rows_),
         tokens(places_.keys, rank_, group, cut_.kv, first, own_rows_));
    copy(heads(build_.values, rank_, rank_, group, cut_.kv, 0, own_rows_),
         tokens(places_.values, rank_, group, cut_.kv, first, own_rows_));
    build_.notify(rank_, compute_lane, places_.kept, group);
  }

  /// Of the tokens that some queries see.
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
    const std::int64_t rows = cut_.rows(shard, item.piece), m = build_.problem().m;
    if (rows == 0) return;
    Computing& on = lanes_[t % 2];
    const std::int64_t first = first_token(shard, item.piece);
    await_keys_and_values(on, item.group, build_.problem().seen_by(first, rows));
    const Slice keys = tokens(places_.keys, rank_, item.group, cut_.kv, 0, m),
                values = tokens(places_.values, rank_, item.group, cut_.kv, 0, m);
    if (item.behind == 0) {
      const auto own = [&](std::int32_t buffer) {
        return heads(buffer, rank_, rank_, item.group, cut_.q, cut_.begin(item.piece), rows);
      };
      return build_.step(rank_, on.lane, build_.attend(first, own(build_.a), keys, values, own(build_.out)));
    }
    build_.await(rank_, on.lane, places_.q_arrived, t);
    build_.step(rank_, on.lane,
                build_.attend(first, tokens(places_.queries, rank_, item.group, cut_.q, first, rows), keys,
                              values, tokens(places_.attended, rank_, item.group, cut_.q, first, rows)));
    build_.notify(rank_, on.lane, places_.computed, t);
  }

  /// Awaits a result for own queries, and stores it if its sender could not.
  void finish_result(std::int64_t t) {
    const Item& item = at(t);
    const std::int64_t rows = cut_.rows(rank_, item.piece);
    if (item.behind == 0 || rows == 0) return;
    build_.await(rank_, compute_lane, places_.result_arrived, t);
    if (places_.returned == build_.out) return;
    const int by = cut_.ahead(rank_, item.behind);
    const auto part = [&](std::int32_t buffer) {
      return heads(buffer, rank_, by, item.group, cut_.q, cut_.begin(item.piece), rows);
    };
    copy(part(places_.returned), part(build_.out));
  }

  RingBuilder& build_;
  const Cut& cut_;
  const Places& places_;
  const Handshake& handshake_;
  const std::vector<Item>& items_;
  int rank_;
  std::int64_t own_rows_;
  std::vector<Engine> engines_;
  Computing lanes_[2];
  std::size_t turn_ = 0;  ///< of the engines of inputs
};

}  // namespace

void ulysses_by_engines(RingBuilder& build) {
  const Cut cut(build);
  const std::vector<Item> items = cut.items();
  const Places places = make_places(build, cut, static_cast<std::int64_t>(items.size()));
  const Handshake handshake(build);
  for (int r = 0; r < build.world(); ++r) EngineSide(build, cut, places, handshake, items, r).plan();
}

}  // namespace shingle::planner
