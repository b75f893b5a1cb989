// A collective of one size: its matrices, who carries it out, how long that takes, and whether it is right.
#pragma once

#include <chrono>
#include <cmath>
#include <map>
#include <random>

#include "api/workspace.hpp"
#include "report.hpp"
#include "shingle/api/operator.hpp"

namespace shingle::bench {

/// `bytes` is what a rank has in the end (of a reduce-scatter: what it begins with), about, as the paper and
/// nccl-tests count sizes. Rows go to all ranks alike.
inline Problem collective_problem(Op op, int world, std::int64_t bytes) {
  constexpr std::int64_t most_cols = 2048;
  const std::int64_t part = larger(bytes / world / static_cast<std::int64_t>(sizeof(float)), 1);
  std::int64_t cols = most_cols;
  while (cols > part) cols /= 2;
  Problem problem{.op = op, .world = world, .m = world * (part / cols), .n = cols, .k = cols};
  if (problem.traits().routes()) {
    std::vector<std::int32_t> dest;
    for (std::int64_t row = 0; row < problem.m; ++row)
      dest.push_back(static_cast<std::int32_t>(row * world / problem.m));
    problem.routing =
        std::make_shared<const Routing>(std::vector(static_cast<std::size_t>(world), std::move(dest)));
  }
  return problem;
}

inline std::int64_t matrix_bytes(const Problem& problem) {
  return problem.m * problem.n * static_cast<std::int64_t>(size_bytes(problem.dtype));
}

/// What leaves each rank for others, at least: of an allreduce twice, for its two phases.
inline double bytes_out(const Problem& problem) {
  const double parts = (problem.world - 1.0) / problem.world;
  return (problem.op == Op::allreduce ? 2 : 1) * parts * static_cast<double>(matrix_bytes(problem));
}

inline CollectiveKind kind_of(Op op) {
  switch (op) {
    case Op::allgather:
      return CollectiveKind::allgather;
    case Op::alltoall:
      return CollectiveKind::alltoall;
    case Op::reducescatter:
      return CollectiveKind::reducescatter;
    default:
      return CollectiveKind::allreduce;
  }
}

/// The library's one call, without the passes that put an all-to-all's rows in order: here they are.
inline Plan library_plan(const Problem& problem, const Machine& machine) {
  Plan plan = make_plan(problem, machine, SequentialParams{}).value();
  const std::vector<std::int64_t> parts(
      problem.traits().routes() ? static_cast<std::size_t>(problem.world) : 0, problem.m / problem.world);
  for (int rank = 0; rank < problem.world; ++rank) {
    Collective call;
    call.kind = kind_of(problem.op);
    call.send = whole(plan, find_buffer(plan, Role::a), rank);
    call.recv = whole(plan, find_buffer(plan, Role::out), rank);
    call.send_rows = call.recv_rows = parts;
    plan.ranks[static_cast<std::size_t>(rank)] = {{{LaneKind::communicate, "communicate", {call}}}, {0}};
  }
  return plan;
}

/// Matrices of a collective. An allgather's own rows lie where they belong in the result, as NCCL calls in
/// place.
class CollectiveTrial {
 public:
  CollectiveTrial(World& world, const Problem& problem)
      : world_(world), problem_(problem), inputs_(random_inputs(problem, 5)) {
    const auto allocate = [&](int rank, Role role) {
      return world.allocate(rank, static_cast<std::size_t>(bytes_of(problem, role, rank)));
    };
    for (const int rank : world.local_ranks()) {
      out_[rank] = allocate(rank, Role::out);
      if (!in_place()) a_[rank] = allocate(rank, Role::a);
      write_input(world, *inputs_, rank, Role::a, a(rank));
    }
  }

  const Problem& problem() const { return problem_; }

  void bind(Operator& op) const {
    for (const int rank : world_.local_ranks()) {
      op.bind(rank, Role::a, a(rank));
      op.bind(rank, Role::out, out_.at(rank).data());
    }
  }

