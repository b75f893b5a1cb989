#include "shingle/tune/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "shingle/planner/planner.hpp"
#include "stopwatch.hpp"

namespace shingle {
namespace {

using tune::Stopwatch;

/// The steps of every rank, in place of those that a plan has.
template <class MakeLanes>
Plan with_lanes(Plan plan, MakeLanes make_lanes) {
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    plan.ranks[rank].lanes = make_lanes(static_cast<int>(rank));
    plan.ranks[rank].issue.clear();
    const auto& lanes = plan.ranks[rank].lanes;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane)
      plan.ranks[rank].issue.insert(plan.ranks[rank].issue.end(), lanes[lane].steps.size(),
                                    static_cast<std::int32_t>(lane));
  }
  return plan;
}

Lane compute_lane(std::vector<Step> steps) {
  return {LaneKind::compute, "compute", std::move(steps)};
}
Lane communicate_lane(std::vector<Step> steps) {
  return {LaneKind::communicate, "communicate", std::move(steps)};
}

Placement in_place(const Slice& slice) {
  Placement at;
  at.slice = slice;
  at.rows = RowMap::identity(slice.rows);
  return at;
}

std::shared_ptr<const Routing> even_routing(int world, std::int64_t rows) {
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
  for (auto& list : dest)
    for (std::int64_t row = 0; row < rows; ++row)
      list.push_back(static_cast<std::int32_t>(row * world / rows));
  return std::make_shared<const Routing>(std::move(dest));
}

class Profiler {
 public:
  Profiler(World& world, const ProfileOptions& options)
      : options_(options), machine_(world.machine()), watch_(world, options.repeat), world_(world.size()) {
    machine_.ranks = world_;
    machine_.collective_workers = 0;
  }

  Machine go() && {
    copies();
    passes();
    steps();
    tiles();
    edges();
    attention();
    if (world_ > 1) collectives();
    if (world_ > 1) contention();
    note("workers", Origin::measured, "threads that compute tiles");
    note("ranks", Origin::measured, "of the world that was measured");
    note("collective_workers", Origin::measured, "collectives have threads of their own");
    note("tile", Origin::assumed, "the backend's default");
    note("peer_memory", Origin::measured, "as the backend says");
    note("topology", Origin::measured, "links are emulated: each carries one transfer at a time");
    return std::move(machine_);
  }

 private:
  void next(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }
  void note(std::string of, Origin origin, std::string text) {
    machine_.sources.push_back({std::move(of), origin, std::move(text)});
  }
  Plan plan_of(const Problem& problem) const { return plan_sequential(problem, machine_).value(); }
  Problem moving(Op op, std::int64_t rows, std::int64_t cols) const {
    Problem problem{.op = op, .world = world_, .m = rows, .n = cols, .k = cols};
    if (problem.routes()) problem.routing = even_routing(world_, rows);
    return problem;
  }

  /// Copies of a thread.
  void copies() {
    next("memory");
    constexpr std::int64_t rows = 4096, cols = 1024;
    constexpr double bytes = 2.0 * 4 * rows * cols;  // read and written
    const Plan base = plan_of(moving(Op::allreduce, rows, cols));
    const std::int32_t a = find_buffer(base, Role::a), out = find_buffer(base, Role::out);
    const double copy = watch_.us(with_lanes(base, [&](int rank) {
      return std::vector<Lane>{compute_lane({Copy{whole(base, a, rank), whole(base, out, rank)}})};
    }));
    machine_.memory_gbps = bytes / copy * 1e-3;
    note("memory_gbps", Origin::measured, "16 MiB copied by one thread of each rank at once");
  }

