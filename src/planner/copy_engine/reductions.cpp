#include "reductions.hpp"

#include <utility>
#include <vector>

#include "choose.hpp"
#include "shingle/plan/shapes.hpp"
#include "transfers.hpp"

namespace shingle::planner {
namespace {

/// Rows of a shard, from its first row on.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// These rows of a matrix in which the shard begins at a row.
Slice rows_at(const CopyEngineBuilder& build, std::int32_t buffer, int rank, std::int64_t shard_row,
              const RowRange& range) {
  return build.rows(buffer, rank, range.rows > 0 ? shard_row + range.first : 0, range.rows);
}

/// Partial sums of all ranks for one rank's shard: where they are sent from, and where they arrive. Shards
/// are cut into slices; the last slices of a short shard may be short or empty.
class Partials {
 public:
  Partials(CopyEngineBuilder& build, bool in_place)
      : shard_(build.problem().shard_rows()),
        slice_(ceil_div(shard_, larger(build.params().sum_slices, 1))),
        world_(build.world()),
        in_place_(in_place) {
    const Problem& p = build.problem();
    const bool own_copy = p.traits().multiplies() || in_place;  // the user's A must not change
    source_ = own_copy ? build.buffer("product", in_place ? world_ * shard_ : p.m, p.n) : build.a;
    if (!in_place) staging_ = build.buffer("staging", (world_ - 1) * shard_, p.n);
  }

  std::int32_t source() const { return source_; }
  int slices() const { return static_cast<int>(ceil_div(shard_, slice_)); }

  /// Rows of a slice of a rank's shard, from the shard's first row on.
  RowRange rows_of(const Problem& p, int rank, int slice) const {
    const std::int64_t all = rows_of_shard(p, rank), first = smaller(slice * slice_, all);
    return {first, smaller(slice_, all - first)};
  }
  /// Rows that `source` has for `dest`. In place, whole shards are exchanged, even if the last shards are
  /// short.
  Slice from(const CopyEngineBuilder& build, int source, int dest, int slice) const {
    if (!in_place_) return part(build, source_, source, dest, rows_of(build.problem(), dest, slice));
    const bool any = rows_of_shard(build.problem(), dest) > 0 || rows_of_shard(build.problem(), source) > 0;
    return part(build, source_, source, dest, {0, any ? shard_ : 0});
  }
  /// Where these rows arrive at `dest`.
  Slice to(const CopyEngineBuilder& build, int source, int dest, int slice) const {
    const RowRange rows = rows_of(build.problem(), dest, slice);
    if (source == dest || in_place_) return part(build, source_, dest, source, rows);
    return part(build, staging_, dest, (source - dest - 1 + world_) % world_, rows);
  }
  Parcels parcels(const CopyEngineBuilder& build, int slice) const {
    Parcels parcels;
    parcels.from = [this, &build, slice](int s, int d) { return from(build, s, d, slice); };
    parcels.to = [this, &build, slice](int s, int d) { return to(build, s, d, slice); };
    return parcels;
  }

 private:
  Slice part(const CopyEngineBuilder& build, std::int32_t buffer, int rank, int index,
             const RowRange& rows) const {
    return rows_at(build, buffer, rank, index * shard_, rows);
  }

