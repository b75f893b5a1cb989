#include "timed_plans.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/common/builder.hpp"
#include "shingle/base/error.hpp"
#include "shingle/planner/planner.hpp"
#include "sim/demand.hpp"

namespace shingle::tuning {
namespace {

using planner::Builder;

/// Replaces the lanes of every rank. Steps are issued lane by lane.
template <class MakeLanes>
Plan with_lanes(Plan plan, MakeLanes make_lanes) {
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    RankPlan made{make_lanes(static_cast<int>(rank)), {}};
    for (std::size_t lane = 0; lane < made.lanes.size(); ++lane)
      made.issue.insert(made.issue.end(), made.lanes[lane].steps.size(), static_cast<std::int32_t>(lane));
    plan.ranks[rank] = std::move(made);
  }
  return plan;
}

Lane compute_lane(std::vector<Step> steps) {
  return {LaneKind::compute, "compute", std::move(steps)};
}
Lane communicate_lane(std::vector<Step> steps) {
  return {LaneKind::communicate, "communicate", std::move(steps)};
}

/// A copy of an operator's input to its output, which has the same shape.
Elementwise pass_of(const Plan& plan, int rank, std::int32_t tile_rows) {
  const Slice from = whole(plan, find_buffer(plan, Role::a), rank);
  Elementwise step;
  step.grid = make_grid(from.rows, from.cols, tile_rows, static_cast<std::int32_t>(from.cols));
  step.from.push_back(Builder::in_place(from));
  step.to = Builder::in_place(whole(plan, find_buffer(plan, Role::out), rank));
  return step;
}

std::shared_ptr<const Routing> even_routing(int ranks, std::int64_t rows) {
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(ranks));
  for (auto& list : dest)
    for (std::int64_t row = 0; row < rows; ++row)
      list.push_back(static_cast<std::int32_t>(row * ranks / rows));
  return std::make_shared<const Routing>(std::move(dest));
}

CollectiveKind kind_of(Op op) {
  switch (op) {
    case Op::reducescatter:
      return CollectiveKind::reducescatter;
    case Op::allgather:
      return CollectiveKind::allgather;
    case Op::alltoall:
      return CollectiveKind::alltoall;
    default:
      return CollectiveKind::allreduce;
  }
}

/// The first step of a rank that computes.
Step computing_step(const Plan& plan, int rank) {
  for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (const Step& step : lane.steps)
      if (std::holds_alternative<Gemm>(step) || std::holds_alternative<Attend>(step) ||
          std::holds_alternative<Elementwise>(step))
        return step;
  throw InvalidArgument("the plan computes nothing");
}

Step on_workers(Step step, std::int32_t most) {
  if (auto* gemm = std::get_if<Gemm>(&step)) gemm->resources = {1, most};
  if (auto* attend = std::get_if<Attend>(&step)) attend->resources = {1, most};
  if (auto* pass = std::get_if<Elementwise>(&step)) pass->resources = {1, most};
  return step;
}

/// Numbers of tiles down and across with a product of nearly `most`, for a nearly square matrix. They are
/// multiples of the order's unit, so that no tile is a phantom.
std::pair<std::int64_t, std::int64_t> nearly_square(const TileShape& tile, std::int64_t most,
                                                    const TileOrder& order) {
  constexpr double worth = 0.1;  // aspect ratio 2 is as bad as 7% fewer tiles
  const bool along_n = order.raster == Raster::along_n;
  const std::int64_t down_unit = order.cluster_m * (along_n ? order.swizzle : 1);
  const std::int64_t across_unit = order.cluster_n * (along_n ? 1 : order.swizzle);
  const double square = std::sqrt(static_cast<double>(most) * tile.cols / tile.rows);
  std::pair<std::int64_t, std::int64_t> best{down_unit, across_unit};
  double best_score = -1e9;
  for (std::int64_t down = down_unit; down <= most; down += down_unit) {
    const std::int64_t across = most / down / across_unit * across_unit;
    if (across == 0) break;
    const double score = static_cast<double>(down * across) / static_cast<double>(most) -
                         worth * std::abs(std::log(static_cast<double>(down) / square));
    if (score > best_score) best = {down, across}, best_score = score;
  }
  return best;
}

}  // namespace