  /// Passes of the workers, tile by tile, over what others have just stored here, as after any communication:
  /// it lies in their caches, or in none.
  void passes() {
    next("passes");
    constexpr std::int64_t rows = 1024, cols = 1024;
    Plan base = plan_of(moving(Op::allreduce, rows, cols));
    const std::int32_t a = find_buffer(base, Role::a), out = find_buffer(base, Role::out),
                       stored = static_cast<std::int32_t>(base.buffers.size());
    const auto by_rank = [&](auto value) { return std::vector(static_cast<std::size_t>(world_), value); };
    base.buffers.push_back({"stored", Role::internal, DType::f32, by_rank(world_ * rows), cols, 1});
    base.counters = {{"stored", CounterKind::add, by_rank(std::vector{static_cast<std::uint32_t>(world_)})}};
    const auto slot = [&](int rank, int source) {
      Slice slice = whole(base, stored, rank);
      slice.row = source * rows, slice.rows = rows;
      return slice;
    };
    const int first = 2 * world_ + 1;  // step after the copies, their notifies, and the wait for all
    const auto gbps = [&](int sources) {
      const double us = watch_.step_us(
          with_lanes(base,
                     [&](int rank) {
                       std::vector<Step> steps;
                       for (int to = 0; to < world_; ++to)
                         steps.push_back(Copy{whole(base, a, rank), slot(to, rank)});
                       for (int to = 0; to < world_; ++to) steps.push_back(Notify{{0, to, 0}, 1});
                       steps.push_back(Await{{0, rank, 0}, static_cast<std::uint32_t>(world_)});
                       Elementwise pass;
                       pass.grid = make_grid(rows, cols, machine_.tile_rows, machine_.tile_cols);
                       for (int source = 1; source <= sources; ++source)
                         pass.from.push_back(in_place(slot(rank, (rank + source) % world_)));
                       pass.to = in_place(whole(base, out, rank));
                       steps.push_back(pass);
                       return std::vector<Lane>{compute_lane(steps)};
                     }),
          0, first);
      return 4.0 * (sources + 1) * rows * cols / us * 1e-3 / machine_.workers;
    };
    machine_.pass_gbps = gbps(1);
    note("pass_gbps", Origin::measured,
         "a pass over 4 MiB that another rank has stored, by all workers of each rank at once");
    if (world_ == 1) return;
    machine_.reduce_gbps = gbps(world_);
    note("reduce_gbps", Origin::measured, "the sum of 4 MiB from each rank, stored by it");
  }

  /// What a step costs beside what it does, and what it takes until a lane sees a count.
  void steps() {
    next("steps and signals");
    constexpr int count = 200;
    Plan base = plan_of(moving(Op::allreduce, 64, 16));
    const std::int32_t a = find_buffer(base, Role::a), out = find_buffer(base, Role::out);
    machine_.launch_us = watch_.us(with_lanes(base, [&](int rank) {
      Elementwise step;
      step.grid = make_grid(64, 16, 64, 16);
      step.from.push_back(in_place(whole(base, a, rank)));
      step.to = in_place(whole(base, out, rank));
      return std::vector<Lane>{compute_lane(std::vector<Step>(count, step))};
    })) / count;
    // Two lanes that wait for each other in turn.
    const auto entries = std::vector<std::uint32_t>(count, 1);
    base.counters = {{"there", CounterKind::add, std::vector(static_cast<std::size_t>(world_), entries)},
                     {"back", CounterKind::add, std::vector(static_cast<std::size_t>(world_), entries)}};
    const double turns = watch_.us(with_lanes(base, [&](int rank) {
      std::vector<Step> first, second;
      for (std::int32_t i = 0; i < count; ++i) {
        first.push_back(Notify{{0, rank, i}, 1});
        first.push_back(Await{{1, rank, i}, 1});
        second.push_back(Await{{0, rank, i}, 1});
        second.push_back(Notify{{1, rank, i}, 1});
      }
      return std::vector<Lane>{compute_lane(first), communicate_lane(second)};
    }));
    machine_.signal_us = turns / (2 * count);
    note("launch_us", Origin::measured, "steps of one small tile, one after the other");
    note("signal_us", Origin::measured, "two lanes that wait for each other in turn");
  }

  Plan gemm_plan(std::int64_t rows, std::int64_t cols, std::int64_t k, std::int32_t tile_rows,
                 std::int32_t tile_cols) const {
    const Plan base =
        plan_of({.op = Op::gemm, .world = world_, .m = rows, .n = cols, .k = k, .dtype = options_.dtype});
    return with_lanes(base, [&](int rank) {
      auto gemm = std::get<Gemm>(base.ranks[static_cast<std::size_t>(rank)].lanes[0].steps[0]);
      gemm.grid = make_grid(rows, cols, tile_rows, tile_cols);
      return std::vector<Lane>{compute_lane({gemm})};
    });
  }

