// Experts: tokens go to the ranks of their experts beside the product, and products are stored where their
// tokens are.
//
// Tiles have rows of one source. The product begins with the rank's own rows, which await nothing, and takes
// those of other ranks in the order in which they arrive. The product that returns ends with the rank's own
// rows, which need no link.
#include "planner/common/experts.hpp"

#include <optional>
#include <utility>

#include "planner/common/slots.hpp"
#include "token_dispatch.hpp"

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
    if (p_.has_slots()) slots_.emplace(build);
    if (p_.traits().before) dispatch_.emplace(build, slots_ ? &*slots_ : nullptr);
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", received, p_.inner);
    if (p_.traits().after) {
      products_ = build.buffer("products", routed, p_.n);
      returned_.assign(static_cast<std::size_t>(p_.world * p_.world), 0);
      stored_ = build.counter("stored", p_.world);
    }
    if (!slots_) return;
    if (!dispatch_) counted_ = build.counter("counted", p_.world);
    if (!dispatch_ || build.helpers() == 0) return;
    assigned_ = build.counter("assigned", 1);
    if (!p_.traits().after) told_ = build.counter("told", 1);
  }

  void dispatch(int rank) const {
    if (!dispatch_) return;
    if (slots_) assign(rank, dispatch_->lane(rank));
    dispatch_->move(handshake_, rank);
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
    const bool chains = p_.traits().chains();
    if (dispatch_) {
      Gemm first = chains ? build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank))
                          : build_.gemm(rank, build_.one_tile(1), {}, in_place(build_.out, rank));
      build_.step(rank, compute_lane, dispatch_->feed(machine_, std::move(first)));
    }
    if (slots_ && !p_.traits().after) {
      if (told_ >= 0) build_.await(rank, compute_lane, told_, 0);  // of the rank itself
      slots_->return_counts(rank);
    }
    if (p_.traits().after) {
      if (slots_ && !dispatch_)
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
    const std::int64_t tokens = p_.out_rows(rank);
    Elementwise pass = planner::combine(build_.row_blocks(tokens, p_.n),
                                        build_.all(build_.topk_weights, rank), build_.all(build_.out, rank));
    for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
      pass.from.push_back(slots_ ? slots_->choice(rank, choice, build_.all(products_, rank))
                                 : Builder::in_place(build_.rows(products_, rank, choice * tokens, tokens)));
    build_.step(rank, compute_lane, std::move(pass));
  }

 private:
  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }

  /// The product whose rows return to the ranks of their tokens.
  Gemm returning(int rank) {
    Placement back{build_.all(products_, rank), placement::Returned{rank}};
    Gemm product = grouped(
        build_, machine_, build_.params().tile, build_.gemm(rank, build_.one_tile(1), {}, std::move(back)),
        p_.traits().chains() ? hidden_ : build_.a, groups_from(routing_, rank, (rank + 1) % p_.world));
    product.resources = {1, build_.workers() - build_.helpers()};
    if (slots_) product.live = slots_->live(rank);
    PositionRuns runs = runs_by_source(product, routing_, rank);
    if (counted_ >= 0) await_counts(product, runs);
    TileNotify notify{stored_, {}, std::move(runs.ends), {}, std::move(runs.keys)};
    notify.entries.assign(notify.ends.size(), rank);
    for (std::int64_t position = 0; position < product.grid.positions(); ++position)
      if (!product.grid.phantom(product.grid.tile(position)))
        ++returned_[at(rank, notify.owners[static_cast<std::size_t>(group_of(notify.ends, position))])];
    if (!notify.ends.empty()) product.notify.push_back(std::move(notify));
    return product;
  }

  /// Tiles with rows of another rank await its counts.
  void await_counts(Gemm& product, const PositionRuns& runs) const {
    TileGate gate{counted_, runs.ends, {}, runs.keys};
    for (const std::int32_t source : gate.entries) gate.targets.push_back(source == product.a.rank ? 0 : 1);
    if (!gate.ends.empty()) product.gates.push_back(std::move(gate));
  }

  std::size_t at(int holder, int source) const {
    return static_cast<std::size_t>(holder * p_.world + source);
  }

  FusedBuilder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  Handshake handshake_;
  std::optional<Slots> slots_;                // of experts with a capacity
  std::optional<TokenDispatch> dispatch_;     // if tokens are dispatched
  std::int32_t hidden_ = -1, products_ = -1;  // buffers
  std::int32_t stored_ = -1, counted_ = -1;   // counters: entry p for rank p
  std::int32_t assigned_ = -1, told_ = -1;    // counters of the rank itself
  std::vector<std::uint32_t> returned_;  // tiles of a holder's last product whose rows return to a source
};

}  // namespace

void fuse_experts(FusedBuilder& build, const Machine& machine) {
  const OperatorTraits& traits = build.problem().traits();
  Experts experts(build, machine);
  for (int r = 0; r < build.world(); ++r) {
    experts.dispatch(r);
    experts.multiply(r);
  }
  for (int r = 0; r < build.world() && traits.after; ++r) experts.combine(r);
}

}  // namespace shingle::planner
