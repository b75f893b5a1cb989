#include "builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "counter_growth.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/shapes.hpp"
#include "symmetry.hpp"

namespace shingle::planner {
namespace {

void drop_empty_lanes(RankPlan& rank) {
  std::vector<std::int32_t> number;
  std::int32_t kept = 0;
  for (const Lane& lane : rank.lanes) number.push_back(lane.steps.empty() ? -1 : kept++);
  std::erase_if(rank.lanes, [](const Lane& lane) { return lane.steps.empty(); });
  for (std::int32_t& lane : rank.issue) lane = number[lane];
}

/// True if a pass applies an epilogue or a norm to values that are already rounded.
bool has_last_pass(const Plan& plan) {
  const auto reads_rounded = [&](const Step& step) {
    const auto* pass = std::get_if<Elementwise>(&step);
    return pass && pass->grid.tiles() > 0 && pass->from.size() == 1 &&
           (pass->epilogue.any() || pass->norm.enabled) &&
           plan.buffers[static_cast<std::size_t>(pass->from[0].slice.buffer)].dtype == plan.dtype();
  };
  return std::ranges::any_of(plan.ranks, [&](const RankPlan& rank) {
    return std::ranges::any_of(
        rank.lanes, [&](const Lane& lane) { return std::ranges::any_of(lane.steps, reads_rounded); });
  });
}

Params with_symmetric(Params params, bool symmetric) {
  std::visit([&](auto& at) { at.symmetric = symmetric; }, params);
  return params;
}

std::optional<Reason> wrong_tile(const TileParams& tile) {
  if (tile.rows < 0 || tile.cols < 0) return Reason{"a tile must have at least one row and one column"};
  const TileOrder& order = tile.order;
  if (order.swizzle < 1 || order.cluster_m < 1 || order.cluster_n < 1 || order.rotation < 0)
    return Reason{"swizzle and cluster must be at least 1, rotation at least 0"};
  if (std::max({order.swizzle, order.cluster_m, order.cluster_n}) > 4096)
    return Reason{"swizzle and cluster must be at most 4096"};
  return std::nullopt;
}

}  // namespace

Builder::Builder(Work work, std::int32_t collective_workers, const Machine& machine, const Params& params)
    : collective_workers_(collective_workers) {
  plan_.work = std::move(work);
  plan_.mechanism = mechanism_of(params);
  plan_.workers = machine.workers;
  const int planned = planned_ranks(world(), machine, is_symmetric(params));
  plan_.params = list_of(with_symmetric(params, planned < world()));
  std::vector<std::int32_t> everyone(world());
  std::iota(everyone.begin(), everyone.end(), 0);
  plan_.communicators.push_back({"world", std::move(everyone)});
  plan_.ranks.resize(planned);
  for (RankPlan& rank : plan_.ranks)
    rank.lanes = {{LaneKind::compute, "compute", {}}, {LaneKind::communicate, "communicate", {}}};
}

Builder::Builder(const Problem& problem, const Machine& machine, const Params& params)
    : Builder(Work(problem), problem.op == Op::gemm ? 0 : machine.collective_workers, machine, params) {
  std::vector<std::int64_t> a_rows, out_rows;
  for (int r = 0; r < ranks(); ++r) {
    a_rows.push_back(problem.a_rows(r));
    out_rows.push_back(problem.out_rows(r));
  }
  const auto same = [&](std::int64_t rows) { return std::vector<std::int64_t>(ranks(), rows); };
  a = problem.transpose_a ? user(Role::a, same(problem.k), problem.m) : user(Role::a, a_rows, problem.k);
  if (problem.traits().multiplies())
    b = problem.transpose_b ? user(Role::b, same(problem.weights() * problem.b_cols()), problem.k)
                            : user(Role::b, same(problem.weights() * problem.k), problem.b_cols());
  if (problem.traits().chains())
    down = problem.transpose_b ? user(Role::down, same(problem.weights() * problem.n), problem.inner)
                               : user(Role::down, same(problem.weights() * problem.inner), problem.n);
  if (problem.epilogue.bias) bias = user(Role::bias, same(1), problem.b_cols());
  if (problem.norm.enabled) norm_weight = user(Role::norm_weight, same(1), problem.out_cols());
  if (problem.norm.residual) residual = user(Role::residual, out_rows, problem.out_cols());
  if (problem.traits().attends) {
    const std::vector<std::int64_t> kv_rows = problem.traits().shards_tokens() ? a_rows : same(problem.m);
    keys = user(Role::keys, kv_rows, problem.kv_cols());
    values = user(Role::values, kv_rows, problem.kv_cols());
  }
  if (problem.traits().combines()) topk_weights = user(Role::topk_weights, out_rows, problem.experts.topk);
  if (problem.traits().backward) {
    grad = user(Role::grad, a_rows, problem.k);
    attended = user(Role::attended, a_rows, problem.k);
    lse = user(Role::lse, a_rows, problem.attention.heads);
    keys_grad = user(Role::keys_grad, a_rows, problem.kv_cols());
    values_grad = user(Role::values_grad, a_rows, problem.kv_cols());
  }
  out = user(Role::out, out_rows, problem.out_cols());
  if (problem.norm.residual) sum = user(Role::sum, out_rows, problem.out_cols());
  if (problem.attention.returns_lse) out_lse = user(Role::out_lse, out_rows, problem.attention.heads);
  if (problem.has_slots()) {
    topk_ids = user(Role::topk_ids, same(problem.m), problem.experts.topk);
    dropped = user(Role::dropped, same(1), 2);
    if (!problem.traits().combines()) counts = user(Role::counts, same(problem.world), problem.weights());
  }
}

Builder::Builder(const Workload& workload, const Machine& machine, const Params& params)
    : Builder(Work(workload), machine.collective_workers, machine, params) {
  const auto matrix = [&](Role role) {
    const Shape shape = shape_of(workload, role);
    return user(role, std::vector<std::int64_t>(ranks(), shape.rows), shape.cols);
  };
  a = matrix(Role::a);
  b = matrix(Role::b);
  payload = matrix(Role::payload);
  out = matrix(Role::out);
}

std::int32_t Builder::user(Role role, std::vector<std::int64_t> rows, std::int64_t cols) {
  plan_.buffers.push_back(
      {std::string(name(role)), role, dtype_of(plan_.work, role), std::move(rows), cols, 1});
  return static_cast<std::int32_t>(plan_.buffers.size()) - 1;
}

std::int32_t Builder::buffer(std::string name, std::vector<std::int64_t> rows, std::int64_t cols) {
  plan_.buffers.push_back({std::move(name), Role::internal, plan_.dtype(), std::move(rows), cols, 1});
  return static_cast<std::int32_t>(plan_.buffers.size()) - 1;
}

std::int32_t Builder::lane(int rank, LaneKind kind, std::string name) {
  plan_.ranks[rank].lanes.push_back({kind, std::move(name), {}});
  return static_cast<std::int32_t>(plan_.ranks[rank].lanes.size()) - 1;
}

std::int32_t Builder::engine(int rank, std::size_t number, const Submission& submission) {
  const std::string name = fmt::format("engine {}", number);
  auto& lanes = plan_.ranks[rank].lanes;
  for (std::size_t l = 0; l < lanes.size(); ++l)
    if (lanes[l].name == name) {
      ring_doorbell(rank, static_cast<std::int32_t>(l));
      return static_cast<std::int32_t>(l);
    }
  const std::int32_t made = lane(rank, LaneKind::copy, name);
  lanes[made].submission = submission;
  return made;
}

void Builder::communicate_by_host() {
  for (RankPlan& rank : plan_.ranks) rank.lanes[communicate_lane].kind = LaneKind::host;
}

void Builder::ring_doorbell(int rank, std::int32_t lane) {
  Lane& at = plan_.ranks[rank].lanes[lane];
  if (!at.submission.prelaunched)
    at.submission.doorbells.push_back(static_cast<std::int32_t>(at.steps.size()));
}

std::int32_t Builder::helper_lane(int rank, const std::string& name) {
  const std::vector<Lane>& lanes = plan_.ranks[rank].lanes;
  for (std::size_t l = compute_lane + 1; l < lanes.size(); ++l)
    if (lanes[l].kind == LaneKind::compute) return static_cast<std::int32_t>(l);
  return lane(rank, LaneKind::compute, name);
}

std::int32_t Builder::buffer(std::string name, std::int64_t rows, std::int64_t cols) {
  return buffer(std::move(name), std::vector<std::int64_t>(ranks(), rows), cols);
}

std::int32_t Builder::typed_buffer(std::string name, DType dtype, std::int64_t rows, std::int64_t cols) {
  return typed_buffer(std::move(name), dtype, std::vector<std::int64_t>(ranks(), rows), cols);
}

std::int32_t Builder::typed_buffer(std::string name, DType dtype, std::vector<std::int64_t> rows,
                                   std::int64_t cols) {
  const std::int32_t index = buffer(std::move(name), std::move(rows), cols);
  plan_.buffers[index].dtype = dtype;
  return index;
}

std::int32_t Builder::flagged_buffer(std::string name, std::int64_t rows, std::int64_t cols) {
  const std::int32_t index = buffer(std::move(name), rows, cols);
  plan_.buffers[index].depth = flagged_copies;
  plan_.buffers[index].flagged = true;
  return index;
}

std::int32_t Builder::counter(std::string name, std::int64_t entries, CounterKind kind) {
  plan_.counters.push_back({std::move(name), kind,
                            std::vector<std::vector<std::uint32_t>>(
                                ranks(), std::vector<std::uint32_t>(static_cast<std::size_t>(entries)))});
  return static_cast<std::int32_t>(plan_.counters.size()) - 1;
}

std::int32_t Builder::counter_of_begins() {
  const std::int32_t begun = counter("begun", world());
  plan_.counters[static_cast<std::size_t>(begun)].of_begins = true;
  return begun;
}

std::int32_t Builder::counter_of_arrivals(std::string name, std::int64_t entries) {
  const std::int32_t arrivals = counter(std::move(name), entries);
  plan_.counters[static_cast<std::size_t>(arrivals)].of_arrivals = true;
  return arrivals;
}

void Builder::step(int rank, std::int32_t lane, Step step) {
  plan_.ranks[rank].lanes[lane].steps.push_back(std::move(step));
  plan_.ranks[rank].issue.push_back(lane);
}

void Builder::collective(int rank, CollectiveKind kind, Slice send, Slice recv,
                         std::vector<std::int64_t> send_rows, std::vector<std::int64_t> recv_rows) {
  step(rank, communicate_lane,
       Collective{kind,
                  0,
                  send,
                  recv,
                  std::move(send_rows),
                  std::move(recv_rows),
                  // In the baseline NCCL or MPI chooses the number of workers.
                  {collective_workers_, plan_.mechanism == Mechanism::sequential ? 0 : collective_workers_}});
}

void Builder::exchange(int rank, std::vector<Exchange::Message> sends,
                       std::vector<Exchange::Message> receives) {
  step(rank, communicate_lane,
       Exchange{0, std::move(sends), std::move(receives), {collective_workers_, collective_workers_}});
}

void Builder::notify(int rank, std::int32_t lane, std::int32_t counter, std::int64_t entry) {
  step(rank, lane, Notify{{counter, rank, static_cast<std::int32_t>(entry)}, 1});
}

void Builder::notify_peer(int rank, std::int32_t lane, std::int32_t counter, int peer, std::int64_t entry) {
  step(rank, lane, Notify{{counter, peer, static_cast<std::int32_t>(entry)}, 1});
}

void Builder::await(int rank, std::int32_t lane, std::int32_t counter, std::int64_t entry,
                    std::uint32_t target) {
  step(rank, lane, Await{{counter, rank, static_cast<std::int32_t>(entry)}, target});
}

Slice Builder::rows(std::int32_t buffer, int rank, std::int64_t row, std::int64_t rows) const {
  return {buffer, rank, row, rows, 0, plan_.buffers[buffer].cols};
}

Slice Builder::wanted_lse(int rank, std::int64_t row, std::int64_t rows) const {
  return out_lse < 0 ? Slice{} : this->rows(out_lse, rank, row, rows);
}

Placement Builder::in_place(const Slice& slice) {
  return {slice, placement::Matrix{RowMap::identity(slice.rows)}};
}

Placement Builder::stacked(const Slice& slice) {
  return {slice, placement::Slots{}};
}

Plan Builder::finish(Rounding rounding) && {
  rounding.last_pass = has_last_pass(plan_);
  plan_.rounding = sentence(plan_.work, rounding);
  for (RankPlan& rank : plan_.ranks) {
    for (Lane& lane : rank.lanes) lane.steps.shrink_to_fit();
    grow_counters(plan_, rank);
  }
  if (!is_symmetric(plan_)) await_remaining_adds(plan_);
  for (RankPlan& rank : plan_.ranks) drop_empty_lanes(rank);
  return std::move(plan_);
}

Machine with_comm_workers(Machine machine, std::int32_t comm_workers) {
  if (comm_workers > 0) machine.collective_workers = comm_workers;
  return machine;
}

std::optional<Reason> infeasible(const Problem& problem, const Machine& machine, const Params& params) {
  if (auto reason = asymmetric(problem, machine, is_symmetric(params))) return reason;
  if (problem.traits().gathers() && problem.transpose_a)
    return Reason{
        fmt::format("{} moves rows of A: A must be stored by rows (transpose_a is off), as no collective "
                    "moves columns",
                    name(problem.op))};
  if (problem.op == Op::gemm_alltoall && problem.transpose_a)
    for (int r = 0; r < problem.world; ++r)
      if (problem.routing->rows(r) != problem.m || problem.m == 0)
        return Reason{
            "a transposed A has a column a row of the output: ranks with different numbers of rows need "
            "transpose_a off"};
  const Mechanism mechanism = mechanism_of(params);
  const bool grouped = mechanism == Mechanism::sequential || mechanism == Mechanism::chunked ||
                       mechanism == Mechanism::signal || mechanism == Mechanism::fused;
  if (problem.traits().grouped && !grouped)
    return Reason{fmt::format("{} does not plan grouped products: use sequential, chunked, signal or fused",
                              name(mechanism))};
  if (auto reason = no_worker_left(machine, problem.op == Op::gemm ? 0 : machine.collective_workers))
    return reason;
  const bool configures = std::visit(
      [](const auto& at) {
        if constexpr (requires { at.configs; }) return !at.configs.empty();
        return false;
      },
      params);
  if (configures) return Reason{"configs are for the collectives of an overlap only"};
  const SlotOrder slots = std::visit(
      [](const auto& at) {
        if constexpr (requires { at.slots; }) return at.slots;
        return SlotOrder::automatic;
      },
      params);
  if (slots != SlotOrder::automatic && !problem.orders_slots())
    return Reason{fmt::format("slots = {} is for tensor-parallel experts with a capacity", name(slots))};
  return wrong_params(params);
}

std::optional<Reason> wrong_params(const Params& params) {
  return std::visit(
      [](const auto& at) -> std::optional<Reason> {
        if constexpr (requires { at.comm_workers; })
          if (at.comm_workers < 0) return Reason{"comm_workers must not be negative"};
        if constexpr (requires { at.tile; }) return wrong_tile(at.tile);
        return std::nullopt;
      },
      params);
}

std::optional<Reason> no_worker_left(const Machine& machine, std::int32_t taken) {
  if (machine.workers - taken >= 1) return std::nullopt;
  return Reason{fmt::format("a collective takes {} of the {} workers and leaves none for computation", taken,
                            machine.workers)};
}

std::optional<Reason> nothing_to_overlap(const Problem& problem) {
  if (problem.op == Op::gemm) return Reason{"gemm has no communication to overlap: use sequential"};
  if (problem.traits().is_collective())
    return Reason{
        fmt::format("{} has no computation to overlap: use sequential or copy-engine", name(problem.op))};
  return std::nullopt;
}

void hand_over(Builder& build, int rank, std::int32_t counter, std::int32_t from, std::int32_t to) {
  build.notify(rank, from, counter, 0);
  build.await(rank, to, counter, 0);
}

Machine with_tiles_of(const Epilogue& epilogue, const Machine& machine) {
  Machine halved = machine;
  if (epilogue.activation == Activation::swiglu) halved.tile_cols = larger(machine.tile_cols / 2, 1);
  return halved;
}

TileSize tile_size(const Machine& machine, const TileParams& params) {
  return {params.rows > 0 ? params.rows : machine.tile_rows,
          params.cols > 0 ? params.cols : machine.tile_cols};
}

TileSize TileSize::within(std::int64_t matrix_rows, std::int64_t matrix_cols) const {
  const auto clipped = [](std::int32_t size, std::int64_t most) {
    return static_cast<std::int32_t>(larger(smaller(size, most), 1));
  };
  return {clipped(rows, matrix_rows), clipped(cols, matrix_cols)};
}

void finish_rows(Builder& build, int rank, std::vector<Placement> from, std::int64_t rows) {
  build.step(rank, compute_lane,
             build.finishing(rank, build.row_blocks(rows, build.product_cols()), std::move(from),
                             Builder::in_place(build.all(build.out, rank))));
}

void finish_rows(Builder& build, int rank, std::int32_t from, std::int64_t rows) {
  if (from != build.out) finish_rows(build, rank, {Builder::in_place(build.rows(from, rank, 0, rows))}, rows);
}

Rounding rounding(const Problem& problem) {
  if (problem.traits().reduces()) return {Summing::library, problem.dtype};
  if (problem.traits().backward && problem.world > 1) return {Summing::parts, problem.dtype};
  return {statements(problem).front().summing, problem.dtype};
}

}  // namespace shingle::planner