Plan counted(Plan plan) {
  const auto counter = static_cast<std::int32_t>(plan.counters.size());
  Counter counts{"done", CounterKind::add, {}};
  for (const RankPlan& rank : plan.ranks) {
    std::size_t steps = 0;
    for (const Lane& lane : rank.lanes) steps += lane.steps.size();
    counts.growth.push_back({static_cast<std::uint32_t>(steps)});
  }
  plan.counters.push_back(std::move(counts));
  const Plan bare = plan;
  return with_lanes(std::move(plan), [&](int rank) {
    std::vector<Lane> lanes = bare.ranks[static_cast<std::size_t>(rank)].lanes;
    for (Lane& lane : lanes) {
      std::vector<Step> steps;
      for (Step& step : lane.steps) {
        steps.push_back(std::move(step));
        steps.push_back(Notify{{counter, rank, 0}, 1});
      }
      lane.steps = std::move(steps);
    }
    return lanes;
  });
}

TimedPlans::TimedPlans(const Machine& machine, int world, DType dtype, bool hooked)
    : machine_(machine), world_(world), dtype_(dtype), hooked_(hooked && world > 1) {
  machine_.collective_workers = 0;
}

Plan TimedPlans::sequential(const Problem& problem) const {
  return plan_sequential(problem, machine_).value();
}

Problem TimedPlans::moving(Op op, std::int64_t rows, std::int64_t cols) const {
  Problem problem{.op = op, .world = world_, .m = rows, .n = cols, .k = cols, .dtype = dtype_};
  if (problem.traits().routes()) problem.routing = even_routing(world_, rows);
  return problem;
}

double TimedPlans::bytes_passed(std::int64_t rows, int sources) const {
  return (sources + 1.0) * static_cast<double>(rows * kibi) * static_cast<double>(size_bytes(dtype_));
}

Plan TimedPlans::copy(std::int64_t rows) const {
  const Plan base = sequential(moving(Op::allreduce, rows, kibi));
  return with_lanes(base, [&](int rank) {
    return std::vector<Lane>{compute_lane({Copy{whole(base, find_buffer(base, Role::a), rank),
                                                whole(base, find_buffer(base, Role::out), rank)}})};
  });
}

Plan TimedPlans::pass(std::int64_t rows, std::int32_t workers) const {
  const Plan base = sequential(moving(Op::allreduce, rows, kibi));
  return with_lanes(base, [&](int rank) {
    Elementwise step = pass_of(base, rank, 64);
    if (workers > 0) step.resources = {workers, workers};
    return std::vector<Lane>{compute_lane({step})};
  });
}

Plan TimedPlans::pushed(std::int64_t rows) const {
  Plan base = sequential(moving(Op::allreduce, rows, kibi));
  const auto pushed = static_cast<std::int32_t>(base.buffers.size());
  base.buffers.push_back(
      {"pushed", Role::internal, dtype_, std::vector(static_cast<std::size_t>(world_), rows), kibi, 1});
  return with_lanes(base, [&](int rank) {
    Elementwise step = pass_of(base, rank, 64);
    step.to = Builder::in_place(whole(base, pushed, (rank + 1) % world_));
    return std::vector<Lane>{compute_lane({step})};
  });
}

