// Experts: all-to-all, products, all-to-all, one after the other.
#include "planner/common/experts.hpp"

#include <optional>
#include <utility>

#include "planner/common/pools.hpp"
#include "planner/common/routed_rows.hpp"
#include "planner/common/slots.hpp"
#include "sequential.hpp"

namespace shingle::planner {
namespace {

class Sequence {
 public:
  Sequence(Builder& build, const Machine& machine)
      : build_(build),
        p_(build.problem()),
        routing_(*p_.routing),
        machine_(machine),
        rows_(routing_),
        buffers_(build, rows_) {
    if (p_.traits().before) {
      sent_ = build.counter("packed", 1);
      arrived_ = build.counter("arrived", 1);
    }
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", rows_.received, p_.inner);
    if (p_.traits().after) {
      computed_ = build.counter("computed", 1);
      returned_ = build.counter("returned", 1);
    }
    if (!p_.has_slots()) return;
    slots_.emplace(build);
    if (p_.traits().before) return;
    assigned_ = build.counter("assigned", 1);
    counted_ = build.counter("counted", 1);
  }

  /// Tokens of a rank to the ranks of their experts.
  void dispatch(int rank) const {
    if (slots_) slots_->assign(rank);
    build_.step(rank, compute_lane, packing(rank));
    hand_over(build_, rank, sent_, compute_lane, communicate_lane);
    if (slots_) slots_->exchange_counts(rank);
    exchange(rank, buffers_.packed, buffers_.arrivals, true);
    hand_over(build_, rank, arrived_, communicate_lane, compute_lane);
  }

  /// Without tokens to send, ranks still tell each other how many rows have one.
  void tell_counts(int rank) const {
    slots_->assign(rank);
    hand_over(build_, rank, assigned_, compute_lane, communicate_lane);
    slots_->exchange_counts(rank);
    hand_over(build_, rank, counted_, communicate_lane, compute_lane);
  }

  /// The products of a rank. Rows arrive by source, and leave by source.
  void multiply(int rank) const {
    const bool chains = p_.traits().chains();
    const std::int32_t result = p_.traits().after ? buffers_.products : build_.out;
    std::vector<RowGroup> groups =
        p_.traits().before ? groups_by_source(routing_, rank) : groups_to_source(routing_, rank);
    if (chains) {
      add(build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank)), buffers_.arrivals,
          groups);
      for (RowGroup& group : groups) std::swap(group.a_row, group.row);
    }
    add(build_.gemm(rank, build_.one_tile(1), {}, in_place(result, rank)),
        chains               ? hidden_
        : p_.traits().before ? buffers_.arrivals
                             : build_.a,
        std::move(groups));
    if (slots_) slots_->return_counts(rank);
  }

  /// Products back to the ranks of their tokens, and their sums there.
  void combine(int rank) const {
    hand_over(build_, rank, computed_, compute_lane, communicate_lane);
    exchange(rank, buffers_.products, buffers_.returns, false);
    hand_over(build_, rank, returned_, communicate_lane, compute_lane);
    const Slice returns = build_.all(buffers_.returns, rank);
    if (slots_) return build_.step(rank, compute_lane, slots_->combine(rank, returns));
    Elementwise pass = planner::combine(build_.row_blocks(p_.out_rows(rank), p_.n),
                                        build_.all(build_.topk_weights, rank), build_.all(build_.out, rank));
    for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
      pass.from.push_back(choice_by_expert(p_, rank, choice, pass.grid, returns));
    build_.step(rank, compute_lane, std::move(pass));
  }

 private:
  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }

  /// The pass that sorts a rank's tokens by expert. Slots are in this order.
  Elementwise packing(int rank) const {
    const TileGrid grid = build_.row_blocks(routing_.rows(rank), p_.k);
    const Slice packed = build_.all(buffers_.packed, rank);
    if (!slots_)
      return pack(routing_, rank, grid, rows_of_tokens(p_, rank, build_.all(build_.a, rank)), packed);
    Elementwise pass;
    pass.grid = grid;
    pass.from.push_back(slots_->tokens(rank));
    pass.to = Builder::in_place(packed);
    return pass;
  }

  void add(Gemm product, std::int32_t a, std::vector<RowGroup> groups) const {
    const int rank = product.a.rank;
    if (slots_) product.live = slots_->live(rank);
    build_.step(rank, compute_lane, grouped(build_, machine_, {}, std::move(product), a, std::move(groups)));
  }

  /// `there`: to the experts; else back.
  void exchange(int rank, std::int32_t from, std::int32_t to, bool there) const {
    std::vector<std::int64_t> out, back;
    for (int peer = 0; peer < p_.world; ++peer) {
      out.push_back(routing_.count_to_rank(rank, peer));
      back.push_back(routing_.count_to_rank(peer, rank));
    }
    if (!there) std::swap(out, back);
    build_.collective(rank, CollectiveKind::alltoall, build_.all(from, rank), build_.all(to, rank),
                      std::move(out), std::move(back));
  }

  Builder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  std::optional<Slots> slots_;
  const RoutedRows rows_;
  const RoutedBuffers buffers_;
  std::int32_t hidden_ = -1;  // buffer
  std::int32_t sent_ = -1, arrived_ = -1, computed_ = -1, returned_ = -1, assigned_ = -1,
               counted_ = -1;  // counters
};

}  // namespace

void experts_in_sequence(Builder& build, const Machine& machine) {
  const OperatorTraits& traits = build.problem().traits();
  const Sequence sequence(build, machine);
  for (int r = 0; r < build.world(); ++r) {
    if (traits.before)
      sequence.dispatch(r);
    else if (build.problem().has_slots())
      sequence.tell_counts(r);
    sequence.multiply(r);
    if (traits.after) sequence.combine(r);
  }
}

}  // namespace shingle::planner
