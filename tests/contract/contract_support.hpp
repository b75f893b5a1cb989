// What the contract's tests are written with: hand-made plans, and matrices of small integers, whose sums are
// exact in every element type and order.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shingle/backend/backend.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::contract {

/// What not every backend serves. What one does not, it has to refuse as Unsupported: the contract expects
/// that, and prints the reason.
struct Served {
  std::vector<DType> tiled_types{DType::f32, DType::bf16, DType::f16};  ///< of a GEMM with hooks
  std::int64_t multiple = 1;    ///< of such a GEMM's N and K, and M where A is transposed
  std::int32_t tile_rows = 12;  ///< a tile that it has
  std::int32_t tile_cols = 6;   ///< of B: with swiglu a tile of the output has half of them
  bool mixed_sources = true;    ///< a pass may sum matrices of several element types
  bool part_rows = true;        ///< an exchange may send some columns of a matrix
  bool broadcast = true;
  bool swap = true;
  bool spares_phantom_rows = true;  ///< a GEMM leaves alone where rows beyond A's last would go
  bool rank_order = true;   ///< sums over ranks are ((r0 + r1) + r2) …, rounded once; else as they come
  bool group_spans = true;  ///< a tiled step has a span for each group; else one for all
  std::int64_t extra_bytes = 0;  ///< memory of an executable beside its buffers, at most
};

/// A backend to test: makes the world of all tests, which are written for any number of ranks.
struct Backend {
  std::string name;
  std::function<std::unique_ptr<World>()> make;
  Served served{};
};
inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

/// Writes a plan step by step.
class Maker {
 public:
  explicit Maker(int world) {
    plan.problem().world = world;
    plan.ranks.resize(static_cast<std::size_t>(world));
    std::vector<std::int32_t> all;
    for (int r = 0; r < world; ++r) all.push_back(r);
    plan.communicators.push_back({"world", all});
  }

  std::int32_t buffer(Role role, std::vector<std::int64_t> rows, std::int64_t cols, DType type = DType::f32,
                      int depth = 1) {
    plan.buffers.push_back({std::string(name(role)) + std::to_string(plan.buffers.size()), role, type,
                            std::move(rows), cols, depth});
    return static_cast<std::int32_t>(plan.buffers.size()) - 1;
  }
  std::int32_t buffer(Role role, std::int64_t rows, std::int64_t cols, DType type = DType::f32,
                      int depth = 1) {
    return buffer(role, std::vector<std::int64_t>(plan.ranks.size(), rows), cols, type, depth);
  }
  /// `growth` by entry, the same on every rank.
  std::int32_t counter(std::vector<std::uint32_t> growth, CounterKind kind = CounterKind::add) {
    plan.counters.push_back({"count" + std::to_string(plan.counters.size()), kind,
                             std::vector<std::vector<std::uint32_t>>(plan.ranks.size(), growth)});
    return static_cast<std::int32_t>(plan.counters.size()) - 1;
  }
  void step(int rank, std::size_t lane, Step step) {
    auto& lanes = plan.ranks[static_cast<std::size_t>(rank)].lanes;
    while (lanes.size() <= lane)
      lanes.push_back({LaneKind::compute, "lane" + std::to_string(lanes.size()), {}});
    lanes[lane].steps.push_back(std::move(step));
    plan.ranks[static_cast<std::size_t>(rank)].issue.push_back(static_cast<std::int32_t>(lane));
  }

  Slice all(std::int32_t buffer, int rank) const { return whole(plan, buffer, rank); }
  Slice rows(std::int32_t buffer, int rank, std::int64_t row, std::int64_t rows) const {
    return {buffer, rank, row, rows, 0, plan.buffers[static_cast<std::size_t>(buffer)].cols};
  }
  static Placement in_place(const Slice& slice) {
    return {slice, placement::Matrix{RowMap::identity(slice.rows)}};
  }
  static Placement slots(const Slice& slice) { return {slice, placement::Slots{}}; }
  static Collective collective(CollectiveKind kind, const Slice& send, const Slice& recv,
                               std::int32_t communicator = 0) {
    Collective step;
    step.kind = kind;
    step.communicator = communicator;
    step.send = send;
    step.recv = recv;
    return step;
  }
  static Elementwise pass(const TileGrid& grid, const Placement& from, const Placement& to) {
    Elementwise step;
    step.grid = grid;
    step.from = {from};
    step.to = to;
    return step;
  }
  /// A copy of one slice to another of the same shape, in tiles.
  static Elementwise pass(const Slice& from, const Slice& to, std::int32_t tile_rows = 3,
                          std::int32_t tile_cols = 4) {
    return pass(make_grid(to.rows, to.cols, tile_rows, tile_cols), in_place(from), in_place(to));
  }

  Plan plan;
};

