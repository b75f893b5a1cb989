// A world that takes the times that the simulator says, so that what is measured on it is known.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include "shingle/backend/backend.hpp"
#include "shingle/base/error.hpp"
#include "shingle/sim/simulate.hpp"
#include "shingle/verify/wellformed.hpp"

namespace shingle::test {

/// What a SimulatedWorld is.
struct SimulatedParts {
  int ranks = 2;
  Machine machine{};   ///< whose times it takes
  Machine told{};      ///< what it says of itself
  Capabilities can{};  ///< its tiles are also the only ones that it serves
  bool attends = true;
  bool attends_backward = true;
  double noise = 0;  ///< of a time, as a fraction of it: uniform, up to this
  mutable std::mt19937 random{1};
};

class SimulatedWorld final : public World {
 public:
  explicit SimulatedWorld(SimulatedParts parts) : parts_(std::move(parts)) {}

  std::string backend() const override { return "simulated"; }
  int size() const override { return parts_.ranks; }
  std::vector<int> local_ranks() const override {
    std::vector<int> ranks(static_cast<std::size_t>(parts_.ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  const Machine& machine() const override { return parts_.told; }
  Capabilities capabilities() const override { return parts_.can; }
  DeviceBuffer allocate(int, std::size_t) override { return {}; }
  void barrier() override {}
  std::vector<double> all_max(std::vector<double> values) override { return values; }

  std::unique_ptr<Executable> compile(const Plan& plan) override {
    if (const auto wrong = malformed(plan)) ADD_FAILURE() << *wrong;
    for (const RankPlan& rank : plan.ranks)
      for (const Lane& lane : rank.lanes)
        for (const Step& step : lane.steps) require_served(step);
    ++plans;
    return std::make_unique<Simulated>(plan, parts_);
  }

  int plans = 0;  ///< compiled

 private:
  class Simulated final : public Executable {
   public:
    Simulated(Plan plan, const SimulatedParts& parts) : plan_(std::move(plan)), parts_(parts) {}
    void bind(int, Role, const MatrixMemory&) override {}
    RunReport run(const RunOptions& options) override {
      if (!result_) result_ = simulate(plan_, parts_.machine);
      RunReport report;
      report.elapsed_us =
          result_->makespan_us * (1 + parts_.noise * std::uniform_real_distribution<>(-1, 1)(parts_.random));
      if (options.trace) report.spans = result_->spans;
      return report;
    }
    std::int64_t internal_bytes(int) const override { return 0; }
    void poison() override {}

   private:
    Plan plan_;
    const SimulatedParts& parts_;
    std::optional<shingle::Simulated> result_;
  };

  void require_served(const Step& step) const {
    if ((std::holds_alternative<Attend>(step) && !parts_.attends) ||
        (std::holds_alternative<AttendBackward>(step) && !parts_.attends_backward))
      throw Unsupported("no attention here");
    const auto* gemm = std::get_if<Gemm>(&step);
    if (gemm == nullptr || gemm->grid.tiles() == 1 || parts_.can.tiles.empty()) return;
    EXPECT_EQ(gemm->grid.tiles(), gemm->grid.positions()) << "a phantom tile is no part of a wave";
    const TileShape shape{gemm->grid.tile_rows, gemm->grid.tile_cols};
    if (std::ranges::find(parts_.can.tiles, shape) == parts_.can.tiles.end())
      throw Unsupported("no such tiles here");
  }

  SimulatedParts parts_;
};

}  // namespace shingle::test
