// Shared by the plans of the mechanism ring: slices of shards, and one rank's part of a reduce-scatter.
#pragma once

#include <functional>
#include <vector>

#include "planner/common/builder.hpp"

namespace shingle::planner {

using RingBuilder = ParamBuilder<RingParams>;

/// Rows of a shard that one row map describes.
struct Run {
  RowMap rows;             ///< row of the run → row of the global matrix
  std::int64_t first = 0;  ///< first row of the run, from the start of the slice
  std::int64_t count = 0;
};

/// Shards of the rows, and their slices. Slice s is rows [begin(s), begin(s + 1)) of every shard; the last
/// shards may have fewer rows, or none.
class Shards {
 public:
  explicit Shards(const RingBuilder& build) : p_(build.problem()) {
    const std::int64_t unit = dealt() ? p_.row_block : 1;
    const std::int64_t count = smaller(build.params().slices, ceil_div(p_.shard_rows(), unit));
    for (std::int64_t s = 0; s <= count; ++s) begins_.push_back(chunk_begin(p_.shard_rows(), count, s, unit));
  }

  std::int64_t slices() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  std::int64_t begin(std::int64_t s) const { return begins_[static_cast<std::size_t>(s)]; }
  std::int64_t longest() const {
    std::int64_t rows = 0;
    for (std::int64_t s = 0; s < slices(); ++s) rows = larger(rows, begin(s + 1) - begin(s));
    return rows;
  }
  std::int64_t rows(int shard, std::int64_t s) const {
    return larger(smaller(begin(s + 1), shard_rows(shard)) - begin(s), 0);
  }
  /// The shard `places` places behind a rank on the ring.
  int behind(int rank, std::int64_t places) const {
    return static_cast<int>((rank + p_.world - places % p_.world) % p_.world);
  }

  /// Runs of rows of a slice of a shard: one, or two if the last block of a block-cyclic shard is short.
  std::vector<Run> runs(int shard, std::int64_t s) const {
    const std::int64_t first = begin(s), count = rows(shard, s), block = p_.row_block;
    if (!dealt()) return {{RowMap::identity(count, shard * p_.shard_rows() + first), 0, count}};
    const std::int64_t whole = p_.shard_rows() / block * block;
    const std::int64_t in_whole = larger(smaller(count, whole - first), 0);
    std::vector<Run> runs;
    if (in_whole > 0)
      runs.push_back({{static_cast<std::int32_t>(ceil_div(in_whole, block)), block, block, p_.world * block,
                       p_.world * first + shard * block, p_.m},
                      0,
                      in_whole});
    if (count > in_whole) {
      const std::int64_t base = p_.world * whole + shard * (p_.shard_rows() - whole);
      runs.push_back({RowMap::identity(count - in_whole, base), in_whole, count - in_whole});
    }
    return runs;
  }

 private:
  bool dealt() const { return p_.row_order == RowOrder::block_cyclic; }
  std::int64_t shard_rows(int shard) const {
    if (p_.traits().scatters()) return p_.out_rows(shard);
    if (p_.op == Op::allgather_gemm) return p_.a_rows(shard);
    return rows_of_shard(p_, shard);
  }

  const Problem& p_;
  std::vector<std::int64_t> begins_;
};

/// True if copy engines carry slices to the next rank's memory. Otherwise NCCL or MPI sends messages.
inline bool by_engines(const RingBuilder& build) {
  return build.params().engines > 0 && build.world() > 1;
}
/// True if workers store attention's exchanges to other ranks' memory.
inline bool by_stores(const RingBuilder& build) {
  return build.params().mover == Mover::store && build.world() > 1;
}
/// Lane of the engine for a slice; slices are dealt to the engines in turn.
inline std::int32_t engine_of(const RingBuilder& build, std::int64_t slice) {
  return static_cast<std::int32_t>(communicate_lane + 1 + slice % build.params().engines);
}
/// Makes the engines' lanes, if there are engines. They write to a rank only after it has begun the epoch.
/// Before that, its user or its own lanes may still use the memory.
void begin_engines(RingBuilder& build, const Shards& shards);

/// Flash-AG: shards of A go around the ring, slice by slice, and are stored in order of arrival. The own
/// shard is not copied.
class RingGather {
 public:
  RingGather(RingBuilder& build, const Shards& shards);

  /// The slice of the shard `places` behind a rank, in the rank's memory.
  Slice held(int rank, std::int64_t places, std::int64_t s) const;
  /// Sends the shard `places` behind to the next rank, and receives the shard behind that. The last shard is
  /// not sent.
  void pass_on(int rank, std::int64_t places, std::int64_t s) const;
  /// The lane waits until the shard `places` behind has arrived.
  void await(int rank, std::int64_t places, std::int64_t s, std::int32_t lane = compute_lane) const;

 private:
  void copy_on(int rank, std::int64_t places, std::int64_t s) const;