  /// Runs it twice, from poisoned memory: the first run may differ from those that follow. Whether both are
  /// right.
  bool right(Operator& op) {
    for (int run = 0; run < 2; ++run) {
      poison();
      op.executable().poison();
      op.run();
      if (!right()) return false;
    }
    return true;
  }

  /// As many runs as fit into the time, at least 3 and at most `repeat`.
  Samples time(Operator& op, int repeat, double budget_us) const {
    constexpr int least = 3;
    Samples samples;
    double spent_us = 0;
    for (int i = 0; i < std::max(least, repeat) && (i < least || spent_us < budget_us); ++i) {
      samples.us.push_back(op.run().elapsed_us);
      spent_us += samples.us.back();
    }
    return samples;
  }

 private:
  struct Source {
    int rank = 0;
    std::int64_t row = 0;
  };

  bool in_place() const { return problem_.op == Op::allgather; }
  std::size_t own_begin(int rank) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(bytes_of(problem_, Role::a, rank));
  }
  void* a(int rank) const {
    return in_place() ? static_cast<std::byte*>(out_.at(rank).data()) + own_begin(rank) : a_.at(rank).data();
  }

  /// All bits of the results, which is a NaN; but of what lies in place.
  void poison() {
    for (const int rank : world_.local_ranks()) {
      auto* const out = static_cast<std::byte*>(out_.at(rank).data());
      const std::size_t all = out_.at(rank).bytes();
      const std::size_t begin = in_place() ? own_begin(rank) : all;
      const std::size_t end = in_place() ? begin + all / static_cast<std::size_t>(problem_.world) : all;
      world_.fill(rank, out, 0xff, begin);
      world_.fill(rank, out + end, 0xff, all - end);
    }
  }

  /// The rows whose sum a row of a rank's result is.
  std::vector<Source> sources(int rank, std::int64_t row) const {
    const std::int64_t part = problem_.m / problem_.world;
    if (problem_.op == Op::allgather) return {{static_cast<int>(row / part), row % part}};
    if (problem_.op == Op::alltoall) return {{static_cast<int>(row / part), rank * part + row % part}};
    std::vector<Source> all;
    for (int source = 0; source < problem_.world; ++source)
      all.push_back({source, problem_.op == Op::reducescatter ? rank * part + row : row});
    return all;
  }

  bool right(int rank, std::int64_t row) {
    const auto cols = static_cast<std::size_t>(problem_.n);
    std::vector<float> got(cols);
    world_.download(rank, got.data(),
                    static_cast<const float*>(out_.at(rank).data()) + static_cast<std::size_t>(row) * cols,
                    cols * sizeof(float));
    std::vector<double> want(cols), one(cols);
    const std::vector<Source> from = sources(rank, row);
    for (const Source& source : from) {
      inputs_->read(source.rank, Role::a, {source.row, 1, 0, problem_.n}, one.data());
      for (std::size_t col = 0; col < cols; ++col) want[col] += one[col];
    }
    const double tolerance = from.size() > 1 ? 1e-6 * static_cast<double>(from.size()) : 0;
    for (std::size_t col = 0; col < cols; ++col)
      if (!(std::abs(got[col] - want[col]) <= tolerance * (1 + std::abs(want[col])))) return false;
    return true;
  }

  /// Of each stretch of rows one, at random; all of few. The same on all processes.
  bool right() {
    constexpr std::int64_t most = 64;
    double wrong = 0;
    for (const int rank : world_.local_ranks()) {
      const std::int64_t rows = problem_.out_rows(rank), apart = ceil_div(rows, most);
      for (std::int64_t first = 0; first < rows; first += apart) {
        const std::int64_t row = first + static_cast<std::int64_t>(dice_()) % smaller(apart, rows - first);
        wrong += right(rank, row) ? 0 : 1;
      }
    }
    return world_.all_max({wrong})[0] == 0;
  }

  World& world_;
  const Problem problem_;
  std::unique_ptr<Inputs> inputs_;
  std::map<int, DeviceBuffer> out_, a_;
  std::mt19937 dice_{11};
};

}  // namespace shingle::bench
