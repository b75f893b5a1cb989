// ring for ulysses-attention: Flash-Overlap's all-to-all (Algorithm 5; docs/mechanisms/attention.md).
//
// Heads are cut into groups, and shards of tokens into pieces. An item is the attention of one piece of one
// rank's queries with one group of heads. Every message carries one piece.
//
// While an item is computed, three messages are in flight:
// - the previous item's result, to the owner of its queries
// - the queries of a later item
// - a piece of the next group's K and V
//
// With W ranks, rank r works on shards r − 1, r − 2, … and its own last. The result of its own stays in
// place, so no communication follows the last item. The very first item also has own queries.
#include "ring.hpp"
#include "ulysses_cut.hpp"

namespace shingle::planner {
namespace {

/// Buffers and counters, the same on all ranks.
struct Staging {
  std::int32_t kv_sent, q_sent;                  ///< buffers, by group: blocks for the ranks ahead, in order
  std::int32_t kv;                               ///< buffer, by group: K beside V, of all tokens
  std::int32_t q, attended;                      ///< buffers, by group: for the other ranks' tokens
  std::int32_t returned;                         ///< buffer, by group: blocks from the ranks ahead, in order
  std::int32_t kv_packed, q_packed, kv_arrived;  ///< counters, by group
  std::int32_t q_arrived, computed, result_arrived;  ///< counters, by item
};

Staging make_staging(RingBuilder& build, const Cut& cut, std::int64_t items) {
  const Problem& p = build.problem();
  std::vector<std::int64_t> blocks;
  for (int r = 0; r < p.world; ++r) blocks.push_back(cut.groups * p.world * p.a_rows(r));
  Staging s{};
  s.kv_sent = build.buffer("kv_sent", blocks, 2 * cut.kv);
  s.q_sent = build.buffer("q_sent", blocks, cut.q);
  s.kv = build.buffer("kv", cut.groups * p.m, 2 * cut.kv);
  s.q = build.buffer("queries", cut.groups * p.m, cut.q);
  s.attended = build.buffer("attended", cut.groups * p.m, cut.q);
  s.returned = build.buffer("returned", blocks, cut.q);
  s.kv_packed = build.counter("kv_packed", cut.groups);
  s.q_packed = build.counter("q_packed", cut.groups);
  s.kv_arrived = build.counter("kv_arrived", cut.groups);
  s.q_arrived = build.counter("q_arrived", items);
  s.computed = build.counter("computed", items);
  s.result_arrived = build.counter("result_arrived", items);
  return s;
}

/// The plan of one rank.
class Side : UlyssesSide {
 public:
  Side(RingBuilder& build, const Cut& cut, const Staging& staging, const std::vector<Item>& items, int rank)
      : UlyssesSide(build, cut, items, rank),
        staging_(staging),
        kv_messages_(static_cast<std::size_t>(cut.groups)),
        kv_arrivals_(static_cast<std::size_t>(cut.groups), -1),
        q_arrivals_(items.size(), -1),
        result_arrivals_(items.size(), -1) {}

  void plan() {
    for (std::int64_t t = 0; t < count(); ++t) {
      const Item& item = at(t);
      if (t == 0) start();
      if (begins_group(t)) pack(item.group + 1);
      if (t > 0) send_result(t - 1);
      if (t == 0) fetch_queries(1);
      fetch_queries(t + 2);
      if (item.behind > 0) fetch_kv({item.group + 1, item.behind, item.piece});
      compute(t);
    }
    for (std::int64_t t = larger(count() - 3, 0); t < count(); ++t) store_result(t);
  }