  RingBuilder& build_;
  const Shards& shards_;
  std::int64_t shard_;
  std::int32_t gathered_ = -1;  // buffer
  std::int32_t arrived_ = -1;   // counter, by place and slice
};

/// The all-gather of an allreduce's output: one slice of every shard at a time, from a rank's output to the
/// next rank's.
class OutputGather {
 public:
  /// `finished`: counter, by slice: the rank's own part is in the output.
  OutputGather(RingBuilder& build, const Shards& shards, std::int32_t finished);

  /// Step i for slice s: sends the shard i places behind to the next rank.
  void step(int rank, std::int64_t i, std::int64_t s) const;
  /// Awaits the last shard. The rank has passed on all others, and so awaited them before.
  void await_last(int rank) const;

 private:
  std::vector<Slice> parts(int shard, std::int64_t s, int rank) const;
  void copy_on(int rank, std::int64_t i, std::int64_t s) const;

  RingBuilder& build_;
  const Shards& shards_;
  std::int32_t finished_;
  std::int32_t arrived_ = -1;  // counter of engines, by step and slice
};

/// Buffers and counters of a plan that reduces, the same on all ranks; -1: not needed.
///
/// A pass sends one slice's sum to the next rank, and receives the sum of another slice from the previous
/// rank. All ranks number their passes alike.
struct Sums {
  std::int32_t partial;        ///< buffer, in two halves: one is computed while the other is in flight
  std::int32_t received = -1;  ///< buffer: sums received from the previous rank
  std::int64_t half;           ///< rows in half of `partial`
  std::int32_t summed = -1;    ///< counter: the i-th pass may send
  std::int32_t arrived = -1;   ///< counter: the i-th pass has received
  std::int32_t sent = -1;      ///< counter: the i-th pass has sent; for messages the same as `arrived`
  std::int32_t freed = -1;  ///< counter, for engines: the next rank has added the sum that the i-th pass sent
  std::int32_t finished = -1;  ///< counter: the own shard's slice is in the output
  std::int32_t attended = -1;  ///< buffer: attention of the queries; -1: A is multiplied directly
};

/// One rank's part of a reduce-scatter. The sum of a slice starts at the rank after its owner and goes around
/// the ring to the owner. Every rank adds its own partial product.
class Reducer {
 public:
  /// `rows`: first row of each slice in half of `partial` and in `received`, for slices that are in flight
  /// together.
  Reducer(RingBuilder& build, const Shards& shards, const Sums& sums, int rank,
          const std::vector<std::int64_t>& rows);

  /// Appends the work that a product needs before it, and sets the product's A.
  using Before = std::function<void(int shard, std::int64_t slice, Gemm& product)>;
  void before_products(Before before) { before_ = std::move(before); }

  /// Appends the attention of all queries, before any product (row-parallel, Algorithm 3).
  void attend_all() { attend(0, build_.problem().m); }

  /// Step i of the ring for slice s: the shard i + 1 places behind the rank. The last step is the rank's own
  /// shard.
  void step(std::int64_t i, std::int64_t s);

 private:
  /// Place of a slice, and the last passes that read or wrote it; -1: none.
  struct Slot {
    std::int64_t row;
    std::size_t turn = 0;
    std::int64_t sent[2] = {-1, -1};  ///< from each half
    std::int64_t received = -1;
    std::int64_t copied = -1;  ///< to the next rank's slot
  };

  void await(std::int32_t counter, std::int64_t pass);
  void multiply(int shard, std::int64_t s, const Slice& partial);
  void attend(std::int64_t first, std::int64_t rows);
  TileGrid blocks(std::int64_t rows) const;
  void add(const Slice& partial, std::vector<Placement> terms);
  void store(std::int64_t first, std::int64_t rows, std::vector<Placement> terms);
  void exchange(const Slot& slot, const Slice& partial, std::int64_t incoming);
  void copy_on(Slot& slot, std::int64_t s, const Slice& partial);

  RingBuilder& build_;
  const Shards& shards_;
  const Sums& sums_;
  int rank_;
  std::vector<Slot> slots_;
  Before before_{};
  std::int64_t known_ = -1;  ///< last exchange that the compute lane has awaited
  std::int64_t passes_ = 0;  ///< number of passes so far
};

/// `rows`: rows in half of the partial sums, and of the received sums.
Sums make_sums(RingBuilder& build, const Shards& shards, std::int64_t rows);

/// mlp: both products of a shard, while the previous one is passed on.
void plan_ring_mlp(RingBuilder& build, const Shards& shards);

/// ulysses-attention: sends messages of one group of heads and one piece of a shard, while the attention of
/// another is computed.
void ulysses_by_slices(RingBuilder& build);
/// The same by copy engines or stores, without packing.
void ulysses_by_copies(RingBuilder& build);
/// allgather+attention: keys and values of other ranks arrive while attention to those before is computed.
void attention_in_turns(RingBuilder& build);
/// attention-backward: the same, and parts of the gradients of keys and values go back to their owners.
void attention_backward_in_turns(RingBuilder& build);
/// ulysses-attention's default number of slices: as many groups of heads as K and V can be cut into, from 2
/// to 8.
std::int32_t default_ulysses_slices(const Problem& problem);

}  // namespace shingle::planner
