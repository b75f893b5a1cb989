// Tensor-parallel experts: tokens are gathered beside the product, and sums leave beside it, rank by rank
// (FLUX: all-gather + scatter + grouped GEMM, grouped GEMM + gather + reduce-scatter).
//
// A token crosses a link once. When a rank's tokens have arrived, helpers store each of them once for each
// choice, among the rows by expert. Tiles are computed in the order in which their rows arrive, own rows
// first, and await the last of their sources. Without helpers, all workers push the tokens to all ranks in
// one pass, and sort them before the product.
//
// In the product that is summed own rows come last, because their sums need no link. When the tiles of a
// source are computed, helpers sum the choices of its tokens and store one row a token with the source. There
// the ranks are summed in rank order.
//
// With slots, workers first tell all ranks where tokens go, so that the arrival of tokens, or of weights,
// tells of that too.
#include <optional>
#include <utility>

#include "fused.hpp"
#include "planner/common/sliced_experts.hpp"

namespace shingle::planner {
namespace {

class SlicedExperts {
 public:
  SlicedExperts(FusedBuilder& build, const Machine& machine)
      : build_(build), p_(build.problem()), routing_(*p_.routing), machine_(machine), handshake_(build) {
    const std::int64_t tokens = p_.world * p_.m, rows = routing_.received(0);
    const CounterKind kind = by_engine() ? CounterKind::set : CounterKind::add;
    if (gathers()) {
      gathered_ = build.buffer("gathered", tokens, p_.k);
      sorted_ = build.buffer("sorted", rows, p_.k);
      arrived_ = build.counter("arrived", p_.world, kind);
      if (build.helpers() > 0) sorted_tiles_ = build.counter("sorted", p_.world);
    }
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", rows, p_.inner);
    if (p_.has_slots()) {
      slots_.emplace(build);
      if (build.helpers() > 0) assigned_ = build.counter("assigned", 1);
    }
    if (!sums()) return;
    weights_ = build.typed_buffer("weights", DType::f32, tokens, p_.experts.topk);
    products_ = build.buffer("products", rows, p_.n);
    staging_ = build.typed_buffer("staging", build.params().stage_fp32 ? DType::f32 : p_.dtype, tokens, p_.n);
    weights_arrived_ = build.counter("weights", p_.world, kind);
    computed_ = build.counter("computed", p_.world);
    stored_ = build.counter("stored", p_.world);
  }

  /// Sends a rank's tokens to all ranks, sorts those that arrive, and sends the weights.
  void gather(int rank) const {
    if (slots_) slots_->assign(rank);
    if (!by_engine() && build_.helpers() == 0) return gather_before_product(rank);
    const std::int32_t helpers = helper_lane(rank);
    const std::int32_t lane = by_engine() ? build_.lane(rank, LaneKind::copy, "copy") : helpers;
    if (slots_) hand_over(build_, rank, assigned_, compute_lane, lane);
    if (gathers()) sort(rank, compute_lane, rank);
    // An engine waits for all at once: a wait between two copies makes it pause.
    const bool at_once = by_engine() || slots_;
    if (at_once) handshake_.await_all(build_, rank, lane);
    if (slots_) push_slots(rank, lane);
    for (int i = 1; i < p_.world; ++i) {
      const int to = (rank - i + p_.world) % p_.world, source = (rank + i) % p_.world;
      if (!at_once) handshake_.await(build_, rank, lane, to);
      if (!gathers()) continue;
      send(rank, lane, to, build_.a, gathered_, arrived_);
      if (tokens(source) == 0) continue;
      build_.await(rank, helpers, arrived_, source, arrivals(source, p_.k));
      sort(rank, helpers, source);
    }
    for (int i = 1; sums() && i < p_.world; ++i)
      send(rank, lane, (rank - i + p_.world) % p_.world, build_.topk_weights, weights_, weights_arrived_);
  }