 private:
  /// A piece of a shard in a buffer with all tokens, by group.
  Slice piece(std::int32_t buffer, const Item& item, int shard) const {
    return tokens(buffer, rank_, item.group, first_token(shard, item.piece), cut_.rows(shard, item.piece));
  }
  /// A piece of the own shard in a buffer with a block for every rank ahead, by group.
  Slice block(std::int32_t buffer, const Item& item) const {
    const std::int64_t number = item.group * build_.world() + item.behind - 1;
    return build_.rows(buffer, rank_, number * own_rows_ + cut_.begin(item.piece),
                       cut_.rows(rank_, item.piece));
  }
  /// Sorts a group of the own rows of Q, K or V by destination rank, the next rank first. The own part would
  /// be last, and is left out.
  void sort(std::int32_t from, std::int64_t group, std::int64_t cols, Slice to) {
    const std::int64_t world = build_.world(), all = world * cols;
    const TileGrid grid = by_columns(own_rows_, all, cols, cut_.ahead(rank_, 1));
    Elementwise pass;
    pass.grid = grid;
    pass.count = (world - 1) * grid.tiles_m();
    pass.from.push_back(Builder::in_place(columns(build_.all(from, rank_), group * all, all)));
    pass.to = Builder::stacked(to);
    pass.resources = build_.beside_communication();
    build_.step(rank_, compute_lane, std::move(pass));
  }

  void pack(std::int64_t group) {
    if (group >= cut_.groups || build_.world() == 1) return;
    const std::int64_t blocks = build_.world() * own_rows_;
    const Slice sent = build_.rows(staging_.kv_sent, rank_, group * blocks, blocks);
    if (own_rows_ > 0) {
      sort(build_.keys, group, cut_.kv, keys(sent));
      sort(build_.values, group, cut_.kv, values(sent));
    }
    build_.notify(rank_, compute_lane, staging_.kv_packed, group);
    if (own_rows_ > 0)
      sort(build_.a, group, cut_.q, build_.rows(staging_.q_sent, rank_, group * blocks, blocks));
    build_.notify(rank_, compute_lane, staging_.q_packed, group);
    if (own_rows_ > 0) keep_keys_and_values(staging_.kv, group);
  }

  /// Fetches what the first item needs from other ranks: K and V of its heads.
  void start() {
    pack(0);
    for (int behind = 1; behind < build_.world(); ++behind)
      for (std::int64_t s = 0; s < cut_.pieces; ++s) fetch_kv({0, behind, s});
    fetch_queries(0);
  }

  /// Receives the rows of `item` from the rank behind, and sends the rank ahead the corresponding rows.
  bool fetch(const Item& item, std::int32_t sent, std::int32_t received) {
    const int source = cut_.behind(rank_, item.behind);
    const bool sends = cut_.rows(rank_, item.piece) > 0, receives = cut_.rows(source, item.piece) > 0;
    exchange(sends, {cut_.ahead(rank_, item.behind), block(sent, item)}, receives,
             {source, piece(received, item, source)});
    return receives;
  }

  void fetch_kv(const Item& item) {
    if (item.group >= cut_.groups) return;
    await_packed(item, staging_.kv_packed, 2 * item.group);
    if (!fetch(item, staging_.kv_sent, staging_.kv)) return;
    build_.notify(rank_, communicate_lane, staging_.kv_arrived, item.group);
    ++kv_messages_[static_cast<std::size_t>(item.group)];
    kv_arrivals_[static_cast<std::size_t>(item.group)] = exchanges_;
  }

  void fetch_queries(std::int64_t t) {
    if (t >= count() || at(t).behind == 0) return;
    await_packed(at(t), staging_.q_packed, 2 * at(t).group + 1);
    if (!fetch(at(t), staging_.q_sent, staging_.q)) return;
    build_.notify(rank_, communicate_lane, staging_.q_arrived, t);
    q_arrivals_[static_cast<std::size_t>(t)] = exchanges_;
  }

  /// `number` counts packs in order, so a wait for one covers all earlier ones.
  void await_packed(const Item& item, std::int32_t packed, std::int64_t number) {
    if (cut_.rows(rank_, item.piece) == 0 || number <= packed_) return;
    build_.await(rank_, communicate_lane, packed, item.group);
    packed_ = number;
  }

  /// Sends the result to the queries' owner, and receives the result for the own queries.
  void send_result(std::int64_t t) {
    const Item& item = at(t);
    if (item.behind == 0) return;
    const int owner = cut_.behind(rank_, item.behind);
    const bool sends = cut_.rows(owner, item.piece) > 0, receives = cut_.rows(rank_, item.piece) > 0;
    if (sends) {
      build_.await(rank_, communicate_lane, staging_.computed, t);
      packed_ =
          larger(packed_, 2 * smaller(item.group + 1, cut_.groups - 1) + 1);  // packed before it was computed
    }
    exchange(sends, {owner, piece(staging_.attended, item, owner)}, receives,
             {cut_.ahead(rank_, item.behind), block(staging_.returned, item)});
    if (!receives) return;
    build_.notify(rank_, communicate_lane, staging_.result_arrived, t);
    result_arrivals_[static_cast<std::size_t>(t)] = exchanges_;
  }

