// Tensor-parallel experts with merged slots, for few tokens: a tile has rows of all ranks, so no tile can
// begin before all tokens are there, and no sum can leave before the last product.
//
// All workers push what ranks need of each other, sort the tokens of all ranks in one pass, multiply, and sum
// the choices of all tokens in another. That pass stores each sum with the owner of the token. There the
// ranks are summed in rank order.
#include <numeric>
#include <utility>
#include <vector>

#include "fused.hpp"
#include "planner/common/experts.hpp"
#include "planner/common/merged_slots.hpp"

namespace shingle::planner {
namespace {

class MergedExperts {
 public:
  MergedExperts(FusedBuilder& build, const Machine& machine)
      : build_(build),
        p_(build.problem()),
        machine_(machine),
        handshake_(build),
        slots_(build, true),
        merged_(build, slots_) {
    const std::int64_t tokens = p_.world * p_.m, rows = p_.routing->received(0);
    arrived_ = build.counter("arrived", p_.world);
    if (gathers()) gathered_ = build.buffer("gathered", tokens, p_.k);
    sorted_ = build.buffer("sorted", rows, p_.k);
    if (p_.traits().chains()) hidden_ = build.buffer("hidden", rows, p_.inner);
    products_ = build.buffer("products", rows, p_.out_cols());
    if (!sums()) return;
    weights_ = build.typed_buffer("weights", DType::f32, tokens, p_.experts.topk);
    staging_ = build.typed_buffer("staging", build.params().stage_fp32 ? DType::f32 : p_.dtype, tokens, p_.n);
    stored_ = build.counter("stored", p_.world);
  }

  /// Brings a rank's slots, tokens and weights to all ranks. The last push tells of those before it.
  void gather(int rank) const {
    slots_.assign(rank);
    handshake_.await_all(build_, rank, compute_lane);
    for (const std::int32_t buffer : slots_.gathered())
      if (p_.world > 1) push(rank, own(buffer, rank), own(buffer, rank), peers(rank));
    if (gathers()) push(rank, build_.all(build_.a, rank), own(gathered_, rank), everyone(rank), !sums());
    if (sums()) push(rank, build_.all(build_.topk_weights, rank), own(weights_, rank), everyone(rank), true);
    for (const std::int32_t source : peers(rank))
      build_.await(rank, compute_lane, arrived_, source, pushed());
    slots_.return_counts(rank);
    merged_.merge(rank);
    build_.step(rank, compute_lane,
                merged_.sort(build_.all(gathers() ? gathered_ : build_.a, rank), build_.all(sorted_, rank)));
  }

  void multiply(int rank) const {
    const bool chains = p_.traits().chains();
    if (chains) add(build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_, rank)), sorted_);
    add(build_.gemm(rank, build_.one_tile(1), {}, in_place(products_, rank)), chains ? hidden_ : sorted_);
    const Slice products = build_.all(products_, rank);
    if (!sums()) return build_.step(rank, compute_lane, merged_.place(products));
    RowMap owners = RowMap::identity(p_.world * p_.m);
    owners.stride = p_.m;
    const Placement to{own(staging_, rank), placement::Owners{owners}};
    // All begin with the tokens of another rank, so that not all store to one rank at a time.
    const int first = (rank + 1) % p_.world;
    Elementwise pass = merged_.combine(products, build_.all(weights_, rank), to, grid_of_sums(first));
    TileNotify notify{stored_, {}, {}, {}};
    for (int turn = 0; turn < p_.world; ++turn) {
      notify.ends.push_back((turn + 1) * std::int64_t{sums_of_owner()});
      notify.entries.push_back(rank);
      notify.owners.push_back((first + turn) % p_.world);
    }
    pass.notify.push_back(std::move(notify));
    build_.step(rank, compute_lane, std::move(pass));
  }