  std::int64_t shard_;
  std::int64_t slice_;  // rows
  int world_;
  bool in_place_;
  std::int32_t source_, staging_ = -1;
};

/// Sum of all ranks' parts of a slice of the own shard, in rank order. `finishing`: with the epilogue.
Elementwise sum_pass(const CopyEngineBuilder& build, const Partials& partials, int rank, int slice,
                     const Slice& to, bool finishing) {
  const TileGrid grid = sum_blocks(build, to.rows, build.problem().n, build.params().sum_workers);
  Elementwise pass = build.finishing(rank, grid, {}, Builder::in_place(to));
  for (int source = 0; source < build.world(); ++source)
    pass.from.push_back(Builder::in_place(partials.to(build, source, rank, slice)));
  if (!finishing) {
    pass.epilogue = {};
    pass.norm = {};
    pass.bias = pass.norm_weight = {};
    pass.residual = pass.sum = {};
  }
  if (const std::int32_t sum_workers = build.params().sum_workers; sum_workers > 0)
    pass.resources = {sum_workers, sum_workers};
  return pass;
}

/// The exchange of parts, a transfer for each slice. All are in the engines one behind the other.
std::vector<Transfer> exchanges(CopyEngineBuilder& build, const Partials& partials, CopyVariant variant,
                                const Handshake& handshake) {
  // Of equal shards each slice goes to all ranks, so that the first one has awaited their begin.
  const bool even = build.problem().m % build.world() == 0;
  std::vector<Transfer> all;
  for (int slice = 0; slice < partials.slices(); ++slice)
    all.emplace_back(build, partials.parcels(build, slice), variant,
                     slice == 0 || !even ? &handshake : nullptr,
                     slice == 0 ? Transfer::Start::by_trigger : Transfer::Start::behind);
  return all;
}

/// Makes a rank's parts, and sends them.
void send_partials(CopyEngineBuilder& build, const Partials& partials, std::vector<Transfer>& exchange,
                   int rank) {
  const Problem& p = build.problem();
  if (p.traits().multiplies()) {
    Gemm gemm = build.triggering(build.gemm(rank, build.one_tile(p.m), RowMap::identity(p.m),
                                            Builder::in_place(build.rows(partials.source(), rank, 0, p.m))));
    exchange.front().hook(gemm.grid, gemm.notify, rank);
    build.step(rank, compute_lane, std::move(gemm));
  } else if (partials.source() != build.a) {
    build.copy_rows(rank, build.all(build.a, rank), build.rows(partials.source(), rank, 0, p.m));
  }
  for (Transfer& slice : exchange) slice.ready(build, rank);
}

}  // namespace

TileGrid sum_blocks(const Builder& build, std::int64_t rows, std::int64_t cols, std::int32_t sum_workers) {
  constexpr std::int64_t elements = 1 << 15;
  const TileGrid blocks = build.row_blocks(rows, cols);
  const std::int64_t most = larger(blocks.tile_rows, elements / cols),
                     each = ceil_div(rows, sum_workers > 0 ? sum_workers : build.workers());
  return make_grid(rows, cols, static_cast<std::int32_t>(larger(smaller(each, most), 1)), blocks.tile_cols);
}

void plan_reducescatter(CopyEngineBuilder& build, CopyVariant variant) {
  const Partials partials(build, variant == CopyVariant::swap);
  const Handshake handshake(build);
  std::vector<Transfer> exchange = exchanges(build, partials, variant, handshake);
  for (int r = 0; r < build.world(); ++r) {
    send_partials(build, partials, exchange, r);
    for (int slice = 0; slice < partials.slices(); ++slice) {
      exchange[static_cast<std::size_t>(slice)].arrived(build, r);
      const Slice sums = rows_at(build, build.out, r, 0, partials.rows_of(build.problem(), r, slice));
      build.step(r, compute_lane, sum_pass(build, partials, r, slice, sums, true));
    }
  }
}

void plan_allreduce(CopyEngineBuilder& build, CopyVariant variant) {
  const Problem& p = build.problem();
  const CopyVariant first = exchange_of(variant), second = gather_of(variant);
  const Partials partials(build, first == CopyVariant::swap);
  const bool rows_later = build.row_wise_finishing(), fills = build.params().unregistered && !rows_later;
  const std::int32_t reduced = rows_later ? build.buffer("reduced", p.m, p.n)
                               : fills    ? build.typed_buffer("reduced", dtype_of(p, Role::out), p.m, p.n)
                                          : build.out;
  const auto part = [&](std::int32_t buffer, int r, int owner, int slice) {  // of an owner's sums, on rank r
    return rows_at(build, buffer, r, owner * p.shard_rows(), partials.rows_of(p, owner, slice));
  };
  const Handshake handshake(build);
  std::vector<Transfer> exchange = exchanges(build, partials, first, handshake), gather;
  for (int slice = 0; slice < partials.slices(); ++slice) {
    Parcels sums;
    sums.same_for_all = true;
    sums.from = [&, slice](int source, int) { return part(reduced, source, source, slice); };
    sums.to = [&, slice](int source, int dest) { return part(reduced, dest, source, slice); };
    gather.emplace_back(build, sums, second, nullptr);
  }
  for (int r = 0; r < p.world; ++r) {
    send_partials(build, partials, exchange, r);
    for (int slice = 0; slice < partials.slices(); ++slice) {
      Transfer& sent = gather[static_cast<std::size_t>(slice)];
      exchange[static_cast<std::size_t>(slice)].arrived(build, r);
      Elementwise pass = sum_pass(build, partials, r, slice, part(reduced, r, r, slice), !rows_later);
      sent.hook(pass.grid, pass.notify, r);
      build.step(r, compute_lane, std::move(pass));
      sent.ready(build, r);
    }
    for (int slice = 0; slice < partials.slices(); ++slice) {
      const auto fill = [&](int s) {
        build.copy_rows(r, part(reduced, r, s, slice), part(build.out, r, s, slice));
      };
      if (fills) fill(r);
      gather[static_cast<std::size_t>(slice)].arrived(build, r, fills ? fill : Transfer::Use{});
    }
    finish_rows(build, r, fills ? build.out : reduced, p.m);
  }
}

}  // namespace shingle::planner