TimedPlans::Stored TimedPlans::stored(std::int64_t rows, int sources) const {
  Plan base = sequential(moving(Op::allreduce, rows, kibi));
  const auto by_rank = [&](auto value) { return std::vector(static_cast<std::size_t>(world_), value); };
  const auto stored = static_cast<std::int32_t>(base.buffers.size());
  base.buffers.push_back({"stored", Role::internal, dtype_, by_rank(world_ * rows), kibi, 1});
  base.counters = {{"stored", CounterKind::add, by_rank(std::vector{static_cast<std::uint32_t>(world_)})}};
  const auto part = [&](int rank, int source) {
    Slice slice = whole(base, stored, rank);
    slice.row = source * rows, slice.rows = rows;
    return slice;
  };
  Plan plan = with_lanes(base, [&](int rank) {
    const Slice own = whole(base, find_buffer(base, Role::a), rank);
    std::vector<Step> steps;
    for (int to = 0; to < world_; ++to) steps.push_back(Copy{own, part(to, rank)});
    for (int to = 0; to < world_; ++to) steps.push_back(Notify{{0, to, 0}, 1});
    steps.push_back(Await{{0, rank, 0}, static_cast<std::uint32_t>(world_)});
    Elementwise sum;
    sum.grid = make_grid(rows, kibi, machine_.tile_rows, machine_.tile_cols);
    for (int source = 1; source <= sources; ++source)
      sum.from.push_back(Builder::in_place(part(rank, (rank + source) % world_)));
    sum.to = Builder::in_place(whole(base, find_buffer(base, Role::out), rank));
    steps.push_back(sum);
    return std::vector<Lane>{compute_lane(steps)};
  });
  return {std::move(plan), 2 * world_ + 1};
}

Plan TimedPlans::small_steps(int count) const {
  const Plan base = sequential(moving(Op::allreduce, 64, 16));
  return with_lanes(base, [&](int rank) {
    const auto steps = static_cast<std::size_t>(count);
    Elementwise step = pass_of(base, rank, 64);
    step.epilogue.activation = Activation::relu;  // pure copies may be merged into one pass
    return std::vector<Lane>{compute_lane(std::vector<Step>(steps, step))};
  });
}

Plan TimedPlans::turns(int rounds) const {
  Plan base = sequential(moving(Op::allreduce, 64, 16));
  // All rounds share one count: a count per round would become an event edge, without a kernel that waits.
  const std::vector<std::uint32_t> growth{static_cast<std::uint32_t>(rounds)};
  base.counters = {{"there", CounterKind::add, std::vector(static_cast<std::size_t>(world_), growth)},
                   {"back", CounterKind::add, std::vector(static_cast<std::size_t>(world_), growth)}};
  Plan plan = with_lanes(base, [&](int rank) {
    const Step step = pass_of(base, rank, 64);
    std::vector<Step> first, second;
    for (std::uint32_t i = 1; i <= growth.front(); ++i) {
      first.insert(first.end(), {step, Notify{{0, rank, 0}, 1}, Await{{1, rank, 0}, i}});
      second.insert(second.end(), {Await{{0, rank, 0}, i}, step, Notify{{1, rank, 0}, 1}});
    }
    return std::vector<Lane>{compute_lane(first), communicate_lane(second)};
  });
  for (RankPlan& rank : plan.ranks) {  // issues each notify before its await
    rank.issue.clear();
    for (int i = 0; i < rounds; ++i) rank.issue.insert(rank.issue.end(), {0, 0, 1, 1, 1, 0});
  }
  return plan;
}

Plan TimedPlans::product(std::int64_t m, std::int64_t n, std::int64_t k) const {
  return sequential({.op = Op::gemm, .world = world_, .m = m, .n = n, .k = k, .dtype = dtype_});
}

Tiled TimedPlans::tiled(const TileShape& tile, std::int64_t k, std::int64_t waves, bool picks) const {
  const auto [down, across] = nearly_square(tile, waves * machine_.workers, machine_.order);
  const Op hooked = picks ? Op::gemm_reducescatter : Op::gemm_allreduce;
  Problem problem{.op = hooked_ ? hooked : Op::gemm,
                  .world = world_,
                  .m = down * tile.rows,
                  .n = across * tile.cols,
                  .k = k,
                  .dtype = dtype_};
  const Plan base = hooked_ ? plan_signal(problem, machine_, {.tile = {tile.rows, tile.cols}}).value()
                            : sequential(problem);
  const TileGrid grid = make_grid(problem.m, problem.n, tile.rows, tile.cols, machine_.order);
  Plan plan = with_lanes(base, [&](int rank) {
    auto gemm = std::get<Gemm>(steps_of<Gemm>(base, rank).front());
    gemm.grid = grid;
    gemm.resources = {1, machine_.workers};
    return std::vector<Lane>{compute_lane({gemm})};
  });
  return {std::move(plan), ceil_div(grid.positions(), std::int64_t{machine_.workers})};
}

