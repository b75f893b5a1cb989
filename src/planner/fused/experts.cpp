// Experts: tokens go to the ranks of their experts beside the product, and products are stored where their
// tokens are.
//
// Where tiles of the first product have rows of one rank, it begins with own rows, which await nothing, and
// takes those of other ranks in the order in which they arrive.
#include "planner/common/experts.hpp"

#include <optional>
#include <utility>

#include "planner/common/routed_rows.hpp"
#include "planner/common/slots.hpp"
#include "token_dispatch.hpp"

namespace shingle::planner {
namespace {

class Experts {
 public:
  Experts(FusedBuilder& build, const Machine& machine)
      : build_(build), p_(build.problem()), routing_(*p_.routing), machine_(machine), handshake_(build) {
    const RoutedRows rows(routing_);
    if (p_.has_slots()) slots_.emplace(build);
    if (p_.traits().before) dispatch_.emplace(build, slots_ ? &*slots_ : nullptr);
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", rows.received, p_.inner);
    if (p_.traits().after) {
      products_ = build.buffer("products", rows.sent, p_.n);
      tiles_.assign(static_cast<std::size_t>(p_.world), 0);
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

  /// Without tokens to push, the counts of all ranks are awaited.
  void exchange_counts(int rank) const {
    assign(rank, compute_lane);
    for (int source = 0; source < p_.world; ++source)
      if (source != rank) build_.await(rank, compute_lane, counted_, source, 1);
  }

  /// The products of a rank. The first awaits tokens, the last returns.
  void multiply(int rank) {
    const bool chains = p_.traits().chains();
    if (dispatch_) {
      Gemm first = chains ? build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank))
                          : build_.gemm(rank, build_.one_tile(1), {}, in_place(build_.out, rank));
      dispatch_->feed(machine_, std::move(first));
    }
    if (slots_ && !p_.traits().after) {
      if (told_ >= 0) build_.await(rank, compute_lane, told_, 0);  // of the rank itself
      slots_->return_counts(rank);
    }
    if (p_.traits().after) {
      if (counted_ >= 0)
        exchange_counts(rank);
      else
        handshake_.await_all(build_, rank, compute_lane);
      build_.step(rank, compute_lane, returning(rank));
    }
  }

  /// Sums the products of a rank's tokens.
  void combine(int rank) const {
    for (int holder = 0; holder < p_.world; ++holder)
      if (const std::uint32_t tiles = tiles_[static_cast<std::size_t>(holder)]; tiles > 0 && holder != rank)
        build_.await(rank, compute_lane, stored_, holder, tiles);
    if (slots_) return build_.step(rank, compute_lane, slots_->combine(rank, build_.all(products_, rank)));
    const std::int64_t tokens = p_.out_rows(rank);
    Elementwise pass = planner::combine(build_.row_blocks(tokens, p_.n),
                                        build_.all(build_.topk_weights, rank), build_.all(build_.out, rank));
    for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
      pass.from.push_back(Builder::in_place(build_.rows(products_, rank, choice * tokens, tokens)));
    build_.step(rank, compute_lane, std::move(pass));
  }

 private:
  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }

  /// The product whose rows return to the ranks of their tokens. A tile has rows of all ranks, so that links
  /// are busy from its first tiles on.
  Gemm returning(int rank) {
    Placement back{build_.all(products_, rank), placement::Returned{rank}};
    Gemm product = grouped(build_, machine_, build_.params().tile,
                           build_.gemm(rank, build_.one_tile(1), {}, std::move(back)),
                           p_.traits().chains() ? hidden_ : build_.a, groups_by_expert(routing_, rank));
    product.resources = {1, build_.workers() - build_.helpers()};
    if (slots_) product.live = slots_->live(rank);
    tiles_[static_cast<std::size_t>(rank)] = static_cast<std::uint32_t>(product.grid.tiles());
    std::vector<std::int32_t> others;
    for (int i = 1; i < p_.world; ++i) others.push_back((rank + i) % p_.world);
    if (product.grid.positions() > 0 && !others.empty())
      product.notify.push_back({stored_, std::move(others), {product.grid.positions()}, {rank}});
    return product;
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
  std::vector<std::uint32_t> tiles_;          // of a rank's last product
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
