#include "engine_collectives.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "planner/copy_engine/choose.hpp"
#include "planner/copy_engine/reductions.hpp"

namespace shingle::planner {
namespace {

constexpr std::int64_t most_slices = 64;  // of a part: each is a copy and a sum

/// Engines and variant of a collective. Parts of an exchange travel as those of a reduce-scatter.
Result<CopyEngineParams> params_for(const Workload& workload, const Machine& machine, CollectiveKind kind,
                                    std::int64_t rows) {
  const Op op = kind == CollectiveKind::allgather   ? Op::allgather
                : kind == CollectiveKind::allreduce ? Op::allreduce
                                                    : Op::reducescatter;
  Problem problem{op, workload.world, rows, workload.n(), workload.n()};
  problem.dtype = workload.dtype;
  CopyEngineParams wanted{.trigger = EngineTrigger::direct};
  if (problem.traits().reduces()) wanted.sum_slices = 2;  // no swap, as the payload must not change
  return engine_params(problem, machine, wanted, true);
}

}  // namespace

std::optional<Reason> EngineCollectives::infeasible(const Workload& workload, const Machine& machine,
                                                    const std::vector<CollectiveConfig>& configs,
                                                    bool symmetric) {
  const WorkloadRows rows = rows_of(workload);
  for (std::size_t j = 0; j < configs.size(); ++j) {
    if (!configs[j].by_engines()) continue;
    if (symmetric || workload.world > max_world)
      return Reason{fmt::format(
          "copy engines reach into other ranks' memory: all ranks are planned, at most {}", max_world)};
    const auto chosen = params_for(workload, machine, workload.collectives[j].kind, rows.collectives[j].rows);
    if (!chosen) return Reason{chosen.reason()};
  }
  return std::nullopt;
}

WorkloadRows::Result EngineCollectives::slice_of(const Shape& shape, int rank, std::size_t slice) {
  const std::int64_t all = shape.kind == CollectiveKind::allreduce
                               ? std::clamp<std::int64_t>(shape.to.rows - rank * shape.shard, 0, shape.shard)
                               : shape.shard;
  const std::int64_t first = smaller(static_cast<std::int64_t>(slice) * shape.slice, all);
  return {first, smaller(shape.slice, all - first)};
}

EngineCollectives::EngineCollectives(CopyEngineBuilder& build, const Workload& workload,
                                     const Machine& machine, const std::vector<CollectiveConfig>& configs) {
  const WorkloadRows rows = rows_of(workload);
  const std::int64_t row_bytes = workload.n() * static_cast<std::int64_t>(size_bytes(workload.dtype));
  std::map<std::size_t, CopyEngineParams> params;
  for (std::size_t j = 0; j < configs.size(); ++j) {
    if (!configs[j].by_engines()) continue;
    const CollectiveKind kind = workload.collectives[j].kind;
    One one;
    one.kind = kind, one.to = rows.collectives[j];
    one.shard = kind == CollectiveKind::reducescatter ? one.to.rows : ceil_div(one.to.rows, build.world());
    const std::int64_t asked =
        configs[j].chunk_bytes > 0 ? ceil_div(configs[j].chunk_bytes, row_bytes) : one.shard;
    one.slice = sums(kind) ? larger(smaller(asked, one.shard), ceil_div(one.shard, most_slices)) : one.shard;
    one.workers = configs[j].channels > 0 ? configs[j].channels : larger(build.collective_workers(), 1);
    params.emplace(j, params_for(workload, machine, kind, one.to.rows).value());
    if (!sums(kind)) sum_engine_ = std::max(sum_engine_, static_cast<std::size_t>(params.at(j).engines));
    all_.emplace(j, std::move(one));
  }
  if (all_.empty()) return;
  const auto count = static_cast<std::int64_t>(configs.size());
  kept_ = build.counter("kept", count, CounterKind::set);
  summed_ = build.counter("summed", count);
  for (int r = 0; r < build.ranks(); ++r) sum_lane_ = build.helper_lane(r, "sums");
  handshake_.emplace(build);
  for (auto& [j, one] : all_) {
    if (sums(one.kind))
      one.staging = build.buffer(fmt::format("staging {}", j), (build.world() - 1) * one.shard, workload.n());
    declare(build, one, params.at(j));
  }
}

/// The transfers of a collective's parts. All are in the engines one behind the other.
void EngineCollectives::declare(CopyEngineBuilder& build, One& one, const CopyEngineParams& params) const {
  const int world = build.world();
  const Shape shape = one;
  const bool gathers = one.kind == CollectiveKind::allgather, reduces = sums(one.kind);
  const TransferLanes lanes{sum_lane_, reduces ? sum_engine_ : 0, params.engines};
  const bool even = one.to.rows % world == 0 || one.kind == CollectiveKind::reducescatter;
  for (std::int64_t slice = 0; slice < ceil_div(one.shard, one.slice); ++slice) {
    const auto index = static_cast<std::size_t>(slice);
    Parcels parts;
    parts.same_for_all = gathers;
    parts.from = [&build, shape, gathers, index](int source, int dest) {
      const auto [first, rows] = slice_of(shape, dest, index);
      return build.rows(build.payload, source, (gathers ? 0 : dest * shape.shard) + first, rows);
    };
    parts.to = [&build, shape, reduces, world, index](int source, int dest) {
      const auto [first, rows] = slice_of(shape, dest, index);
      if (!reduces) return build.rows(build.out, dest, shape.to.first + source * shape.shard + first, rows);
      return build.rows(shape.staging, dest, (source - dest - 1 + world) % world * shape.shard + first, rows);
    };
    one.exchange.emplace_back(build, parts, exchange_of(params.variant),
                              slice == 0 || !even ? &*handshake_ : nullptr, Transfer::Start::behind, lanes);
    if (one.kind != CollectiveKind::allreduce) continue;
    Parcels sums_of;
    sums_of.same_for_all = true;
    sums_of.from = [&build, shape, index](int source, int) {
      const auto [first, rows] = slice_of(shape, source, index);
      return build.rows(build.out, source, shape.to.first + source * shape.shard + first, rows);
    };
    sums_of.to = [&build, shape, index](int source, int dest) {
      const auto [first, rows] = slice_of(shape, source, index);
      return build.rows(build.out, dest, shape.to.first + source * shape.shard + first, rows);
    };
    one.gather.emplace_back(build, sums_of, gather_of(params.variant), nullptr, Transfer::Start::by_trigger,
                            lanes);
  }
}

void EngineCollectives::begin(CopyEngineBuilder& build, int rank, std::size_t collective,
                              const std::vector<CounterRef>& after) {
  One& one = all_.at(collective);
  const auto entry = static_cast<std::int64_t>(collective);
  const std::int32_t lane = sums(one.kind) ? sum_lane_ : build.engine(rank, 0);
  for (const CounterRef& count : after) build.step(rank, lane, Await{count, 1});
  if (!sums(one.kind)) {  // the own part, beside those for other ranks
    const std::int64_t own = rank * one.shard;
    const std::int64_t sent = one.kind == CollectiveKind::allgather ? 0 : own;
    build.step(rank, lane,
               Copy{build.rows(build.payload, rank, sent, one.shard),
                    build.rows(build.out, rank, one.to.first + own, one.shard)});
  }
  for (Transfer& slice : one.exchange)
    slice.ready(build, rank, &slice == &one.exchange.front() ? after : std::vector<CounterRef>{});
  if (sums(one.kind)) {
    sum(build, one, rank);
    build.notify(rank, sum_lane_, summed_, entry);
  } else {
    build.notify(rank, lane, kept_, entry);
  }
}

/// Sums the parts of all ranks in rank order, slice by slice.
void EngineCollectives::sum(CopyEngineBuilder& build, One& one, int rank) const {
  const int world = build.world();
  for (std::size_t slice = 0; slice < one.exchange.size(); ++slice) {
    one.exchange[slice].arrived(build, rank);
    const auto [first, rows] = slice_of(one, rank, slice);
    const auto part = [&](std::int32_t buffer, std::int64_t row) {
      return build.rows(buffer, rank, rows > 0 ? row + first : 0, rows);
    };
    const std::int64_t own = one.kind == CollectiveKind::allreduce ? rank * one.shard : 0;
    const Slice to = part(build.out, one.to.first + own);
    Elementwise pass;
    pass.grid = sum_blocks(build, rows, to.cols, one.workers);
    for (int source = 0; source < world; ++source)
      pass.from.push_back(Builder::in_place(
          source == rank ? part(build.payload, rank * one.shard)
                         : part(one.staging, (source - rank - 1 + world) % world * one.shard)));
    pass.to = Builder::in_place(to);
    pass.resources = {1, one.workers};  // collectives that wait may leave it no more
    if (!one.gather.empty()) one.gather[slice].hook(pass.grid, pass.notify, rank);
    build.step(rank, sum_lane_, std::move(pass));
    if (!one.gather.empty()) one.gather[slice].ready(build, rank);
  }
}

void EngineCollectives::await(CopyEngineBuilder& build, int rank, std::int32_t lane,
                              std::size_t collective) const {
  const One& one = all_.at(collective);
  const auto entry = static_cast<std::int64_t>(collective);
  if (sums(one.kind)) {
    build.await(rank, lane, summed_, entry);
    for (const Transfer& slice : one.gather) slice.arrived(build, rank, lane);
  } else {
    for (const Transfer& part : one.exchange) part.arrived(build, rank, lane);
    build.await(rank, lane, kept_, entry);
  }
}

}  // namespace shingle::planner