  /// Appends the products of a rank, and the sums of the last one over the choices of each token.
  void multiply(int rank) const {
    const bool chains = p_.traits().chains();
    if (gathers()) {
      Gemm first = chains ? build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank))
                          : build_.gemm(rank, build_.one_tile(1), {}, in_place(build_.out, rank));
      await_tokens(rank, in_turn(std::move(first), sorted_, rank, TurnOf::last));
    }
    if (slots_) slots_->return_counts(rank);
    if (!sums()) return;
    handshake_.await_all(build_, rank, compute_lane);
    if (slots_ && !gathers()) await_weights(rank);
    combine(rank, in_turn(build_.gemm(rank, build_.one_tile(1), {}, in_place(products_, rank)),
                          chains ? hidden_ : build_.a, after(rank), TurnOf::first));
  }

  /// Sums a rank's tokens over ranks.
  void sum(int rank) const {
    if (!sums() || tokens(rank) == 0) return;
    Elementwise pass;
    pass.grid = build_.row_blocks(tokens(rank), p_.n);
    for (int holder = 0; holder < p_.world; ++holder) {
      build_.await(rank, compute_lane, stored_, holder, static_cast<std::uint32_t>(pass.grid.tiles()));
      pass.from.push_back(Builder::in_place(of_source(staging_, rank, holder, tokens(rank))));
    }
    pass.to = in_place(build_.out, rank);
    build_.step(rank, compute_lane, std::move(pass));
  }