  /// Sums a rank's tokens over ranks.
  void sum(int rank) const {
    if (!sums()) return;
    Elementwise pass;
    pass.grid = build_.row_blocks(p_.m, p_.n);
    for (int holder = 0; holder < p_.world; ++holder) {
      build_.await(rank, compute_lane, stored_, holder, sums_of_owner());
      pass.from.push_back(Builder::in_place(part_of(build_, staging_, rank, holder)));
    }
    pass.to = in_place(build_.out, rank);
    build_.step(rank, compute_lane, std::move(pass));
  }

 private:
  bool gathers() const { return p_.traits().before.has_value(); }
  bool sums() const { return p_.traits().after.has_value(); }
  Placement in_place(std::int32_t buffer, int rank) const {
    return Builder::in_place(build_.all(buffer, rank));
  }
  Slice own(std::int32_t buffer, int rank) const { return part_of(build_, buffer, rank, rank); }
  std::vector<std::int32_t> peers(int rank) const {
    std::vector<std::int32_t> peers;
    for (int i = 1; i < p_.world; ++i) peers.push_back((rank + i) % p_.world);
    return peers;
  }
  std::vector<std::int32_t> everyone(int rank) const {
    std::vector<std::int32_t> ranks{rank};
    for (const std::int32_t peer : peers(rank)) ranks.push_back(peer);
    return ranks;
  }

  /// Appends the pass that copies a slice of the rank to the same place on other ranks. `last`: peers find
  /// its tiles in their counts.
  void push(int rank, const Slice& from, Slice to, std::vector<std::int32_t> ranks, bool last = false) const {
    to.rank = ranks.front();
    Elementwise pass = build_.copy(from, to);
    pass.to.form = placement::Matrix{RowMap::identity(from.rows), std::move(ranks)};
    if (last && p_.world > 1) pass.notify.push_back({arrived_, peers(rank), {pass.grid.positions()}, {rank}});
    build_.step(rank, compute_lane, std::move(pass));
  }
  /// Tiles of the last push.
  std::uint32_t pushed() const {
    return static_cast<std::uint32_t>(build_.row_blocks(p_.m, sums() ? p_.experts.topk : p_.k).tiles());
  }

  void add(Gemm product, std::int32_t a) const {
    const int rank = product.a.rank;
    product = merged_.multiply(machine_, build_.params().tile, std::move(product), build_.all(a, rank));
    product.resources = {1, build_.workers()};
    build_.step(rank, compute_lane, std::move(product));
  }

  /// Rows of a tile of sums: as a pass over all tokens has, but all of one owner.
  std::int32_t rows_of_sums() const {
    return static_cast<std::int32_t>(
        std::gcd(p_.m, std::int64_t{build_.row_blocks(p_.world * p_.m, p_.n).tile_rows}));
  }
  std::uint32_t sums_of_owner() const { return static_cast<std::uint32_t>(p_.m / rows_of_sums()); }
  /// Tiles of the sums of all tokens. Those of rank `first` come first.
  TileGrid grid_of_sums(int first) const {
    const TileGrid whole = build_.row_blocks(p_.world * p_.m, p_.n);
    return make_grid(whole.rows, whole.cols, rows_of_sums(), whole.tile_cols,
                     {.rotation = first * static_cast<std::int32_t>(sums_of_owner())});
  }

  FusedBuilder& build_;
  const Problem& p_;
  const Machine& machine_;
  Handshake handshake_;
  Slots slots_;
  MergedSlots merged_;
  // Buffers. `gathered_`, `weights_` and `staging_` have a part of `m` rows for each rank.
  std::int32_t gathered_ = -1, sorted_ = -1, hidden_ = -1, products_ = -1, weights_ = -1, staging_ = -1;
  std::int32_t arrived_ = -1, stored_ = -1;  // counters: entry p for rank p
};

}  // namespace

void fuse_merged_experts(FusedBuilder& build, const Machine& machine) {
  const MergedExperts experts(build, machine);
  for (int r = 0; r < build.world(); ++r) {
    experts.gather(r);
    experts.multiply(r);
  }
  for (int r = 0; r < build.world(); ++r) experts.sum(r);
}

}  // namespace shingle::planner
