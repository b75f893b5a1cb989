// Every profile that ships, with 2, 4 and 8 ranks and as many as it has: no prediction beats its roofline,
// also of experts of shipped models, and links that carry more make no plan slower.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shingle/api/registry.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/metrics.hpp"
#include "shingle/workload/model.hpp"
#include "tune/params.hpp"

namespace shingle::shipped_machines_property {
namespace {

std::vector<Problem> problems(int world) {
  std::vector<Problem> all;
  for (const std::int64_t rows : {128, 2048})
    for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::gemm_alltoall}) {
      Problem p{.op = op, .world = world, .m = rows, .n = 4096, .k = 2048, .dtype = DType::bf16};
      if (p.traits().routes()) {
        std::vector<std::int32_t> dest;
        for (std::int64_t row = 0; row < p.m; ++row)
          dest.push_back(static_cast<std::int32_t>(row * world / p.m));
        p.routing = std::make_shared<const Routing>(std::vector(static_cast<std::size_t>(world), dest));
      }
      all.push_back(p);
    }
  for (const Op op : {Op::allgather, Op::reducescatter, Op::allreduce})
    all.push_back({.op = op, .world = world, .m = 2048, .n = 4096, .k = 4096, .dtype = DType::bf16});
  return all;
}

/// 1e9 bytes/s that a rank's links carry to the other ranks.
double link_gbps(const Machine& machine, int world) {
  const Topology& topology = machine.topology;
  const bool paired = topology.pair.gbps > 0 && world <= topology.pair_ranks;
  return paired ? topology.pair.gbps * (world - 1) : machine.link.gbps;
}

/// Time that no plan beats: of the product by a library, and of the bytes that each rank has to send.
double least_us(const Machine& machine, const Problem& p) {
  const auto others = static_cast<double>(p.world - 1) / p.world;
  const bool gathers = p.op == Op::allgather_gemm || p.op == Op::allgather;
  const double cols = static_cast<double>(gathers && p.traits().multiplies() ? p.k : p.n);
  const double matrix = static_cast<double>(p.m) * cols * static_cast<double>(size_bytes(p.dtype));
  const double times = p.op == Op::gemm_allreduce || p.op == Op::allreduce ? 2 : 1;
  const double wire = times * others * matrix / (link_gbps(machine, p.world) * 1e3);
  return p.traits().multiplies() ? std::max(wire, library_gemm_us(machine, p.m, p.n, p.k, machine.workers))
                                 : wire;
}

/// The machine with links, engines and collectives that move bytes `factor` times as fast, at the same
/// latency.
Machine with_bandwidth(Machine machine, double factor) {
  for (double* gbps : {&machine.link.gbps, &machine.topology.pair.gbps, &machine.topology.node.gbps,
                       &machine.engine.gbps, &machine.store_gbps})
    *gbps *= factor;
  for (Curve& curve : machine.curves) {
    const double latency = curve.samples.front().us;
    for (Sample& sample : curve.samples) sample.us = latency + (sample.us - latency) / factor;
  }
  return machine;
}

/// True if an unmodified library's collectives move the bytes, which parts cannot make faster.
bool sends_by_collectives(Mechanism mechanism) {
  return mechanism == Mechanism::chunked || mechanism == Mechanism::signal;
}

class ShippedProfiles : public testing::TestWithParam<std::string> {};

TEST_P(ShippedProfiles, BeatNoRooflineAndGainFromBandwidth) {
  const Machine machine = machine_from_spec(GetParam());
  const Machine faster = with_bandwidth(machine, 1.5);
  ASSERT_GE(machine.ranks, 2);
  std::set<int> worlds{2, 4, 8, machine.ranks};
  std::erase_if(worlds, [&](int world) { return world > machine.ranks; });
  for (const int world : worlds)
    for (const Problem& problem : problems(world))
      for (const PlannerEntry& entry : planners()) {
        const Result<Tuned> tuned = tune(problem, machine, entry.mechanism);
        if (!tuned) continue;
        SCOPED_TRACE(fmt::format("{} on {}: {}", name(entry.mechanism), machine.name, describe(problem)));
        const Metrics metrics = measure(tuned->plan, machine).value();
        EXPECT_LE(metrics.roofline_fraction(), 1 + 1e-9);
        EXPECT_GE(metrics.us, least_us(machine, problem) * (1 - 1e-9));
        if (sends_by_collectives(entry.mechanism)) {
          const double collective_us = metrics.sequential_us - metrics.compute_us;
          EXPECT_GE(metrics.us, std::max(metrics.compute_us, collective_us) * 0.98);
        }
        // Tiles that arrive in another order may wait a little longer for each other. A search that tries one
        // param after the other may end elsewhere.
        EXPECT_LE(simulate(tuned->plan, faster).makespan_us, metrics.us * 1.01);
        EXPECT_LE(tune(problem, faster, entry.mechanism)->us, metrics.us * 1.01);
      }
}

/// Time in which the rank that has most weights with rows reads each once. A product that only reads may be
/// faster than the profile's rate, of reads and writes.
double weights_us(const Machine& machine, const Problem& p) {
  constexpr double reads_over_rate = 1.1;  // no less than the simulator takes
  const double elements = static_cast<double>(p.b_cols() * p.k + (p.traits().chains() ? p.inner * p.n : 0));
  int most = 0;
  for (int rank = 0; rank < p.world; ++rank) {
    int used = 0;
    for (int weight = 0; weight < p.routing->experts_per_rank(); ++weight) {
      const int expert = p.routing->first_expert(rank) + weight;
      used += p.routing->receive_base(expert, p.world) > p.routing->receive_base(expert, 0) ? 1 : 0;
    }
    most = std::max(most, used);
  }
  return most * elements * static_cast<double>(size_bytes(p.dtype)) /
         (machine.memory_gbps * 1e3 * reads_over_rate);
}

/// The operators of a model's experts: dispatch and combine, or both in one, by expert and by slice.
std::vector<Problem> problems_of(const ModelConfig& model, int world, std::int64_t tokens) {
  std::vector<Problem> all;
  for (const int ep : {0, 1})
    for (const bool both : {false, true})
      for (const LayerOp& op : layer_operators(model, {.tp = world, .ep = ep, .tokens = tokens, .mlp = both}))
        if (op.problem.traits().grouped) all.push_back(op.problem);
  return all;
}

TEST_P(ShippedProfiles, BeatNoRooflineOfExperts) {
  const Machine machine = machine_from_spec(GetParam());
  for (const std::string model : {"mixtral-8x7b", "deepseek-moe-16b", "olmoe-1b-7b", "qwen1.5-moe-a2.7b"}) {
    const ModelConfig config = read_model_file(SHINGLE_TEST_SOURCE_DIR "/models/" + model + ".json");
    const int world = std::min(machine.ranks, 4);
    for (const std::int64_t tokens : {1, 16, 64, 512, 4096, 16384})
      for (const Problem& problem : problems_of(config, world, tokens))
        for (const PlannerEntry& entry : planners()) {
          const Result<Plan> plan = make_plan(problem, machine, default_params(entry.mechanism));
          if (!plan) continue;
          SCOPED_TRACE(
              fmt::format("{} on {}: {}, {}", name(entry.mechanism), machine.name, model, describe(problem)));
          const Metrics metrics = measure(*plan, machine).value();
          EXPECT_LE(metrics.roofline_fraction(), 1 + 1e-9);
          EXPECT_GE(metrics.us, weights_us(machine, problem));
        }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, ShippedProfiles, testing::ValuesIn(machine_names()),
                         [](const auto& machine) {
                           std::string name = machine.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace shingle::shipped_machines_property
