// Tensor-parallel experts: all-gather of tokens and their weights, products, reduce-scatter, one after the
// other.
//
// NCCL and MPI need equal parts. If ranks may have different numbers of tokens, a rank's part is copied to
// its place among those of all ranks, or from there, and the collective works in place.
#include <optional>
#include <utility>

#include "planner/common/merged_slots.hpp"
#include "planner/common/sliced_experts.hpp"
#include "sequential.hpp"

namespace shingle::planner {
namespace {

class SlicedSequence {
 public:
  SlicedSequence(Builder& build, const Machine& machine, bool merges)
      : build_(build), p_(build.problem()), routing_(*p_.routing), machine_(machine) {
    const std::int64_t tokens = p_.world * p_.m, rows = routing_.received(0);
    if (gathers()) gathered_ = build.buffer("gathered", tokens, p_.k);
    if (gathers() || merges) sorted_ = build.buffer("sorted", rows, p_.k);
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", rows, p_.inner);
    if (sums()) {
      weights_ = build.typed_buffer("weights", DType::f32, tokens, p_.experts.topk);
      sums_ = build.buffer("sums", tokens, p_.n);
      combined_ = build.counter("combined", 1);
    }
    if (sums() || merges) products_ = build.buffer("products", rows, p_.out_cols());
    for (int rank = 0; rank < p_.world; ++rank)
      if (tokens_of(p_, rank) != p_.m) equal_ = false;
    if (p_.has_slots()) {
      slots_.emplace(build, merges);
      if (merges) merged_.emplace(build, *slots_);
      equal_ = false;
    }
    if (!equal_) placed_ = build.counter("placed", 1);
    if (!equal_ && sums()) summed_ = build.counter("summed", 1);
    arrived_ = build.counter("arrived", 1);
  }

  /// Brings the tokens of all ranks, their weights, and where they go.
  void gather(int rank) const {
    if (slots_) slots_->assign(rank);
    if (!equal_) {
      if (gathers()) copy(rank, build_.all(build_.a, rank), own(gathered_, rank));
      if (sums()) copy(rank, build_.all(build_.topk_weights, rank), own(weights_, rank));
      hand_over(build_, rank, placed_, compute_lane, communicate_lane);
    }
    if (slots_)
      for (const std::int32_t buffer : slots_->gathered())
        build_.collective(rank, CollectiveKind::allgather, part_of(build_, buffer, rank, rank),
                          build_.all(buffer, rank));
    if (gathers()) all_gather(rank, build_.a, gathered_);
    if (sums()) all_gather(rank, build_.topk_weights, weights_);
    hand_over(build_, rank, arrived_, communicate_lane, compute_lane);
    if (merged_) {
      merged_->merge(rank);
      build_.step(
          rank, compute_lane,
          merged_->sort(build_.all(gathers() ? gathered_ : build_.a, rank), build_.all(sorted_, rank)));
    }
    for (int source = 0; gathers() && !merged_ && source < p_.world; ++source)
      build_.step(rank, compute_lane,
                  sort_tokens(build_, slots(), source, of_source(gathered_, rank, source),
                              build_.all(sorted_, rank)));
    if (slots_) slots_->return_counts(rank);
  }

  void multiply(int rank) const {
    const std::int32_t a = sorted_ >= 0 ? sorted_ : build_.a,
                       result = products_ >= 0 ? products_ : build_.out;
    const bool chains = p_.traits().chains();
    if (chains) add(build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank)), a);
    add(build_.gemm(rank, build_.one_tile(1), {}, in_place(result, rank)), chains ? hidden_ : a);
    if (merged_ && !sums()) build_.step(rank, compute_lane, merged_->place(build_.all(products_, rank)));
  }

  /// Sums the choices of all tokens on the rank, then over ranks.
  void combine(int rank) const {
    if (merged_) {
      const Placement to = in_place(sums_, rank);
      build_.step(rank, compute_lane,
                  merged_->combine(build_.all(products_, rank), build_.all(weights_, rank), to,
                                   build_.row_blocks(to.slice.rows, to.slice.cols)));
    }
    for (int source = 0; !merged_ && source < p_.world; ++source)
      build_.step(rank, compute_lane,
                  combine_sorted(build_, slots(), source, build_.all(products_, rank),
                                 of_source(weights_, rank, source), of_source(sums_, rank, source)));
    hand_over(build_, rank, combined_, compute_lane, communicate_lane);
    build_.collective(rank, CollectiveKind::reducescatter, build_.all(sums_, rank),
                      part(build_.out, sums_, rank));
    if (equal_) return;
    hand_over(build_, rank, summed_, communicate_lane, compute_lane);
    copy(rank, own(sums_, rank), build_.all(build_.out, rank));
  }

 private:
  bool gathers() const { return p_.traits().before.has_value(); }
  bool sums() const { return p_.traits().after.has_value(); }
  const Slots* slots() const { return slots_ ? &*slots_ : nullptr; }
  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }
  /// The rows of a source's tokens in a buffer that has those of all ranks.
  Slice of_source(std::int32_t buffer, int rank, int source) const {
    return build_.rows(buffer, rank, source * p_.m, tokens_of(p_, source));
  }
  Slice own(std::int32_t buffer, int rank) const { return of_source(buffer, rank, rank); }
  /// The rank's part of a collective: the user's matrix, or its place among the parts of all ranks.
  Slice part(std::int32_t matrix, std::int32_t parts, int rank) const {
    return equal_ ? build_.all(matrix, rank) : build_.rows(parts, rank, rank * p_.m, p_.m);
  }
  void copy(int rank, const Slice& from, const Slice& to) const {
    if (from.rows > 0) build_.step(rank, compute_lane, build_.copy(from, to));
  }
  void all_gather(int rank, std::int32_t matrix, std::int32_t to) const {
    build_.collective(rank, CollectiveKind::allgather, part(matrix, to, rank), build_.all(to, rank));
  }
  void add(Gemm product, std::int32_t a) const {
    const int rank = product.a.rank;
    if (merged_)
      return build_.step(rank, compute_lane,
                         merged_->multiply(machine_, {}, std::move(product), build_.all(a, rank)));
    product.a = build_.all(a, rank);
    std::vector<RowGroup> groups;
    if (slots_) {
      product.live = slots_->live(rank);
      groups =
          slots_in_turn(build_, product, std::vector<std::int32_t>(static_cast<std::size_t>(p_.world), 0))
              .groups;
    } else {
      groups = groups_by_expert(routing_, rank);
    }
    build_.step(rank, compute_lane, grouped(build_, machine_, {}, std::move(product), std::move(groups)));
  }

  Builder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  std::optional<Slots> slots_;         ///< with a capacity
  std::optional<MergedSlots> merged_;  ///< where tiles have rows of all ranks
  bool equal_ = true;                  ///< all ranks always have equally many tokens
  // Buffers. `gathered_`, `weights_` and `sums_` have a part of `m` rows for each rank.
  std::int32_t gathered_ = -1, sorted_ = -1, hidden_ = -1, weights_ = -1, products_ = -1, sums_ = -1;
  std::int32_t placed_ = -1, arrived_ = -1, combined_ = -1, summed_ = -1;  // counters
};

}  // namespace

void sliced_experts_in_sequence(Builder& build, const Machine& machine, bool merges) {
  const SlicedSequence sequence(build, machine, merges);
  for (int r = 0; r < build.world(); ++r) {
    sequence.gather(r);
    sequence.multiply(r);
    if (build.problem().traits().after) sequence.combine(r);
  }
}

}  // namespace shingle::planner
