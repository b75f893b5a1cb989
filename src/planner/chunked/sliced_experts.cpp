// Tensor-parallel experts in chunks: a chunk has the tokens of one rank, or of several. While one chunk is
// multiplied, the tokens of the next arrive, and sums of the one before return to their ranks.
//
// Rows by expert are cut between tiles only, so chunks add no padding. A tile with rows of several ranks
// belongs to the chunk that arrives last. Own tokens are the first chunk, because they need no link.
//
// Sums leave in the opposite order, own tokens last. The rows of a chunk's tokens then lie in its own tiles
// and in those of chunks that are already multiplied.
#include <algorithm>
#include <utility>

#include "chunked.hpp"
#include "planner/common/experts.hpp"

namespace shingle::planner {
namespace {

class SlicedChunks {
 public:
  SlicedChunks(ChunkedBuilder& build, const Machine& machine)
      : build_(build),
        p_(build.problem()),
        routing_(*p_.routing),
        machine_(machine),
        chunks_(smaller(build.params().chunks, p_.world)) {
    const std::int64_t tokens = p_.world * p_.m, rows = routing_.received(0);
    if (p_.traits().before) {
      gathered_ = build.buffer("gathered", tokens, p_.k);
      sorted_ = build.buffer("sorted", rows, p_.k);
      arrived_ = build.counter("arrived", chunks_);
    }
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", rows, p_.inner);
    if (!p_.traits().after) return;
    weights_ = build.typed_buffer("weights", DType::f32, tokens, p_.experts.topk);
    products_ = build.buffer("products", rows, p_.n);
    sums_ = build.buffer("sums", tokens, p_.n);
    parts_ = build.buffer("parts", tokens, p_.n);
    weights_arrived_ = build.counter("weights", 1);
    combined_ = build.counter("combined", chunks_);
    returned_ = build.counter("returned", 1);
  }

  int chunks() const { return chunks_; }

  /// Sends a rank's tokens to all ranks, chunk by chunk, and then its weights.
  void gather(int rank) const {
    for (int chunk = 0; p_.traits().before && chunk < chunks_; ++chunk) {
      if (!travels(chunk)) continue;
      all_gather(rank, first_turn(chunk), first_turn(chunk + 1), build_.a, gathered_);
      build_.notify(rank, communicate_lane, arrived_, chunk);
    }
    if (!p_.traits().after) return;
    all_gather(rank, 0, p_.world, build_.topk_weights, weights_);
    build_.notify(rank, communicate_lane, weights_arrived_, 0);
  }

  /// Sorts the tokens of a chunk when they have arrived, and multiplies its tiles.
  void multiply(int rank, int chunk) const {
    if (travels(chunk)) build_.await(rank, compute_lane, arrived_, chunk);
    for (int turn = first_turn(chunk); turn < first_turn(chunk + 1); ++turn) {
      const int source = (rank + turn) % p_.world;
      const Slice from = turn == 0 ? build_.all(build_.a, rank) : of_rank(gathered_, rank, source);
      if (from.rows > 0)
        build_.step(rank, compute_lane, sort_tokens(build_, source, from, build_.all(sorted_, rank)));
    }
    add(p_.traits().chains() ? build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank))
                             : build_.gemm(rank, build_.one_tile(1), {}, in_place(build_.out, rank)),
        chunk, sorted_);
  }

  /// Multiplies the tiles of a chunk, and sums the choices of its tokens. Chunks come in descending order.
  void combine(int rank, int chunk) const {
    add(build_.gemm(rank, build_.one_tile(1), {}, in_place(products_, rank)), chunk,
        p_.traits().chains() ? hidden_ : build_.a);
    if (chunk == chunks_ - 1) build_.await(rank, compute_lane, weights_arrived_, 0);
    for (int turn = first_turn(chunk); turn < first_turn(chunk + 1); ++turn) {
      const int source = (rank + turn) % p_.world;
      const Slice to = of_rank(turn == 0 ? parts_ : sums_, rank, source);
      const Slice factors =
          turn == 0 ? build_.all(build_.topk_weights, rank) : of_rank(weights_, rank, source);
      if (to.rows > 0)
        build_.step(rank, compute_lane,
                    combine_sorted(build_, source, build_.all(products_, rank), factors, to));
    }
  }

  /// Returns the sums of a chunk's tokens to their ranks.
  void give_back(int rank, int chunk) const {
    if (!travels(chunk)) return;
    build_.notify(rank, compute_lane, combined_, chunk);
    build_.await(rank, communicate_lane, combined_, chunk);
    std::vector<Exchange::Message> sends, receives;
    for (int turn = first_turn(chunk); turn < first_turn(chunk + 1); ++turn) {
      const int owner = (rank + turn) % p_.world, holder = (rank - turn + p_.world) % p_.world;
      sends.push_back({owner, of_rank(sums_, rank, owner)});
      receives.push_back({holder, part_of(holder, rank)});
    }
    exchange(rank, std::move(sends), std::move(receives));
  }

