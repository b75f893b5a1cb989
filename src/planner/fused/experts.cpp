// Experts: tokens are pushed where the routing sends them, and products are stored where their tokens are.
//
// Tiles have rows of one source. A rank stores its own tokens before the product, and pushes those for others
// beside it. The product begins with the rank's own rows, which await nothing, and takes those of other ranks
// in the order in which they arrive. The product that returns ends with the rank's own rows, which need no
// link.
#include "planner/common/experts.hpp"

#include <optional>
#include <utility>

#include "fused.hpp"
#include "planner/common/slots.hpp"

namespace shingle::planner {
namespace {

class Experts {
 public:
  Experts(FusedBuilder& build, const Machine& machine)
      : build_(build), p_(build.problem()), routing_(*p_.routing), machine_(machine), handshake_(build) {
    std::vector<std::int64_t> routed, received;
    for (int r = 0; r < p_.world; ++r) {
      routed.push_back(routing_.rows(r));
      received.push_back(routing_.received(r));
    }
    if (p_.traits().before) {
      gathered_ = build.buffer("gathered", received, p_.k);
      arrived_ = build.counter("arrived", p_.world);
    }
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", received, p_.inner);
    if (p_.traits().after) {
      products_ = build.buffer("products", routed, p_.n);
      returned_.assign(static_cast<std::size_t>(p_.world * p_.world), 0);
      stored_ = build.counter("stored", p_.world);
    }
    if (!p_.has_slots()) return;
    slots_.emplace(build);
    if (!p_.traits().before) counted_ = build.counter("counted", p_.world);
    if (build.helpers() == 0 || !p_.traits().before) return;
    assigned_ = build.counter("assigned", 1);
    if (!p_.traits().after) told_ = build.counter("told", 1);
  }

  /// Pushes a rank's tokens to the ranks of their experts.
  void dispatch(int rank) const {
    const bool beside = build_.helpers() > 0;
    const std::int32_t lane = beside ? build_.lane(rank, LaneKind::compute, "push") : compute_lane;
    if (slots_) assign(rank, lane);
    if (routing_.count_to_rank(rank, rank) > 0)
      build_.step(rank, compute_lane, push(rank, rank, build_.workers() - build_.helpers()));
    for (int i = 1; i < p_.world; ++i) {
      const int to = (rank - i + p_.world) % p_.world;
      if (routing_.count_to_rank(rank, to) == 0) continue;
      if (!slots_) handshake_.await(build_, rank, lane, to);  // else assign() has awaited all
      build_.step(rank, lane, push(rank, to, beside ? build_.helpers() : build_.workers()));
    }
  }

  /// Gives tokens slots, and tells all ranks how many rows have one: before rows are pushed, so that their
  /// arrival tells of the counts, too.
  void assign(int rank, std::int32_t lane) const {
    slots_->assign(rank);
    if (assigned_ >= 0) hand_over(build_, rank, assigned_, compute_lane, lane);
    handshake_.await_all(build_, rank, lane);
    build_.step(rank, lane, slots_->send_counts(rank, counted_));
    if (told_ >= 0) build_.notify(rank, lane, told_, 0);
  }

  /// The products of a rank. The first awaits tokens, the last returns.
  void multiply(int rank) {
    const bool chains = p_.traits().chains(), before = p_.traits().before.has_value();
    if (before) {
      Gemm first = chains ? build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank))
                          : build_.gemm(rank, build_.one_tile(1), {}, in_place(build_.out, rank));
      await_tokens(rank, grouped(std::move(first), gathered_, rank));
    }
    if (slots_ && !p_.traits().after) {
      if (told_ >= 0) build_.await(rank, compute_lane, told_, 0);  // of the rank itself
      slots_->return_counts(rank);
    }
    if (p_.traits().after) {
      if (slots_ && !before)
        assign(rank, compute_lane);
      else
        handshake_.await_all(build_, rank, compute_lane);
      build_.step(rank, compute_lane, returning(rank));
    }
  }

  /// Sums the products of a rank's tokens.
  void combine(int rank) const {
    for (int holder = 0; holder < p_.world; ++holder)
      if (const std::uint32_t tiles = returned_[at(holder, rank)]; tiles > 0)
        build_.await(rank, compute_lane, stored_, holder, tiles);
    Elementwise pass = planner::combine(build_, rank);
    const std::int64_t tokens = p_.out_rows(rank);
    for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
      pass.from.push_back(slots_ ? slots_->choice(rank, choice, build_.all(products_, rank))
                                 : Builder::in_place(build_.rows(products_, rank, choice * tokens, tokens)));
    build_.step(rank, compute_lane, std::move(pass));
  }