  /// A tile of a GEMM, all workers of all ranks busy.
  double tile_us(std::int32_t rows, std::int32_t cols, std::int64_t k) {
    // So many that a run takes some milliseconds on a core.
    const double flops = 2.0 * rows * cols * static_cast<double>(k);
    const auto rounds = std::clamp<std::int64_t>(static_cast<std::int64_t>(3e8 / flops), 1, 64);
    const double us = at_one_pace(gemm_plan(rows * rounds * machine_.workers, cols, k, rows, cols));
    return std::max(us - machine_.launch_us, 0.0) / static_cast<double>(rounds);
  }

  /// Clocks wander, of a shared machine most: what is measured is put in proportion to a product that is
  /// timed before and after, at whose first time all figures of computation then are.
  double at_one_pace(const Plan& plan) {
    constexpr int tries = 4;
    constexpr double steady = 1.05;
    const Plan reference = gemm_plan(512 * machine_.workers, 512, 1024, 512, 512);
    double us = 0, pace = 0;
    for (int i = 0; i < tries; ++i) {
      const double before = watch_.us(reference);
      us = watch_.us(plan);
      const double after = watch_.us(reference);
      if (reference_us_ == 0) reference_us_ = before;
      pace = (before + after) / 2 / reference_us_;
      if (std::max(before, after) < steady * std::min(before, after)) break;
    }
    return us / pace;
  }

  void tiles() {
    constexpr std::array<std::array<std::int32_t, 2>, 12> shapes{{{64, 64},
                                                                  {64, 128},
                                                                  {128, 128},
                                                                  {64, 512},
                                                                  {128, 256},
                                                                  {256, 128},
                                                                  {128, 512},
                                                                  {256, 256},
                                                                  {256, 512},
                                                                  {512, 512},
                                                                  {1024, 1024},
                                                                  {2048, 2048}}};
    constexpr std::array<std::int64_t, 4> lengths{64, 256, 1024, 4096};
    for (const auto& [rows, cols] : shapes) {
      next(fmt::format("tiles of {}x{}", rows, cols));
      // The line with the least relative error through the times of all lengths.
      double w = 0, wk = 0, wkk = 0, wt = 0, wkt = 0;
      for (const std::int64_t length : lengths) {
        if (length > 1024 && rows > 1024) continue;  // seconds each
        const auto k = static_cast<double>(length);
        const double us = tile_us(rows, cols, length), weight = 1 / (us * us);
        w += weight, wk += weight * k, wkk += weight * k * k, wt += weight * us, wkt += weight * k * us;
      }
      TileRate rate{rows, cols, 0, 0};
      rate.us_per_k = (w * wkt - wk * wt) / (w * wkk - wk * wk);
      rate.fixed_us = std::max((wt - rate.us_per_k * wk) / w, 0.0);
      if (rate.fixed_us == 0) rate.us_per_k = wkt / wkk;
      machine_.tiles.push_back(rate);
    }
    note("tiles", Origin::measured,
         fmt::format("{}, all workers of all ranks at once; lines through K = 64 to 4096",
                     name(options_.dtype)));
  }

  /// Whether half a tile takes half the time.
  void edges() {
    constexpr std::int32_t rows = 512, cols = 512;
    constexpr std::int64_t k = 1024;
    const auto us = [&](std::int64_t height) {
      return watch_.us(gemm_plan(height * machine_.workers, cols, k,
                                 static_cast<std::int32_t>(rows * machine_.workers), cols));
    };
    machine_.whole_tiles = us(rows / 2) > 0.75 * us(rows);
    note("whole_tiles", Origin::measured, "half a tile against a whole one");
  }

  /// Multiply-adds of attention, against those of the fastest tile.
  void attention() {
    next("attention");
    constexpr std::int64_t tokens = 1024, heads = 4, head_dim = 64;
    Problem problem{.op = Op::attention_reducescatter,
                    .world = world_,
                    .m = tokens,
                    .n = 16,
                    .k = heads * head_dim,
                    .dtype = options_.dtype};
    problem.attention = {.heads = heads * world_, .kv_heads = heads * world_, .head_dim = head_dim};
    const Plan base = plan_of(problem);
    const double us = at_one_pace(with_lanes(base, [&](int rank) {
      std::vector<Step> steps;
      for (const Step& step : base.ranks[static_cast<std::size_t>(rank)].lanes[0].steps)
        if (std::holds_alternative<Attend>(step)) steps.push_back(step);
      return std::vector<Lane>{compute_lane(steps)};
    }));
    double fastest = 0;
    for (const TileRate& tile : machine_.tiles)
      fastest = std::max(fastest, 2.0 * tile.rows * tile.cols / tile.us_per_k);
    const double flops = 4.0 * static_cast<double>(tokens * tokens * heads * head_dim) / machine_.workers;
    machine_.attention_rate = flops / us / fastest;
    note("attention_rate", Origin::measured, "four heads of 64 over 1024 tokens, not causal");
  }