Plan TimedPlans::attention(const AttentionSize& size) const {
  // A sequence for each rank, which holds its queries, keys and values. All do as the last rank.
  Problem problem{.op = size.backward ? Op::attention_backward : Op::allgather_attention,
                  .world = world_,
                  .m = world_ * size.keys,
                  .n = size.heads * size.head_dim,
                  .k = size.heads * size.head_dim,
                  .dtype = dtype_};
  problem.attention = {.heads = size.heads,
                       .kv_heads = size.heads,
                       .head_dim = size.head_dim,
                       .causal = size.causal,
                       .lengths = std::vector(static_cast<std::size_t>(world_), size.keys)};
  Plan base = sequential(problem);
  for (Buffer& buffer : base.buffers)
    if (buffer.role == Role::internal) std::ranges::fill(buffer.rows, 0);
  const std::int64_t first_token = problem.m - size.queries, first_key = problem.m - size.keys;
  return with_lanes(base, [&](int rank) {
    const auto rows = [&](Role role, std::int64_t count) {
      Slice slice = whole(base, find_buffer(base, role), rank);
      slice.rows = count;
      return slice;
    };
    const auto of = [&](auto step) {
      step.grid = make_grid(size.queries, step.grid.cols,
                            size.backward ? static_cast<std::int32_t>(size.queries) : step.grid.tile_rows,
                            step.grid.tile_cols);
      step.first_token = first_token, step.first_key = first_key;
      step.q = rows(Role::a, size.queries);
      step.keys = rows(Role::keys, size.keys), step.values = rows(Role::values, size.keys);
      return step;
    };
    if (!size.backward) {
      Attend step = of(std::get<Attend>(steps_of<Attend>(base, rank).front()));
      step.out = Builder::in_place(rows(Role::out, size.queries));
      return std::vector<Lane>{compute_lane({step})};
    }
    AttendBackward step = of(std::get<AttendBackward>(steps_of<AttendBackward>(base, rank).front()));
    step.grad = rows(Role::grad, size.queries), step.attended = rows(Role::attended, size.queries);
    step.lse = rows(Role::lse, size.queries), step.q_grad = rows(Role::out, size.queries);
    step.keys_grad = rows(Role::keys_grad, size.keys);
    step.values_grad = rows(Role::values_grad, size.keys);
    return std::vector<Lane>{compute_lane({step})};
  });
}

TimedPlans::Calls TimedPlans::calls(Op op, int ranks, std::int32_t workers, double bytes, int count) const {
  constexpr std::int64_t part = 16;  // rows of a rank
  const std::int64_t all = ranks * part;
  const auto element = static_cast<double>(size_bytes(dtype_));
  const std::int64_t cols = larger(static_cast<std::int64_t>(bytes / element) / all, 1);
  Plan base = sequential(moving(op, world_ * part, cols));
  base.communicators.front().ranks.resize(static_cast<std::size_t>(ranks));
  const std::vector<std::int64_t> parts(op == Op::alltoall ? static_cast<std::size_t>(ranks) : 0, part);
  Plan plan = with_lanes(base, [&](int rank) {
    Collective call{.kind = kind_of(op),
                    .send = whole(base, find_buffer(base, Role::a), rank),
                    .recv = whole(base, find_buffer(base, Role::out), rank),
                    .send_rows = parts,
                    .recv_rows = parts,
                    .resources = {workers, workers}};
    call.send.rows = op == Op::allgather ? part : all;
    call.recv.rows = op == Op::reducescatter ? part : all;
    std::vector<Lane> lanes;
    if (rank < ranks)
      lanes.push_back(communicate_lane(std::vector<Step>(static_cast<std::size_t>(count), call)));
    return lanes;
  });
  return {std::move(plan), static_cast<double>(all * cols) * element};
}