  /// Sums a rank's tokens over ranks, in rank order.
  void sum(int rank) const {
    // Transfers run in order, so a wait for the last covers all.
    hand_over(build_, rank, returned_, communicate_lane, compute_lane);
    Elementwise pass;
    pass.grid = build_.row_blocks(tokens_of(p_, rank), p_.n);
    for (int holder = 0; holder < p_.world; ++holder)
      pass.from.push_back(Builder::in_place(part_of(holder, rank)));
    pass.to = in_place(build_.out, rank);
    if (pass.grid.rows > 0) build_.step(rank, compute_lane, std::move(pass));
  }

 private:
  /// Ranks take turns: turn t of rank r has the tokens of rank r + t. First turn of a chunk, or the end.
  int first_turn(int chunk) const {
    if (chunk == 0) return 0;
    if (chunk == chunks_) return p_.world;
    return 1 + static_cast<int>(chunk_begin(p_.world - 1, chunks_ - 1, chunk - 1));
  }
  /// True if a chunk has tokens of other ranks.
  bool travels(int chunk) const { return first_turn(chunk + 1) > 1; }

  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }
  /// The rows of a rank's tokens in a buffer of `rank` that has those of all ranks.
  Slice of_rank(std::int32_t buffer, int rank, int source) const {
    return build_.rows(buffer, rank, source * p_.m, tokens_of(p_, source));
  }
  /// What a rank has of the sums of an owner's tokens, in the memory of the owner.
  Slice part_of(int holder, int owner) const {
    return build_.rows(parts_, owner, holder * p_.m, tokens_of(p_, owner));
  }

  void exchange(int rank, std::vector<Exchange::Message> sends,
                std::vector<Exchange::Message> receives) const {
    const auto needless = [&](const Exchange::Message& message) {
      return message.peer == rank || message.slice.rows == 0;
    };
    std::erase_if(sends, needless);
    std::erase_if(receives, needless);
    if (!sends.empty() || !receives.empty()) build_.exchange(rank, std::move(sends), std::move(receives));
  }

  /// Brings a matrix with a row a token, from the ranks of some turns.
  void all_gather(int rank, int first, int end, std::int32_t matrix, std::int32_t parts) const {
    std::vector<Exchange::Message> sends, receives;
    for (int turn = first; turn < end; ++turn) {
      const int source = (rank + turn) % p_.world;
      sends.push_back({(rank - turn + p_.world) % p_.world, build_.all(matrix, rank)});
      receives.push_back({source, of_rank(parts, rank, source)});
    }
    exchange(rank, std::move(sends), std::move(receives));
  }

  /// Appends the tiles of a product that belong to a chunk.
  void add(Gemm product, int chunk, std::int32_t a) const {
    const int rank = product.a.rank;
    const TurnGroups all =
        groups_in_turn(routing_, rank, unit_rows(machine_, {}, product.epilogue), TurnOf::last);
    std::vector<RowGroup> groups;
    for (std::size_t i = 0; i < all.groups.size(); ++i)
      if (all.turns[i] >= first_turn(chunk) && all.turns[i] < first_turn(chunk + 1))
        groups.push_back(all.groups[i]);
    if (groups.empty()) return;
    std::ranges::sort(groups, {}, &RowGroup::row);  // rows of an expert together: they share its weight
    build_.step(rank, compute_lane, grouped(build_, machine_, {}, std::move(product), a, std::move(groups)));
  }

  ChunkedBuilder& build_;
  const Problem& p_;
  const Routing& routing_;
  const Machine& machine_;
  const int chunks_;
  // Buffers. `gathered_`, `weights_`, `sums_` and `parts_` have a part of `m` rows for each rank.
  std::int32_t gathered_ = -1, sorted_ = -1, hidden_ = -1, weights_ = -1, products_ = -1, sums_ = -1,
               parts_ = -1;
  std::int32_t arrived_ = -1, weights_arrived_ = -1, combined_ = -1, returned_ = -1;  // counters
};

}  // namespace

std::int32_t chunks_of_slices(const Problem& problem, const Machine& machine, std::int32_t most) {
  const std::int64_t unit = problem.experts.count * unit_rows(machine, {}, problem.epilogue);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(problem.routing->received(0) / unit, 1, most));
}

void sliced_experts_in_chunks(ChunkedBuilder& build, const Machine& machine) {
  const OperatorTraits& traits = build.problem().traits();
  const SlicedChunks experts(build, machine);
  for (int r = 0; r < build.world(); ++r) {
    experts.gather(r);
    for (int chunk = 0; traits.before && chunk < experts.chunks(); ++chunk) experts.multiply(r, chunk);
    if (!traits.after) continue;
    for (int chunk = experts.chunks() - 1; chunk >= 0; --chunk) {
      experts.combine(r, chunk);
      experts.give_back(r, chunk);
    }
    experts.sum(r);
  }
}

}  // namespace shingle::planner