/// An element of an input: an integer in [-2, 2] that depends on all arguments.
inline float element(int rank, Role role, std::int64_t row, std::int64_t col) {
  std::uint64_t x =
      static_cast<std::uint64_t>(row * 1'000'003 + col * 7919 + rank * 104'729 + int(role) * 31 + 17);
  x = (x ^ (x >> 15)) * 0x9e3779b97f4a7c15ull;
  return static_cast<float>(static_cast<int>((x >> 40) % 5) - 2);
}

/// Expects that the world refuses a plan as Unsupported, and prints why.
inline void expect_refused(World& world, const Plan& plan) {
  try {
    (void)world.compile(plan);
    ADD_FAILURE() << "the backend takes what it is not said to serve";
  } catch (const Unsupported& reason) {
    std::printf("[ UNSERVED ] %s\n", reason.what());
  }
}

/// A world, an executable of a plan, and the user's memory of the local ranks: inputs as element() says,
/// outputs poisoned.
class Bench {
 public:
  Bench(World& world, const Plan& plan) : plan_(plan), world_(world), executable(world.compile(plan)) {
    for (const int rank : world.local_ranks())
      for (const Buffer& buffer : plan.buffers) {
        if (buffer.role == Role::internal) continue;
        auto memory = world.allocate(rank, static_cast<std::size_t>(buffer.bytes(rank)));
        executable->bind(rank, buffer.role, memory.data());
        memory_.emplace(std::pair{rank, buffer.role}, std::move(memory));
        if (is_input(buffer.role))
          set(rank, buffer.role,
              [&](std::int64_t row, std::int64_t col) { return element(rank, buffer.role, row, col); });
      }
    poison();
  }

  void poison() {
    executable->poison();
    for (auto& [key, memory] : memory_)
      if (is_output(key.second)) world_.fill(key.first, memory.data(), 0xff, memory.bytes());
  }
  RunReport run(int epochs = 1, bool trace = false) {
    return executable->run({.epochs = epochs, .timeout_us = 20e6, .trace = trace});
  }
  /// A matrix where it lies: for backends whose memory the host reaches.
  void* data(int rank, Role role) { return memory_.at({rank, role}).data(); }
  /// Writes a matrix, element by element.
  void set(int rank, Role role, const std::function<float(std::int64_t row, std::int64_t col)>& value) {
    const Buffer& buffer = of(role);
    const DeviceBuffer& memory = memory_.at({rank, role});
    std::vector<std::byte> bytes(memory.bytes());
    for (std::int64_t row = 0; row < buffer.rows[static_cast<std::size_t>(rank)]; ++row)
      for (std::int64_t col = 0; col < buffer.cols; ++col)
        store_element(buffer.dtype, bytes.data(), static_cast<std::size_t>(row * buffer.cols + col),
                      value(row, col));
    world_.upload(rank, memory.data(), bytes.data(), bytes.size());
  }
  /// Compares all of an output of the local ranks; NaN is expected where `want` says NaN, anything where
  /// it says infinity.
  void expect(Role role, const std::function<double(int rank, std::int64_t row, std::int64_t col)>& want,
              double relative = 0) {
    const Buffer& buffer = of(role);
    for (const int rank : world_.local_ranks()) {
      const DeviceBuffer& memory = memory_.at({rank, role});
      std::vector<std::byte> bytes(memory.bytes());
      world_.download(rank, bytes.data(), memory.data(), bytes.size());
      for (std::int64_t row = 0; row < buffer.rows[static_cast<std::size_t>(rank)]; ++row)
        for (std::int64_t col = 0; col < buffer.cols; ++col) {
          const double wanted = want(rank, row, col),
                       got = load_element(buffer.dtype, bytes.data(),
                                          static_cast<std::size_t>(row * buffer.cols + col));
          if (std::isinf(wanted)) continue;
          if (std::isnan(wanted) ? !std::isnan(got)
                                 : !(std::abs(got - wanted) <= relative * std::max(1.0, std::abs(wanted)))) {
            ADD_FAILURE() << name(role) << " of rank " << rank << " at " << row << "," << col << " is " << got
                          << ", not " << wanted;
            return;
          }
        }
    }
  }

 private:
  const Buffer& of(Role role) const {
    return plan_.buffers[static_cast<std::size_t>(find_buffer(plan_, role))];
  }
  Plan plan_;
  World& world_;

 public:
  std::unique_ptr<Executable> executable;

 private:
  std::map<std::pair<int, Role>, DeviceBuffer> memory_;
};

class BackendContract : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    world = GetParam().make();
    ASSERT_NE(world, nullptr);
    ranks = world->size();
  }
  bool remote() const { return world->capabilities().remote_memory; }
  static const Served& served() { return GetParam().served; }

  std::unique_ptr<World> world;
  int ranks = 0;
};

}  // namespace shingle::contract