Plan TimedPlans::reduced_product(std::int64_t size) const {
  return sequential(
      {.op = Op::gemm_allreduce, .world = world_, .m = size, .n = size, .k = size, .dtype = dtype_});
}

double TimedPlans::first_group(const Plan& product) const {
  const auto gemm = std::get<Gemm>(steps_of<Gemm>(product, 0).front());
  if (gemm.notify.empty()) return 0;
  return static_cast<double>(gemm.grid.tiles_before(gemm.notify.front().ends.front())) /
         static_cast<double>(gemm.grid.tiles());
}

MovedBytes TimedPlans::moved_by(const Plan& computation) const {
  return sim::moved_by(computation, computing_step(computation, 0), machine_);
}

Plan TimedPlans::beside(const Plan& computation, const Beside& what) const {
  Plan base = computation;
  const auto moved = static_cast<std::int32_t>(base.buffers.size());
  const double row_bytes = static_cast<double>(kibi * static_cast<std::int64_t>(size_bytes(dtype_)));
  const std::int64_t part = larger(static_cast<std::int64_t>(what.bytes / row_bytes) / world_, 1);
  const std::int64_t rows = part * world_;
  // cuBLASLt or oneDNN chooses its workers.
  const bool chooses = computation.mechanism == Mechanism::sequential &&
                       std::holds_alternative<Gemm>(computing_step(computation, 0));
  base.buffers.push_back({"moved", Role::internal, dtype_,
                          // Engines send the second half to the first half of the next rank.
                          std::vector(static_cast<std::size_t>(world_), what.engines ? 2 * rows : rows), kibi,
                          1});
  const auto copied = static_cast<std::int32_t>(base.counters.size());
  if (what.engines)
    base.counters.push_back(
        {"copied", CounterKind::set,
         std::vector(static_cast<std::size_t>(world_),
                     std::vector<std::uint32_t>{static_cast<std::uint32_t>(what.calls)})});
  return with_lanes(base, [&](int rank) {
    std::vector<Lane> lanes;
    if (what.products > 0) {
      const Step step = on_workers(computing_step(computation, rank), machine_.workers - what.left);
      lanes.push_back(compute_lane(std::vector<Step>(static_cast<std::size_t>(what.products), step)));
    }
    if (what.calls > 0) {
      std::vector<Step> steps;
      if (what.late) {
        const auto gemm = std::get<Gemm>(steps_of<Gemm>(computation, rank).front());
        const TileNotify& counts = gemm.notify.front();
        const std::int64_t tiles = gemm.grid.tiles_before(counts.ends.front());
        steps.push_back(Await{{counts.counter, rank, counts.entry(0)}, static_cast<std::uint32_t>(tiles)});
      }
      if (what.engines) {
        Slice to = whole(base, moved, (rank + 1) % world_);
        to.rows = larger(static_cast<std::int64_t>(wire_factor(parse_traffic(name(what.kind)), world_) *
                                                   static_cast<double>(rows)),
                         1);
        Slice from = to;
        from.rank = rank, from.row = rows;
        for (int call = 1; call <= what.calls; ++call)
          steps.insert(steps.end(),
                       {Copy{from, to}, Notify{{copied, rank, 0}, static_cast<std::uint32_t>(call)}});
        lanes.push_back({LaneKind::copy, "engine 0", std::move(steps)});
        return lanes;
      }
      Slice matrix = whole(base, moved, rank), own = matrix;
      own.row = rank * part, own.rows = part;
      const Collective call{.kind = what.kind,
                            .send = what.kind == CollectiveKind::allgather ? own : matrix,
                            .recv = what.kind == CollectiveKind::reducescatter ? own : matrix,
                            .send_rows = {},
                            .recv_rows = {},
                            .resources = {what.workers, chooses ? 0 : what.workers},
                            .config = {.channels = what.workers, .chunk_bytes = what.chunk_bytes}};
      steps.insert(steps.end(), static_cast<std::size_t>(what.calls), call);
      lanes.push_back(communicate_lane(std::move(steps)));
    }
    return lanes;
  });
}

}  // namespace shingle::tuning