 private:
  bool gathers() const { return p_.traits().before.has_value(); }
  bool sums() const { return p_.traits().after.has_value(); }
  const Slots* slots() const { return slots_ ? &*slots_ : nullptr; }
  bool by_engine() const { return build_.params().mover != Mover::store; }
  std::int64_t tokens(int rank) const { return tokens_of(p_, rank); }
  int after(int rank) const { return (rank + 1) % p_.world; }
  int turn_of(int rank, int source) const { return (source - rank + p_.world) % p_.world; }
  std::int32_t helper_lane(int rank) const {
    return build_.helpers() > 0 ? build_.helper_lane(rank, gathers() ? "sort" : "combine") : compute_lane;
  }
  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }
  /// The part of a source, of `rows` rows, in a buffer that has a part of each.
  Slice of_source(std::int32_t buffer, int rank, int source, std::int64_t rows) const {
    return build_.rows(buffer, rank, source * p_.m, rows);
  }
  /// Workers of a pass in the helpers' lane, or in the lane of the products.
  Resources share_of(std::int32_t lane) const {
    return {1, lane == compute_lane ? build_.workers() - build_.helpers() : build_.helpers()};
  }

  void gather_before_product(int rank) const {
    handshake_.await_all(build_, rank, compute_lane);
    if (slots_) push_slots(rank, compute_lane);
    if (gathers()) push_to_all(rank, build_.a, gathered_, arrived_);
    if (sums()) push_to_all(rank, build_.topk_weights, weights_, weights_arrived_);
    if (!gathers()) return;
    // All arrive at about the same time. Passes without waits between them follow each other closely.
    for (int source = 0; source < p_.world; ++source)
      if (source != rank && tokens(source) > 0)
        build_.await(rank, compute_lane, arrived_, source, arrivals(source, p_.k));
    for (int source = 0; source < p_.world; ++source) sort(rank, compute_lane, source);
  }

  /// Stores a matrix of the user with a row for each token of the rank on all other ranks.
  void push_to_all(int rank, std::int32_t matrix, std::int32_t parts, std::int32_t arrived) const {
    if (tokens(rank) == 0 || p_.world == 1) return;
    Elementwise push = to_peers(rank, build_.all(matrix, rank), of_source(parts, rank, rank, tokens(rank)));
    push.notify.push_back({arrived, peers(rank), {push.grid.positions()}, {rank}});
    push.resources = share_of(compute_lane);
    build_.step(rank, compute_lane, std::move(push));
  }

  /// Stores where the rank's tokens go on all other ranks.
  void push_slots(int rank, std::int32_t lane) const {
    if (p_.world == 1) return;
    for (const std::int32_t buffer : slots_->gathered()) {
      const Slice own = part_of(build_, buffer, rank, rank);
      Elementwise push = to_peers(rank, own, own);
      push.resources = share_of(lane);
      build_.step(rank, lane, std::move(push));
    }
  }

  /// The pass that copies a slice of the rank to the same place `to` on all other ranks.
  Elementwise to_peers(int rank, const Slice& from, Slice to) const {
    to.rank = peers(rank).front();
    Elementwise push = build_.copy(from, to);
    push.to.form = placement::Matrix{RowMap::identity(from.rows), peers(rank)};
    return push;
  }
  std::vector<std::int32_t> peers(int rank) const {
    std::vector<std::int32_t> peers;
    for (int i = 1; i < p_.world; ++i) peers.push_back((rank + i) % p_.world);
    return peers;
  }

  /// Awaits the weights of all tokens, which tell where the tokens go.
  void await_weights(int rank) const {
    for (int i = 1; i < p_.world; ++i) {
      const int source = (rank + i) % p_.world;
      build_.await(rank, compute_lane, weights_arrived_, source, arrivals(source, p_.experts.topk));
    }
  }

  /// Sends a matrix of the user with a row for each token of the rank.
  void send(int rank, std::int32_t lane, int to, std::int32_t matrix, std::int32_t parts,
            std::int32_t arrived) const {
    if (tokens(rank) == 0) return;
    const Slice from = build_.all(matrix, rank), there = of_source(parts, to, rank, tokens(rank));
    if (by_engine()) {
      build_.step(rank, lane, Copy{from, there});
      return build_.notify_peer(rank, lane, arrived, to, rank);
    }
    Elementwise push = build_.copy(from, there);
    push.notify.push_back({arrived, {to}, {push.grid.positions()}, {rank}});
    push.resources = share_of(lane);
    build_.step(rank, lane, std::move(push));
  }

  /// What send() adds to the count of a source, for a matrix with `cols` columns.
  std::uint32_t arrivals(int source, std::int64_t cols) const {
    return by_engine() ? 1 : static_cast<std::uint32_t>(build_.row_blocks(tokens(source), cols).tiles());
  }

  void sort(int rank, std::int32_t lane, int source) const {
    if (tokens(source) == 0) return;
    const Slice from =
        source == rank ? build_.all(build_.a, rank) : of_source(gathered_, rank, source, tokens(source));
    Elementwise pass = sort_tokens(build_, slots(), source, from, build_.all(sorted_, rank));
    if (lane != compute_lane)
      pass.notify.push_back({sorted_tiles_, {rank}, {pass.grid.positions()}, {turn_of(rank, source)}});
    pass.resources = share_of(lane);
    build_.step(rank, lane, std::move(pass));
  }

  TurnProduct in_turn(Gemm product, std::int32_t a, int first, TurnOf of) const {
    const TileParams& asked = build_.params().tile;
    product.a = build_.all(a, product.a.rank);
    TurnGroups in_turn =
        slots_ ? slots_in_turn(product, first)
               : groups_in_turn(routing_, first, unit_rows(machine_, asked, product.epilogue), of);
    if (slots_) product.live = slots_->live(product.a.rank);
    product = grouped(build_, machine_, asked, std::move(product), std::move(in_turn.groups));
    product.resources = {1, build_.workers() - build_.helpers()};
    return {std::move(product), std::move(in_turn.turns)};
  }

  /// Without helpers nothing is beside the product: tiles of all sources then share the weights.
  TurnGroups slots_in_turn(const Gemm& product, int first) const {
    std::vector<std::int32_t> turns;
    for (int source = 0; source < p_.world; ++source)
      turns.push_back(build_.helpers() == 0 ? 0 : turn_of(first, source));
    return planner::slots_in_turn(build_, product, turns);
  }

  /// Appends a product whose tiles await that helpers sort their rows. Own rows are sorted by the step
  /// before. Sources are sorted one after the other, so a tile awaits the last of its sources only.
  void await_tokens(int rank, TurnProduct product) const {
    if (build_.helpers() == 0) return build_.step(rank, compute_lane, std::move(product.gemm));
    std::vector<std::uint32_t> tiles{0};  // by turn
    for (int turn = 1; turn < p_.world; ++turn) {
      const int source = (rank + turn) % p_.world;
      const std::int64_t rows = routing_.rows(source);
      tiles.push_back(static_cast<std::uint32_t>(build_.row_blocks(rows, p_.k).tiles()));
    }
    await_by_key(product.gemm, product.turns, sorted_tiles_, tiles);
    build_.step(rank, compute_lane, std::move(product.gemm));
  }

  /// Appends a product that counts its tiles by turn, and the sums of the choices of each source's tokens.
  void combine(int rank, TurnProduct product) const {
    const std::vector<std::uint32_t> computed =
        count_by_key(product.gemm, product.turns, computed_, p_.world);
    std::vector<std::vector<std::int32_t>> needed;
    for (int turn = 0; turn < p_.world; ++turn) {
      const int source = (after(rank) + turn) % p_.world;
      std::vector<ExpertRows> rows;
      if (slots_) rows.push_back({routing_.global_base(source), routing_.global_base(source + 1)});
      for (int expert = 0; expert < routing_.experts(); ++expert)
        if (!slots_ && routing_.count(source, expert) > 0)
          rows.push_back({routing_.receive_base(expert, source), routing_.receive_base(expert, source + 1)});
      needed.push_back(turns_of(product, rows));
    }
    build_.step(rank, compute_lane, std::move(product.gemm));
    for (int turn = 0; turn < p_.world; ++turn)
      combine(rank, turn, needed[static_cast<std::size_t>(turn)], computed);
  }

  /// Sums the choices of a source's tokens and stores the sums with the source. Helpers do so as soon as the
  /// products are computed, all workers after the last product. `needed`: turns of the products.
  void combine(int rank, int turn, const std::vector<std::int32_t>& needed,
               const std::vector<std::uint32_t>& computed) const {
    const int source = (after(rank) + turn) % p_.world;
    const std::int64_t rows = tokens(source);
    if (rows == 0) return;
    const bool own = source == rank;
    Elementwise pass =
        combine_sorted(build_, slots(), source, build_.all(products_, rank),
                       own ? build_.all(build_.topk_weights, rank) : of_source(weights_, rank, source, rows),
                       of_source(staging_, source, rank, rows));
    const std::vector<std::int64_t> all{pass.grid.positions()};
    for (const std::int32_t at : needed)
      pass.gates.push_back({computed_, all, {computed[static_cast<std::size_t>(at)]}, {at}});
    if (!own) pass.gates.push_back({weights_arrived_, all, {arrivals(source, p_.experts.topk)}, {source}});
    pass.notify.push_back({stored_, {source}, all, {rank}});
    pass.queue = turn;
    share(build_, rank, std::move(pass), helper_lane(rank), build_.helpers(),
          build_.workers() - build_.helpers());
  }

  FusedBuilder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  Handshake handshake_;
  std::optional<Slots> slots_;  // with a capacity
  // Buffers. `gathered_`, `weights_` and `staging_` have a part of `m` rows for each rank.
  std::int32_t gathered_ = -1, sorted_ = -1, hidden_ = -1, weights_ = -1, products_ = -1, staging_ = -1;
  // Counters: entry p for rank p; of `sorted_tiles_` and `computed_` for turn p.
  std::int32_t arrived_ = -1, sorted_tiles_ = -1, weights_arrived_ = -1, computed_ = -1, stored_ = -1;
  std::int32_t assigned_ = -1;  // of the rank itself
};

}  // namespace

void fuse_sliced_experts(FusedBuilder& build, const Machine& machine) {
  const SlicedExperts experts(build, machine);
  for (int r = 0; r < build.world(); ++r) {
    experts.gather(r);
    experts.multiply(r);
  }
  for (int r = 0; r < build.world(); ++r) experts.sum(r);
}

}  // namespace shingle::planner
