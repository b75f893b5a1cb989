// Every profile that ships, with 2, 4 and 8 ranks: no prediction beats its roofline, and links that carry
// more make no plan slower.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "shingle/api/registry.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/sim/metrics.hpp"
#include "tune/params.hpp"

namespace shingle::shipped_machines_property {
namespace {

std::vector<Problem> problems(int world) {
  std::vector<Problem> all;
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::gemm_alltoall}) {
    Problem p{.op = op, .world = world, .m = 2048, .n = 4096, .k = 2048, .dtype = DType::bf16};
    if (p.traits().routes()) {
      std::vector<std::int32_t> dest;
      for (std::int64_t row = 0; row < p.m; ++row)
        dest.push_back(static_cast<std::int32_t>(row * world / p.m));
      p.routing = std::make_shared<const Routing>(std::vector(static_cast<std::size_t>(world), dest));
    }
    all.push_back(p);
  }
  return all;
}

std::vector<Machine> machines(int world) {
  std::vector<Machine> all;
  for (const std::string& name : machine_names())
    if (Machine machine = machine_from_spec(name); machine.ranks >= world) all.push_back(std::move(machine));
  return all;
}

/// The machine with links, engines and collectives that carry `factor` times as much.
Machine with_bandwidth(Machine machine, double factor) {
  for (double* gbps : {&machine.link.gbps, &machine.topology.pair.gbps, &machine.topology.node.gbps,
                       &machine.engine.gbps, &machine.store_gbps})
    *gbps *= factor;
  for (Curve& curve : machine.curves)
    for (Sample& sample : curve.samples) sample.us /= factor;
  return machine;
}

/// True if an unmodified library's collectives move the bytes, which parts cannot make faster.
bool sends_by_collectives(Mechanism mechanism) {
  return mechanism == Mechanism::chunked || mechanism == Mechanism::signal;
}

class ShippedProfiles : public testing::TestWithParam<int> {};

TEST_P(ShippedProfiles, BeatNoRooflineAndGainFromBandwidth) {
  const int world = GetParam();
  ASSERT_GE(machines(world).size(), 8u);
  for (const Machine& machine : machines(world))
    for (const Problem& problem : problems(world))
      for (const PlannerEntry& entry : planners()) {
        const Result<Tuned> tuned = tune(problem, machine, entry.mechanism);
        if (!tuned) continue;
        SCOPED_TRACE(fmt::format("{} on {}: {}", name(entry.mechanism), machine.name, describe(problem)));
        const Metrics metrics = measure(tuned->plan, machine).value();
        EXPECT_LE(metrics.roofline_fraction(), 1 + 1e-9);
        if (sends_by_collectives(entry.mechanism)) {
          const double collective_us = metrics.sequential_us - metrics.compute_us;
          EXPECT_GE(metrics.us, std::max(metrics.compute_us, collective_us) * 0.98);
        }
        // Tiles that arrive in another order may wait a little longer for each other.
        const double faster_us = simulate(tuned->plan, with_bandwidth(machine, 2)).makespan_us;
        EXPECT_LE(faster_us, metrics.us * 1.01);
      }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShippedProfiles, testing::Values(2, 4, 8));

}  // namespace
}  // namespace shingle::shipped_machines_property
