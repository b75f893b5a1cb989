// Overlaps in the simulator against Lagom's Eq. 1-6, co-tuning against all configurations, and the patterns
// of models.
#include "tune/co_tuning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"
#include "shingle/verify/verify.hpp"
#include "workload/overlap_patterns.hpp"

namespace shingle::co_tuning_test {
namespace {

using cotune::Method;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t KiB = 1 << 10, MiB = 1 << 20;

Machine shipped(const std::string& name) {
  return read_machine(SHINGLE_TEST_SOURCE_DIR "/machines/" + name + ".json");
}

ModelConfig model(const std::string& name) {
  return read_model_file(SHINGLE_TEST_SOURCE_DIR "/models/" + name + ".json");
}

/// One product, in waves of a tile each worker, beside one all-gather.
Workload pair(double waves, std::int64_t bytes, const Machine& machine) {
  const auto tiles = static_cast<std::int64_t>(waves * machine.workers);
  return {8,
          DType::bf16,
          {{"product", tiles * machine.tile_rows, machine.tile_cols, 4096}},
          {{"gather", CollectiveKind::allgather, bytes}}};
}

// Eq. 5 and 6: beside a collective that outlasts it, a product has the SMs and the memory that are left; but
// for its first wave, which has all, as it is there when the collective comes.
TEST(CoTuning, ComputationIsSlowedAsEquation5And6Say) {
  Machine machine = shipped("a40x8-nvlink");
  machine.launch_us = machine.signal_us = machine.contention.collective_slowdown = 0;
  const double wave = wave_us(machine, machine.tile_rows, machine.tile_cols, 4096);
  for (const CollectiveConfig& config :
       {CollectiveConfig{.channels = 4, .chunk_bytes = MiB},
        CollectiveConfig{.channels = 42, .chunk_bytes = 32 * KiB}, CollectiveConfig{.channels = 20}}) {
    const Contention& contention = machine.contention;
    const double left = machine.workers - config.channels;
    const double taken = contention.traffic_gbps(config.channels, static_cast<double>(config.chunk_bytes));
    const MovedBytes moved = product_moves({std::int64_t{8} * machine.workers * machine.tile_rows,
                                            machine.tile_cols, 4096, machine.tile_rows, machine.tile_cols},
                                           2);
    const double share = contention.share(ComputationKind::product, moved, 8 * wave * machine.workers / left,
                                          machine.memory_gbps);
    const double slower = 1 - share + share * machine.memory_gbps / (machine.memory_gbps - taken);
    const cotune::Measurement beside = simulate_overlap(pair(8, 4096 * MiB, machine), machine, {config});
    EXPECT_NEAR(beside.compute_us, wave + std::ceil(7 * machine.workers / left) * wave * slower, 1e-6 * wave)
        << describe(config);
  }
}

// Eq. 1: the later of the two; and of Eq. 4, the waves behind the collective are as fast as alone.
TEST(CoTuning, AnIterationIsAsLongAsTheLongerLane) {
  const Machine machine = shipped("a40x8-nvlink");
  const cotune::Measurement exposed = simulate_overlap(pair(2, 256 * MiB, machine), machine, {});
  EXPECT_NEAR(exposed.makespan_us, exposed.communication_us[0], 20);
  const double alone = simulate_overlap(pair(40, 1, machine), machine, {}).makespan_us;
  const cotune::Measurement hidden = simulate_overlap(pair(40, 16 * MiB, machine), machine, {});
  EXPECT_NEAR(hidden.makespan_us, hidden.compute_us, 20);
  EXPECT_GT(hidden.makespan_us, alone);
  EXPECT_LT(hidden.makespan_us, alone + hidden.communication_us[0]);
  const cotune::Measurement sequence = simulate_overlap(pair(40, 16 * MiB, machine), machine, {}, false);
  EXPECT_GT(sequence.makespan_us, hidden.makespan_us);
}

TEST(CoTuning, ConfigsMakeCollectivesFasterOrSlower) {
  const Machine machine = shipped("a40x8-nvlink");
  const auto us = [&](CollectiveConfig config) {
    return collective_us(machine, Traffic::allreduce, 8, config, 64.0 * MiB);
  };
  EXPECT_EQ(us({}), collective_us(machine, Traffic::allreduce, 8, 0, 64.0 * MiB));
  EXPECT_GT(us({.channels = 1}), us({.channels = 4}));
  EXPECT_GT(us({.channels = 4, .chunk_bytes = 32 * KiB}), us({.channels = 4, .chunk_bytes = MiB}));
  EXPECT_GT(us({.channels = 4, .chunk_bytes = MiB}), us({.channels = 4}));
  EXPECT_EQ(us({.channels = 4, .threads = 512}), us({.channels = 4})) << "Lagom §3.2";
  for (const Protocol protocol : {Protocol::ll, Protocol::ll128, Protocol::simple})
    EXPECT_GT(us({.protocol = protocol}), us({})) << name(protocol);
  EXPECT_GT(us({.protocol = Protocol::ll}), us({.protocol = Protocol::simple}));
  for (const Transport transport : {Transport::shm, Transport::net})
    EXPECT_GT(us({.transport = transport}), us({.transport = Transport::p2p})) << name(transport);
  EXPECT_GT(us({.algorithm = Algorithm::tree}), us({}));
}

/// Eq. 6 for each computation: the more of its time waits for memory, the more a collective slows it.
TEST(CoTuning, EachComputationHasItsOwnDemand) {
  Machine machine = shipped("a40x8-nvlink");
  machine.contention.collective_slowdown = 0;
  const auto slowdown = [&](const Workload::Computation& one) {
    const auto us = [&](std::int64_t bytes) {
      const Workload list{8, DType::bf16, {one}, {{"sum", CollectiveKind::allreduce, bytes}}};
      return simulate_overlap(list, machine, {{.channels = 8}}).compute_us;
    };
    return us(1 << 30) / us(1);
  };
  using enum ComputationKind;
  const double taken = machine.contention.traffic_gbps(8, 0), waves = 84.0 / 76;
  const double memory = machine.memory_gbps / (machine.memory_gbps - taken);
  EXPECT_NEAR(slowdown({"norm", 1 << 16, 8192, 1, {}, pass}), memory, 0.02)
      << "waits for memory, whatever the SMs";
  constexpr std::int64_t rows = 51072, cols = 4096;  // whole waves on 84 and on 76 SMs
  const double large = slowdown({"large", rows, cols, 8192}), flat = slowdown({"flat", rows, cols, 256});
  const double attention_one = slowdown({"attention", 16384, 4096, 16384, {}, attention});
  EXPECT_GT(flat, large + 0.005) << "less of its time is computing";
  EXPECT_GT(large, waves);
  EXPECT_NEAR(attention_one, waves, 0.03) << "hardly waits for memory";
  EXPECT_LT(flat, waves * memory);
  machine.contention.misses = {};
  EXPECT_NEAR(slowdown({"flat", rows, cols, 256}), slowdown({"large", rows, cols, 8192}), 0.02)
      << "unknown: one share for all";
}

TEST(CoTuning, AttentionTakesItsOwnTime) {
  Machine machine = shipped("a40x8-nvlink");
  const auto us = [&](ComputationKind kind) {
    const Workload list{
        8, DType::bf16, {{"one", 8192, 4096, 8192, {}, kind}}, {{"sum", CollectiveKind::allreduce, 1}}};
    return simulate_overlap(list, machine, {}).compute_us;
  };
  EXPECT_NEAR(us(ComputationKind::attention) / us(ComputationKind::product), 1, 0.01);
  machine.attention = {{{8192, 8192, 32, 128, true}, 0.5}};
  EXPECT_NEAR(us(ComputationKind::attention), 2 * us(ComputationKind::product),
              0.01 * us(ComputationKind::attention));
}

TEST(CoTuning, SearchesAllSixParameters) {
  const cotune::Space space = config_space(shipped("a40x8-nvlink"));
  for (const cotune::Axis axis :
       {cotune::Axis::channels, cotune::Axis::chunk, cotune::Axis::subspace, cotune::Axis::threads})
    EXPECT_GT(space.size(axis), 1);
  std::set<Algorithm> algorithms;
  std::set<Protocol> protocols;
  std::set<Transport> transports;
  for (const cotune::Subspace& at : space.subspaces)
    algorithms.insert(at.algorithm), protocols.insert(at.protocol), transports.insert(at.transport);
  EXPECT_EQ(algorithms.size(), 3u);
  EXPECT_EQ(protocols.size(), 4u);
  EXPECT_EQ(transports.size(), 4u);
  // A gather has no trees, and an exchange nothing but transports: such configurations are not tried.
  const Machine machine = shipped("a40x8-nvlink");
  for (const CollectiveKind kind :
       {CollectiveKind::allgather, CollectiveKind::allreduce, CollectiveKind::alltoall}) {
    Workload list = pair(8, 16 * MiB, machine);
    list.collectives[0].kind = kind;
    std::set<cotune::Subspace> tried;
    const auto measure = [&](const std::vector<CollectiveConfig>& configs) {
      EXPECT_TRUE(serves(kind, configs[0])) << name(kind) << " " << describe(configs[0]);
      tried.insert({configs[0].algorithm, configs[0].protocol, configs[0].transport});
      return simulate_overlap(list, machine, configs);
    };
    co_tune(list, measure, Method::together, space);
    EXPECT_EQ(tried.size(), kind == CollectiveKind::allreduce   ? 10u
                            : kind == CollectiveKind::allgather ? 7u
                                                                : 4u)
        << name(kind);
  }
}

// Eq. 6 for copy engines: they take memory bandwidth at both ends, and no SMs.
TEST(CoTuning, EnginesSlowComputationByMemoryTraffic) {
  Machine machine = shipped("h200x8");
  machine.contention.persistent = false;
  const std::vector<CollectiveConfig> engines{{.transport = Transport::engines}};
  const auto us = [&](std::int64_t bytes, double traffic) {
    machine.contention.engine_traffic = traffic;
    Workload list = pair(200, bytes, machine);
    list.world = 2;
    return simulate_overlap(list, machine, engines).compute_us;
  };
  const double alone = us(1, 0.9), rate = std::min(machine.link.gbps, machine.engine.gbps);
  EXPECT_NEAR(us(std::int64_t{64} << 30, 0), alone, 1e-3 * alone) << "no SMs";
  for (const double traffic : {0.5, 0.9})
    EXPECT_NEAR(us(std::int64_t{64} << 30, traffic) / alone,
                Contention::slowed(machine.contention.memory_share, 2 * traffic * rate, machine.memory_gbps),
                0.01);
}

// A library's product is one batch: behind the collective it is as fast as alone (Eq. 4).
TEST(CoTuning, AProductIsSlowedForAsLongAsBytesMove) {
  const Machine machine = shipped("h200x8");
  const auto us = [&](std::int64_t bytes) {
    Workload list = pair(100, bytes, machine);
    list.world = 2;
    return simulate_overlap(list, machine, {{.transport = Transport::engines}});
  };
  const double alone = us(1).compute_us;
  const cotune::Measurement half = us(256 * MiB), all = us(std::int64_t{64} << 30);
  ASSERT_LT(half.communication_us[0], 0.5 * alone);
  const double slower = all.compute_us / alone;
  EXPECT_NEAR(half.compute_us - alone, half.communication_us[0] * (1 - 1 / slower),
              0.1 * half.communication_us[0] * (1 - 1 / slower));
}

TEST(CoTuning, ProductsThatHeatADeviceSlowDown) {
  Machine machine = shipped("h200x8");
  machine.throttle = {};
  const Workload list = pair(400, 1, machine);
  const double cool = simulate_overlap(list, machine, {}).compute_us;
  machine.throttle = {.after_us = cool / 4, .rate = 0.5};
  EXPECT_NEAR(simulate_overlap(list, machine, {}).compute_us, cool / 4 + 2 * 0.75 * cool, 0.02 * cool);
}

TEST(CoTuning, ChoosesEnginesWhereTheyCostLess) {
  const Machine machine = shipped("h200x8");
  const cotune::Space all = overlap_space(machine), nccl = config_space(machine);
  EXPECT_GT(all.size(cotune::Axis::spared), 1);
  EXPECT_GT(all.size(cotune::Axis::delay), 1);
  Workload list = pair(60, 256 * MiB, machine);
  list.world = 2;
  const auto us = [&](const cotune::Space& space, Method method) {
    return co_tune(list, machine, method, space).measured.makespan_us;
  };
  const CoTuned found = co_tune(list, machine, Method::together, all);
  EXPECT_TRUE(found.configs[0].by_engines()) << describe(found.configs[0]);
  EXPECT_EQ(found.measured.communication_us.size(), 1);
  EXPECT_LT(found.measured.makespan_us, us(nccl, Method::together));
  EXPECT_LE(found.measured.makespan_us, us(all, Method::library));
  Machine apart = machine;
  apart.peer_memory = false;
  EXPECT_EQ(overlap_space(apart).subspaces, config_space(apart).subspaces) << "no engines reach other ranks";
}

TEST(CoTuning, AnUnfinishedSearchHasTheBestSoFar) {
  const Machine machine = shipped("h200x8");
  Workload list = pair(60, 256 * MiB, machine);
  list.world = 2;
  double before = std::numeric_limits<double>::infinity();
  for (const int most : {1, 4, 16, 64}) {
    const CoTuned found = co_tune(list, machine, Method::together, overlap_space(machine), {.most = most});
    EXPECT_LE(found.evaluations, most);
    EXPECT_LE(found.measured.makespan_us, before);
    before = found.measured.makespan_us;
    if (most == 1) {
      EXPECT_EQ(found.configs[0], CollectiveConfig{}) << "NCCL's choice comes first";
    }
  }
}

TEST(CoTuning, FindsWhatAllConfigurationsHave) {
  const Machine machine = shipped("a40x8-nvlink");
  for (const OverlapPattern& pattern :
       overlap_patterns(model("phi-2"), {.ranks = 8, .tokens = 4096, .sequence = 2048})) {
    const auto us = [&](Method method) {
      return co_tune(pattern.workload, machine, method, resource_space(machine)).measured.makespan_us;
    };
    const double together = us(Method::together);
    EXPECT_GE(us(Method::exhaustive) / together, 0.97) << pattern.name;
    EXPECT_LE(together, us(Method::library)) << pattern.name;
    EXPECT_LE(together, us(Method::alone)) << pattern.name;
  }
}

TEST(CoTuning, CollectivesThatAreAlikeGetTheSame) {
  const Machine machine = shipped("a40x8-nvlink");
  const auto patterns =
      overlap_patterns(model("llama-3-8b"), {.parallelism = Parallelism::tp, .ranks = 8, .tokens = 8192});
  const cotune::Space space = resource_space(machine);
  const CoTuned found = co_tune(patterns[1].workload, machine, Method::together, space, {}, {0, 1, 1, 0});
  EXPECT_EQ(found.configs[0], found.configs[3]);
  EXPECT_EQ(found.configs[1], found.configs[2]);
  EXPECT_EQ(found.measured.communication_us.size(), 4);
  EXPECT_THROW(co_tune(patterns[1].workload, machine, Method::library, space, {}, {0, 1}), InvalidArgument);
  EXPECT_THROW(co_tune({}, machine, Method::library, space), InvalidArgument);
}

// ----------------------------------------------------------------------------------------------------------
// patterns

std::int64_t multiply_adds(const Workload& list) {
  std::int64_t sum = 0;
  for (const Workload::Computation& item : list.computations)
    if (item.kind != ComputationKind::pass) sum += item.m * item.n * item.k;
  return sum;
}

std::map<ComputationKind, std::size_t> kinds_of(const Workload& list) {
  std::map<ComputationKind, std::size_t> count;
  for (const Workload::Computation& item : list.computations) ++count[item.kind];
  return count;
}

TEST(OverlapPatterns, FsdpGathersEachLayersWeights) {
  const auto patterns = overlap_patterns(model("llama-3-8b"), {.ranks = 8, .tokens = 4096, .sequence = 2048});
  ASSERT_EQ(patterns.size(), 2);
  const Workload &forward = patterns[0].workload, &backward = patterns[1].workload;
  EXPECT_EQ(patterns[0].times, 32);
  ASSERT_EQ(forward.collectives.size(), 1);
  // Q, K, V, output, gate, up and down of Llama-3 8B, two bytes each.
  EXPECT_EQ(forward.collectives[0].bytes, 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * std::int64_t{14336}));
  ASSERT_EQ(backward.collectives.size(), 2);
  EXPECT_EQ(backward.collectives[1].kind, CollectiveKind::reducescatter);
  EXPECT_EQ(multiply_adds(backward), 2 * multiply_adds(forward));
  using enum ComputationKind;
  EXPECT_EQ(kinds_of(forward),
            (std::map<ComputationKind, std::size_t>{{product, 4}, {attention, 1}, {pass, 3}}));
  EXPECT_EQ(kinds_of(backward),
            (std::map<ComputationKind, std::size_t>{{product, 8}, {attention, 2}, {pass, 3}}));
}

TEST(OverlapPatterns, PassesMoveWhatNormsAndActivationsDo) {
  const auto elements = [](const char* name) {
    std::map<std::string, std::int64_t> all;
    const auto patterns = overlap_patterns(model(name), {.ranks = 8, .tokens = 1024});
    for (const Workload::Computation& item : patterns[0].workload.computations)
      if (item.kind == ComputationKind::pass) all[item.name] = 2 * item.m * item.n;  // read and written
    return all;
  };
  const auto llama = elements("llama-3-8b"), phi = elements("phi-2");
  EXPECT_EQ(llama.at("norm"), 1024 * 4 * 4096) << "the residual and its norm";
  EXPECT_EQ(llama.at("activation"), 1024 * 3 * 14336) << "gate, up and their product";
  EXPECT_EQ(phi.at("activation"), 1024 * 2 * 10240);
}

TEST(OverlapPatterns, HalvesTakeTurns) {
  for (const auto& [name, parallelism, kind, bytes] :
       {std::tuple{"llama-3-8b", Parallelism::tp, CollectiveKind::allreduce, 2048 * 4096 * 2},
        std::tuple{"olmoe-1b-7b", Parallelism::ep, CollectiveKind::alltoall, 2048 * 8 * 2048 * 2}}) {
    const auto patterns =
        overlap_patterns(model(name), {.parallelism = parallelism, .ranks = 8, .tokens = 4096});
    ASSERT_EQ(patterns.size(), 2);
    for (const OverlapPattern& pattern : patterns) {
      const Workload& list = pattern.workload;
      ASSERT_EQ(list.collectives.size(), 4);
      for (const Workload::Collective& item : list.collectives) {
        EXPECT_EQ(item.kind, kind);
        EXPECT_EQ(item.bytes, bytes);
      }
      // Each block but the first awaits a collective, and each collective but the first a block.
      std::vector<std::int32_t> awaited;
      for (const Workload::Computation& item : list.computations)
        awaited.insert(awaited.end(), item.after.begin(), item.after.end());
      EXPECT_THAT(awaited, ElementsAre(0, 1, 2));
      EXPECT_TRUE(list.collectives[0].after.empty());
      for (std::size_t j = 1; j < 4; ++j) EXPECT_EQ(list.collectives[j].after.size(), 1);
    }
  }
}

TEST(OverlapPatterns, ExpertsOfALayerAreGatheredWithIt) {
  const auto patterns = overlap_patterns(model("deepseek-moe-16b"), {.ranks = 8, .tokens = 2048});
  ASSERT_EQ(patterns.size(), 4);
  EXPECT_THAT(patterns[0].name, HasSubstr("dense"));
  EXPECT_EQ(patterns[0].times, 1);
  EXPECT_EQ(patterns[2].times, 27);
  EXPECT_GT(patterns[2].workload.collectives[0].bytes, 64 * 2 * 3 * 2048 * 1408);
}

const Workload::Computation& named(const Workload& list, const std::string& name) {
  return *std::ranges::find(list.computations, name, &Workload::Computation::name);
}

TEST(OverlapPatterns, ExpertsAreGroupedProducts) {
  const auto patterns = overlap_patterns(model("deepseek-moe-16b"),
                                         {.parallelism = Parallelism::ep, .ranks = 8, .tokens = 4096});
  const Workload &forward = patterns[0].workload, &backward = patterns[1].workload;
  const std::vector<std::int64_t> rows(8, 2048 * 6 / 8);  // of the 64 experts a rank has eight
  const Workload::Computation &up = named(forward, "moe_up 1"), &down = named(forward, "moe_down 2");
  EXPECT_EQ(up.groups, rows);
  EXPECT_EQ(std::tuple(up.m, up.n, up.k), std::tuple(2048 * 6, 2 * 1408, 2048));
  EXPECT_EQ(down.groups, rows);
  EXPECT_EQ(std::tuple(down.m, down.n, down.k), std::tuple(2048 * 6, 2048, 1408));
  EXPECT_TRUE(named(forward, "shared_up 1").groups.empty());
  const Workload::Computation &dx = named(backward, "moe_up_dx 1"), &dw = named(backward, "moe_up_dw 1");
  EXPECT_EQ(dx.groups, rows);
  EXPECT_EQ(std::tuple(dx.m, dx.n, dx.k), std::tuple(2048 * 6, 2048, 2 * 1408));
  EXPECT_EQ(dw.groups, std::vector<std::int64_t>(8, 2048));
  EXPECT_EQ(std::tuple(dw.m, dw.n, dw.k), std::tuple(8 * 2048, 2 * 1408, 2048 * 6 / 8));
  EXPECT_EQ(multiply_adds(backward), 2 * multiply_adds(forward));
}

TEST(OverlapPatterns, SomeExpertsHaveNoRows) {
  const auto patterns =
      overlap_patterns(model("olmoe-1b-7b"), {.parallelism = Parallelism::ep, .ranks = 2, .tokens = 4});
  const Workload &forward = patterns[0].workload, &backward = patterns[1].workload;
  std::vector<std::int64_t> rows(32, 0), weights = rows;
  std::fill_n(rows.begin(), 16, 1), std::fill_n(weights.begin(), 16, 2048);  // two tokens have eight each
  EXPECT_EQ(named(forward, "moe_up 1").groups, rows);
  EXPECT_EQ(named(backward, "moe_up_dw 1").groups, weights);
  EXPECT_EQ(named(backward, "moe_up_dw 1").k, 1);
  EXPECT_EQ(multiply_adds(backward), 2 * multiply_adds(forward));
}

/// Each expert's weights are read, whatever the number of its rows.
TEST(OverlapPatterns, ExpertsReadTheirWeights) {
  const Machine machine = shipped("h200x8");
  const auto patterns =
      overlap_patterns(model("olmoe-1b-7b"), {.parallelism = Parallelism::ep, .ranks = 8, .tokens = 128});
  const Workload::Computation& up = named(patterns[0].workload, "moe_up 1");
  const auto computing_us = [&](const Workload::Computation& item) {
    const Workload alone{8, DType::bf16, {item}, {{"none", CollectiveKind::alltoall, 8}}};
    return simulate(plan_sequential(alone, machine).value(), machine).computing_us[0];
  };
  const double weights_us = static_cast<double>(8 * up.n * up.k * 2) / (machine.memory_gbps * 1e3);
  EXPECT_GE(computing_us(up), weights_us);
  Workload::Computation one = up;
  one.groups.clear();
  EXPECT_LT(computing_us(one), weights_us * 2 / 3);
}

/// Small sizes of the same model, to prove.
TEST(OverlapPatterns, AreProven) {
  ModelConfig small = model("deepseek-moe-16b");
  small.hidden = 32;
  small.heads = small.kv_heads = 4;
  small.head_dim = 8;
  small.ffn = 64;
  small.moe_ffn = small.shared_ffn = 16;
  Machine machine;
  machine.workers = 8;
  machine.collective_workers = 2;
  machine.tile_rows = machine.tile_cols = 32;
  for (const Parallelism parallelism : {Parallelism::fsdp, Parallelism::tp, Parallelism::ep})
    for (const OverlapPattern& pattern :
         overlap_patterns(small, {.parallelism = parallelism, .ranks = 4, .tokens = 64})) {
      const Proof proof = verify(plan_chunked(pattern.workload, machine).value());
      EXPECT_TRUE(proof.ok) << name(parallelism) << " " << pattern.name << ": " << proof.failure;
    }
}

TEST(OverlapPatterns, RefuseWhatDoesNotFit) {
  const auto says = [](const std::string& name, const PatternOptions& options, const std::string& text) {
    try {
      overlap_patterns(model(name), options);
      ADD_FAILURE() << "should say " << text;
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), HasSubstr(text));
    }
  };
  says("phi-2", {.parallelism = Parallelism::ep, .ranks = 8, .tokens = 4096}, "experts");
  says("olmoe-1b-7b", {.parallelism = Parallelism::tp, .ranks = 8, .tokens = 4096}, "dense layers");
  says("qwen1.5-moe-a2.7b", {.parallelism = Parallelism::ep, .ranks = 8, .tokens = 4096},
       "experts = 60 is not a multiple of 8 ranks");
  says("phi-2", {.parallelism = Parallelism::tp, .ranks = 5, .tokens = 4096}, "is not a multiple of");
  says("phi-2", {.ranks = 8}, "tokens = 0");
  says("phi-2", {.ranks = 1, .tokens = 64}, "ranks = 1 is outside");
  says("jamba-v0.1", {.ranks = 8, .tokens = 64}, "Mamba");
  EXPECT_THROW(parse_parallelism("dp"), InvalidArgument);
}

}  // namespace
}  // namespace shingle::co_tuning_test