 private:
  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }

  /// Rows of a pass that pushes to one rank. Slots for a rank are consecutive, other rows are not.
  TileGrid pushed_rows(int rank) const {
    return build_.row_blocks(slots_ ? routing_.count_to_rank(rank, 0) : routing_.rows(rank), p_.k);
  }

  Placement pushed_to(int rank, int to) const {
    if (slots_) return slots_->by_expert(rank, build_.all(gathered_, to));
    placement::Routed store{rank};
    store.one_rank = true;
    for (int expert = 0; expert < routing_.experts(); ++expert)
      store.bases.push_back(routing_.receive_base(expert, rank));
    return {build_.all(gathered_, to), std::move(store)};
  }

  Elementwise push(int rank, int to, std::int32_t workers) const {
    Elementwise pass;
    pass.grid = pushed_rows(rank);
    pass.from.push_back(slots_ ? slots_->tokens(rank, to)
                               : rows_of_tokens(p_, rank, build_.all(build_.a, rank)));
    pass.to = pushed_to(rank, to);
    if (to != rank) pass.notify.push_back({arrived_, {to}, {pass.grid.positions()}, {rank}});
    pass.resources = {1, workers};
    return pass;
  }

  /// The rows of source `first` come first.
  Gemm grouped(Gemm product, std::int32_t a, int first) const {
    const int rank = product.a.rank;
    product = planner::grouped(build_, machine_, build_.params().tile, std::move(product), a,
                               groups_from(routing_, rank, first));
    if (slots_) product.live = slots_->live(rank);
    product.resources = {1, build_.workers() - build_.helpers()};
    return product;
  }

  void await_tokens(int rank, Gemm product) const {
    await_sources(product, arrived_,
                  [&](int source) { return static_cast<std::uint32_t>(pushed_rows(source).tiles()); });
    build_.step(rank, compute_lane, std::move(product));
  }

  /// Tiles with rows of another rank await that its entry of a counter reaches target(source).
  template <class TargetOf>
  void await_sources(Gemm& product, std::int32_t counter, TargetOf&& target) const {
    const int rank = product.a.rank;
    SourceRuns runs = runs_by_source(product, routing_, rank);
    TileGate gate{counter, std::move(runs.ends), {}, std::move(runs.sources)};
    for (const std::int32_t source : gate.entries)
      gate.targets.push_back(source == rank ? 0 : target(source));
    if (!gate.ends.empty()) product.gates.push_back(std::move(gate));
  }

  /// The product whose rows return to the ranks of their tokens.
  Gemm returning(int rank) {
    Placement back{build_.all(products_, rank), placement::Returned{rank}};
    Gemm product = grouped(build_.gemm(rank, build_.one_tile(1), {}, std::move(back)),
                           p_.traits().chains() ? hidden_ : build_.a, (rank + 1) % p_.world);
    SourceRuns runs = runs_by_source(product, routing_, rank);
    TileNotify notify{stored_, {}, std::move(runs.ends), {}, std::move(runs.sources)};
    notify.entries.assign(notify.ends.size(), rank);
    for (std::int64_t position = 0; position < product.grid.positions(); ++position)
      if (!product.grid.phantom(product.grid.tile(position)))
        ++returned_[at(rank, notify.owners[static_cast<std::size_t>(group_of(notify.ends, position))])];
    if (!notify.ends.empty()) product.notify.push_back(std::move(notify));
    if (slots_ && !p_.traits().before) await_sources(product, counted_, [](int) { return 1u; });
    return product;
  }

  std::size_t at(int holder, int source) const {
    return static_cast<std::size_t>(holder * p_.world + source);
  }

  FusedBuilder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  Handshake handshake_;
  std::optional<Slots> slots_;
  std::int32_t gathered_ = -1, hidden_ = -1, products_ = -1;  // buffers
  std::int32_t arrived_ = -1, stored_ = -1, counted_ = -1;    // counters: entry p for rank p
  std::int32_t assigned_ = -1, told_ = -1;                    // counters of the rank itself
  std::vector<std::uint32_t> returned_;  // tiles of a holder's last product whose rows return to a source
};

}  // namespace

void fuse_experts(FusedBuilder& build, const Machine& machine) {
  const OperatorTraits& traits = build.problem().traits();
  Experts experts(build, machine);
  for (int r = 0; r < build.world(); ++r) {
    if (traits.before) experts.dispatch(r);
    experts.multiply(r);
  }
  for (int r = 0; r < build.world() && traits.after; ++r) experts.combine(r);
}

}  // namespace shingle::planner