  void collectives() {
    constexpr std::array kinds{
        std::pair{Op::allreduce, Traffic::allreduce}, std::pair{Op::reducescatter, Traffic::reducescatter},
        std::pair{Op::allgather, Traffic::allgather}, std::pair{Op::alltoall, Traffic::alltoall}};
    for (const auto& [op, traffic] : kinds) {
      next(fmt::format("{} of {} ranks", name(op), world_));
      Curve curve{traffic, world_, 0, {}};
      for (std::int64_t bytes = 4 << 10; bytes <= 64 << 20; bytes *= 4) {
        const std::int64_t rows = world_ * 16, cols = larger(bytes / 4 / rows, 1);
        const Plan base = plan_of(moving(op, rows, cols));
        // The call alone, without what puts rows in order around it.
        const Plan call = with_lanes(base, [&](int rank) {
          std::vector<Step> steps;
          for (const Lane& lane : base.ranks[static_cast<std::size_t>(rank)].lanes)
            for (const Step& step : lane.steps)
              if (std::holds_alternative<Collective>(step)) steps.push_back(step);
          return std::vector<Lane>{communicate_lane(steps)};
        });
        curve.samples.push_back({static_cast<double>(rows * cols * 4), watch_.us(call)});
      }
      machine_.curves.push_back(std::move(curve));
    }
    note("curves", Origin::measured, "calls of the backend's own library, nothing beside them");
  }

  /// What a GEMM loses to collectives beside it, of the time that these take alone.
  void contention() {
    next("computation beside communication");
    constexpr std::int64_t size = 1024;
    const Problem problem{.op = Op::gemm_allreduce, .world = world_, .m = size, .n = size, .k = size};
    Plan base = plan_of(problem);
    const auto moved = static_cast<std::int32_t>(base.buffers.size());
    base.buffers.push_back({"moved", Role::internal, DType::f32,
                            std::vector<std::int64_t>(static_cast<std::size_t>(world_), size), size, 1});
    const auto plan = [&](int gemms, int calls, std::int64_t rows) {
      return with_lanes(base, [&](int rank) {
        const auto& lanes = base.ranks[static_cast<std::size_t>(rank)].lanes;
        std::vector<Step> products, collectives;
        for (const Step& step : lanes[0].steps)
          if (std::holds_alternative<Gemm>(step)) products.assign(static_cast<std::size_t>(gemms), step);
        for (const Step& step : lanes[1].steps)
          if (const auto* call = std::get_if<Collective>(&step)) {
            Collective own = *call;  // of a matrix that the GEMMs do not touch
            own.send = own.recv = whole(base, moved, rank);
            own.send.rows = own.recv.rows = rows;
            collectives.assign(static_cast<std::size_t>(calls), own);
          }
        std::vector<Lane> made;
        if (gemms > 0) made.push_back(compute_lane(products));
        if (calls > 0) made.push_back(communicate_lane(collectives));
        return made;
      });
    };
    const double gemms = at_one_pace(plan(4, 0, size));
    const double call = watch_.lane_us(plan(0, 4, size), 0) / 4;
    const auto calls = std::max(1, static_cast<int>(0.3 * gemms / call));
    const double beside = at_one_pace(plan(4, calls, size));
    machine_.contention.steals = std::clamp((beside - gemms) / (calls * call), 0.0, 1.0);
    // Calls that move nothing to speak of, while products go on: what is left is meeting.
    constexpr int meetings = 20;
    const double idle = watch_.lane_us(plan(0, meetings, 4), 0) / meetings;
    const double busy = watch_.lane_us(plan(8, meetings, 4), 1) / meetings;
    machine_.contention.wake_us = std::max(busy - idle, 0.0);
    note("contention", Origin::measured,
         "GEMMs beside collectives that take 0.3 of their time, and beside many small ones");
  }

  const ProfileOptions& options_;
  Machine machine_;
  Stopwatch watch_;
  int world_;
  double reference_us_ = 0;
};

}  // namespace

Machine profile(World& world, const ProfileOptions& options) {
  return Profiler(world, options).go();
}

}  // namespace shingle