  void exchange(bool sends, const Exchange::Message& send, bool receives, const Exchange::Message& receive) {
    if (!sends && !receives) return;
    std::vector<Exchange::Message> out, in;
    if (sends) out.push_back(send);
    if (receives) in.push_back(receive);
    build_.exchange(rank_, std::move(out), std::move(in));
    ++exchanges_;
  }

  void compute(std::int64_t t) {
    const Item& item = at(t);
    const int shard = cut_.behind(rank_, item.behind);
    const std::int64_t rows = cut_.rows(shard, item.piece);
    if (rows > 0) await_inputs(t);
    if (t >= 3) store_result(t - 3);  // it has arrived before the queries
    if (rows == 0) return;
    const std::int64_t m = build_.problem().m;
    const bool alone = build_.world() == 1;
    const auto user = [&](std::int32_t buffer) {
      return heads(buffer, rank_, rank_, item.group, cut_.kv, 0, m);
    };
    const Slice kv = alone ? Slice{} : tokens(staging_.kv, rank_, item.group, 0, m);
    const Slice k = alone ? user(build_.keys) : keys(kv), v = alone ? user(build_.values) : values(kv);
    if (item.behind == 0)
      return build_.step(
          rank_, compute_lane,
          build_.attend(first_token(rank_, item.piece), own(build_.a, item), k, v, own(build_.out, item)));
    build_.step(rank_, compute_lane,
                build_.attend(first_token(shard, item.piece), piece(staging_.q, item, shard), k, v,
                              piece(staging_.attended, item, shard)));
    build_.notify(rank_, compute_lane, staging_.computed, t);
  }

  void await_inputs(std::int64_t t) {
    const Item& item = at(t);
    const auto group = static_cast<std::size_t>(item.group);
    await(kv_arrivals_[group], staging_.kv_arrived, item.group, kv_messages_[group]);
    await(q_arrivals_[static_cast<std::size_t>(t)], staging_.q_arrived, t);
  }

  /// Exchanges run in order, so a wait of the compute lane for one covers all earlier ones.
  void await(std::int64_t exchange, std::int32_t counter, std::int64_t entry, std::uint32_t target = 1) {
    if (exchange <= known_) return;
    build_.await(rank_, compute_lane, counter, entry, target);
    known_ = exchange;
  }

  /// Stores a result to the columns of its heads.
  void store_result(std::int64_t t) {
    const Item& item = at(t);
    const std::int64_t rows = cut_.rows(rank_, item.piece);
    if (item.behind == 0 || rows == 0) return;
    await(result_arrivals_[static_cast<std::size_t>(t)], staging_.result_arrived, t);
    copy(block(staging_.returned, item), heads(build_.out, rank_, cut_.ahead(rank_, item.behind), item.group,
                                               cut_.q, cut_.begin(item.piece), rows));
  }

  const Staging& staging_;
  std::vector<std::uint32_t> kv_messages_;  ///< by group: number of messages received
  std::vector<std::int64_t> kv_arrivals_, q_arrivals_,
      result_arrivals_;         ///< last exchange that brings it
  std::int64_t exchanges_ = 0;  ///< number of exchanges so far
  std::int64_t known_ = 0;      ///< last exchange that the compute lane knows of, counted from 1
  std::int64_t packed_ = -1;    ///< last pack that the communicate lane knows of
};

}  // namespace

void ulysses_by_slices(RingBuilder& build) {
  const Cut cut(build);
  const std::vector<Item> items = cut.items();
  const Staging staging =
      build.world() > 1 ? make_staging(build, cut, static_cast<std::int64_t>(items.size())) : Staging{};
  for (int r = 0; r < build.world(); ++r) Side(build, cut, staging, items, r).plan();
}

}  // namespace shingle::planner
