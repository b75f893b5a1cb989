// Plans written by hand, a line a step, for tests of the verifier and of backends.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plan_edit.hpp"
#include "shingle/plan/rounding.hpp"

namespace shingle::test {

/// Starts with the user's buffers of a problem, a lane `compute` on each rank and a communicator of all.
/// Steps are issued in the order in which they are added.
struct Hand {
  Plan plan;
  std::int32_t a = -1, b = -1, out = -1, bias = -1, norm_weight = -1, residual = -1, sum = -1;

  explicit Hand(const Problem& problem, std::int32_t workers = 4) {
    plan.work = problem;
    plan.workers = workers;
    plan.rounding = sentence(problem, {});
    std::vector<std::int64_t> a_rows, out_rows;
    std::vector<std::int32_t> everyone;
    for (int r = 0; r < problem.world; ++r) {
      a_rows.push_back(problem.a_rows(r));
      out_rows.push_back(problem.out_rows(r));
      everyone.push_back(r);
    }
    const auto same = [&](std::int64_t rows) { return std::vector<std::int64_t>(everyone.size(), rows); };
    a = problem.transpose_a ? user(Role::a, same(problem.k), problem.m) : user(Role::a, a_rows, problem.k);
    b = problem.transpose_b ? user(Role::b, same(problem.n), problem.k)
                            : user(Role::b, same(problem.k), problem.n);
    out = user(Role::out, out_rows, problem.out_cols());
    if (problem.epilogue.bias) bias = user(Role::bias, same(1), problem.n);
    if (problem.norm.enabled) norm_weight = user(Role::norm_weight, same(1), problem.out_cols());
    if (problem.norm.residual) residual = user(Role::residual, out_rows, problem.out_cols());
    if (problem.norm.residual) sum = user(Role::sum, out_rows, problem.out_cols());
    plan.communicators.push_back({"world", everyone});
    plan.ranks.resize(everyone.size());
    for (RankPlan& rank : plan.ranks) rank.lanes = {{LaneKind::compute, "compute", {}}};
  }

  int world() const { return plan.world(); }

  std::int32_t buffer(std::string name, std::int64_t rows, std::int64_t cols, std::int32_t depth = 1) {
    plan.buffers.push_back({std::move(name), Role::internal, plan.dtype(),
                            std::vector<std::int64_t>(plan.ranks.size(), rows), cols, depth});
    return static_cast<std::int32_t>(plan.buffers.size()) - 1;
  }
  std::int32_t counter(std::string name, std::size_t entries = 1, CounterKind kind = CounterKind::add) {
    plan.counters.push_back(
        {std::move(name), kind,
         std::vector<std::vector<std::uint32_t>>(plan.ranks.size(), std::vector<std::uint32_t>(entries))});
    return static_cast<std::int32_t>(plan.counters.size()) - 1;
  }
  /// A lane on every rank.
  std::int32_t lane(std::string name, LaneKind kind = LaneKind::communicate) {
    for (RankPlan& rank : plan.ranks) rank.lanes.push_back({kind, name, {}});
    return static_cast<std::int32_t>(plan.ranks[0].lanes.size()) - 1;
  }

  Hand& step(int rank, std::int32_t lane, Step step) {
    RankPlan& at = plan.ranks[static_cast<std::size_t>(rank)];
    at.lanes[static_cast<std::size_t>(lane)].steps.push_back(std::move(step));
    at.issue.push_back(lane);
    return *this;
  }
  Hand& notify(int rank, std::int32_t lane, std::int32_t counter, int on, std::int32_t entry = 0,
               std::uint32_t value = 1) {
    return step(rank, lane, Notify{{counter, on, entry}, value});
  }
  Hand& await(int rank, std::int32_t lane, std::int32_t counter, std::uint32_t target = 1,
              std::int32_t entry = 0) {
    return step(rank, lane, Await{{counter, rank, entry}, target});
  }

  Slice all(std::int32_t buffer, int rank) const { return whole(plan, buffer, rank); }
  Slice rows(std::int32_t buffer, int rank, std::int64_t row, std::int64_t count) const {
    Slice slice = all(buffer, rank);
    slice.row = row, slice.rows = count;
    return slice;
  }
  static Placement in(const Slice& slice) { return {slice, placement::Matrix{RowMap::identity(slice.rows)}}; }

  /// Rows [row, row + slice.rows) of the rank's product, in place in a slice; all in one tile unless
  /// tile_rows says otherwise.
  Gemm gemm(int rank, const Slice& to, std::int64_t row = 0, std::int64_t tile_rows = 0) const {
    const Problem& p = plan.problem();
    Gemm gemm;
    gemm.grid =
        make_grid(to.rows, to.cols, static_cast<std::int32_t>(tile_rows > 0 ? tile_rows : larger(to.rows, 1)),
                  static_cast<std::int32_t>(to.cols));
    gemm.a = all(a, rank);
    gemm.b = all(b, rank);
    gemm.a_rows = RowMap::identity(to.rows, row);
    gemm.transpose_a = p.transpose_a;
    gemm.transpose_b = p.transpose_b;
    gemm.out = in(to);
    return gemm;
  }
  /// The sum of slices of the same shape.
  static Elementwise pass(const std::vector<Slice>& from, const Slice& to, std::int64_t tile_rows = 0) {
    Elementwise pass;
    const std::int64_t cols = from.front().cols;
    pass.grid =
        make_grid(to.rows, cols, static_cast<std::int32_t>(tile_rows > 0 ? tile_rows : larger(to.rows, 1)),
                  static_cast<std::int32_t>(cols));
    for (const Slice& slice : from) pass.from.push_back(in(slice));
    pass.to = in(to);
    return pass;
  }
  static Collective collective(CollectiveKind kind, const Slice& send, const Slice& recv,
                               std::int32_t communicator = 0) {
    return {kind, communicator, send, recv, {}, {}, {}};
  }

  void count() { count_growth(plan); }

 private:
  std::int32_t user(Role role, std::vector<std::int64_t> rows, std::int64_t cols) {
    plan.buffers.push_back({std::string(name(role)), role, plan.dtype(), std::move(rows), cols, 1});
    return static_cast<std::int32_t>(plan.buffers.size()) - 1;
  }
};

/// One GEMM a rank, straight into the output; a test spoils it.
struct Direct : Hand {
  explicit Direct(const Problem& p) : Hand(p) {
    for (int r = 0; r < p.world; ++r) {
      Gemm g = gemm(r, all(out, r));
      g.epilogue = p.epilogue;
      if (p.epilogue.bias) g.bias = all(bias, r);
      step(r, 0, g);
    }
  }
  Gemm& product(int rank = 0) {
    return std::get<Gemm>(plan.ranks[static_cast<std::size_t>(rank)].lanes[0].steps[0]);
  }
};

}  // namespace shingle::test
