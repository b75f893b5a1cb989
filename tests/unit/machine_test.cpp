// Machine profiles: curves inside and outside their samples, what profiles say, and what is refused.
#include "shingle/machine/profile.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <functional>
#include <nlohmann/json.hpp>

#include "shingle/base/error.hpp"

namespace shingle::machine_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const Curve curve{Traffic::allreduce, 8, 0, {{1e3, 10}, {1e5, 40}, {1e7, 640}}};

TEST(Curve, PassesItsSamples) {
  for (const Sample& sample : curve.samples) EXPECT_NEAR(curve.us(sample.bytes), sample.us, 1e-9 * sample.us);
}

TEST(Curve, IsStraightInLogarithms) {
  EXPECT_NEAR(curve.us(1e4), 20, 1e-9);   // halfway between 10 and 40
  EXPECT_NEAR(curve.us(1e6), 160, 1e-9);  // halfway between 40 and 640
}

TEST(Curve, IsLatencyBelowAndRateAbove) {
  EXPECT_EQ(curve.us(1), 10);
  EXPECT_EQ(curve.us(0), 10);
  EXPECT_NEAR(curve.us(1e9), 64000, 1e-6);
}

TEST(Curve, NeverFallsEvenWhereItsSamplesDo) {
  const Curve noisy{Traffic::allreduce, 4, 0, {{1e3, 10}, {1e4, 30}, {1e5, 20}, {1e7, 640}}};
  EXPECT_EQ(noisy.us(1e5), 30);
  for (const Curve* any : {&curve, &noisy})
    for (double bytes = 1, last = 0; bytes < 1e10; bytes *= 1.1) {
      EXPECT_GE(any->us(bytes), last);
      last = any->us(bytes);
    }
}

TEST(Collective, TakesTheNearestCurve) {
  const std::vector<Curve> curves{{Traffic::allgather, 2, 0, {{1e6, 20}}},
                                  {Traffic::allgather, 8, 0, {{1e6, 35}}},
                                  {Traffic::allgather, 8, 4, {{1e6, 140}}},
                                  {Traffic::allgather, 8, 16, {{1e6, 70}}}};
  EXPECT_DOUBLE_EQ(collective_us(curves, Traffic::allgather, 8, 0, 1e6), 35);
  EXPECT_DOUBLE_EQ(collective_us(curves, Traffic::allgather, 2, 0, 1e6), 20);
  EXPECT_DOUBLE_EQ(collective_us(curves, Traffic::allgather, 8, 4, 1e6), 140);
  EXPECT_NEAR(collective_us(curves, Traffic::allgather, 8, 8, 1e6), std::sqrt(140. * 70), 1e-9);
  EXPECT_DOUBLE_EQ(collective_us(curves, Traffic::allgather, 8, 2, 1e6), 280);  // half of four
  EXPECT_DOUBLE_EQ(collective_us(curves, Traffic::allgather, 2, 4, 1e6), 140)
      << "no faster than between eight";
  EXPECT_DOUBLE_EQ(collective_us(curves, Traffic::allgather, 1, 0, 1e6), 0);
  EXPECT_LT(collective_us(curves, Traffic::alltoall, 8, 0, 1e6), 0) << "no curve of this traffic";
  // Sixteen ranks move 15/16 of the bytes over a link where eight move 7/8.
  EXPECT_NEAR(collective_us(curves, Traffic::allgather, 16, 0, 2e6), 35 * 2 * (15. / 16) / (7. / 8), 1e-9);
}

TEST(Collective, FewWorkersAreSlowAlsoBetweenRanksThatWereSampledWithTheLibrarysChoiceAlone) {
  const std::vector<Curve> curves{{Traffic::allgather, 4, 0, {{1e6, 10}, {1e9, 5000}}},
                                  {Traffic::allgather, 8, 0, {{1e6, 20}, {1e9, 6000}}},
                                  {Traffic::allgather, 8, 4, {{1e6, 30}, {1e9, 30000}}}};
  const auto us = [&](int workers, double bytes) {
    return collective_us(curves, Traffic::allgather, 4, workers, bytes);
  };
  EXPECT_DOUBLE_EQ(us(0, 1e9), 5000);
  const double same_wire = 1e9 * (7.0 / 8) / (3.0 / 4);  // over a link as many bytes as 1e9 between eight
  EXPECT_NEAR(us(4, same_wire), 30000, 1e-6);
  EXPECT_GT(us(2, 1e9), us(4, 1e9));
  EXPECT_GE(us(64, 1e9), us(0, 1e9));
}

TEST(Wave, IsOfTheTileOrBetweenItsNeighbours) {
  Machine machine;
  EXPECT_LT(wave_us(machine, 128, 256, 1024), 0);
  machine.tiles = {{128, 256, 2, 0.01}, {64, 64, 1, 0.002}};
  machine.whole_tiles = false;
  EXPECT_DOUBLE_EQ(wave_us(machine, 128, 256, 1000), 12);
  // Four of the way of eight in area, in logarithms two thirds: from 3 us two thirds of the way to 12.
  EXPECT_NEAR(wave_us(machine, 128, 128, 1000), 3 * std::pow(4, 2.0 / 3), 1e-9);
  EXPECT_DOUBLE_EQ(wave_us(machine, 256, 256, 1000), 24);
  EXPECT_DOUBLE_EQ(wave_us(machine, 64, 32, 1000), 1.5);
}

TEST(Wave, OfATileThatALargerOneHoldsTakesAsLong) {
  Machine machine;
  machine.tiles = {{128, 256, 2, 0.01}, {64, 64, 1, 0.002}};
  EXPECT_DOUBLE_EQ(wave_us(machine, 64, 32, 1000), 3);
  EXPECT_DOUBLE_EQ(wave_us(machine, 16, 128, 1000), 12);
  EXPECT_DOUBLE_EQ(wave_us(machine, 256, 256, 1000), 24);  // no tile holds it
}

TEST(Profile, TheH200IsWhatWasMeasured) {
  const Machine h200 = read_machine(SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json");
  EXPECT_EQ(h200.workers, 132);
  EXPECT_NEAR(collective_us(h200.curves, Traffic::allreduce, 8, 0, 268435456), 1350.8, 0.1);
  EXPECT_NEAR(collective_us(h200.curves, Traffic::allgather, 8, 16, 1 << 20), 19.1, 0.1);
  // 8192×8192 in tiles of 128×256 on 132 SMs are sixteen waves.
  EXPECT_NEAR(16 * wave_us(h200, 128, 256, 3584), 617.9, 0.03 * 617.9);
  EXPECT_NEAR(16 * wave_us(h200, 128, 256, 1024), 193.4, 0.03 * 193.4);
}

TEST(Machine, RatesOfAttentionAreThoseOfTheNearest) {
  Machine machine;
  const auto rate = [&](std::int64_t queries, std::int64_t keys, bool causal) {
    return attention_rate(machine, {queries, keys, 8, 128, causal});
  };
  EXPECT_EQ(rate(100, 100, true), 1) << "none is known";
  machine.attention = {{{1024, 1024, 8}, 0.4}, {{4096, 4096, 8}, 0.8}, {{1024, 1024, 8, 128, true}, 0.2}};
  EXPECT_EQ(rate(1024, 1024, false), 0.4);
  EXPECT_NEAR(rate(2048, 2048, false), 0.6, 1e-12) << "halfway";
  EXPECT_EQ(rate(4096, 4096, true), 0.2) << "the only causal one";
  EXPECT_GT(rate(3584, 4096, false), 0.75);
  EXPECT_LT(rate(3584, 4096, false), 0.8);
  machine.attention.push_back({{1024, 16384, 8}, 0.5});
  EXPECT_NEAR(rate(1024, 15000, false), 0.5, 0.01) << "few queries of many keys";
  EXPECT_LT(attention_rate(machine, {4096, 4096, 8, 32, false}), 0.8) << "other heads are farther away";
  machine.attention.erase(machine.attention.begin() + 2);
  EXPECT_EQ(rate(4096, 4096, true), 0.8) << "of the other mask";
}

TEST(Machine, RatesOfBackwardAreOnlyOfBackwardIfThereAreAny) {
  Machine machine;
  machine.attention = {{{1024, 1024, 8, 128, true}, 0.4}, {{4096, 4096, 8}, 0.8}};
  const AttentionSize backward{1024, 1024, 8, 128, true, true};
  EXPECT_EQ(attention_rate(machine, backward), 0.4) << "those of the attention itself";
  machine.attention.push_back({{4096, 4096, 8, 128, false, true}, 0.3});
  EXPECT_EQ(attention_rate(machine, backward), 0.3) << "rather the other mask than the other direction";
  EXPECT_EQ(attention_rate(machine, {1024, 1024, 8, 128, true}), 0.4);
}

TEST(Profile, HoldsTopologyAndContention) {
  Machine machine;
  machine.name = "full";
  machine.ranks = 64;
  machine.pass_gbps = 90.5;
  machine.reduce_gbps = 60.5;
  machine.parts_gbps = 7.5;
  machine.begin_us = 4.5;
  machine.pass_us = 0.8;
  machine.load_us = 0.7;
  machine.whole_tiles = false;
  machine.attention = {{{1024, 2048, 8, 128, true}, 0.5}, {{1024, 1024, 8, 64, false, true}, 0.75}};
  machine.library_rate = 1.02;
  machine.library_tail = 0.5;
  machine.tiles = {{128, 256, 1.5, 0.01, 0}, {64, 128, 0.5, 0.005, 190, 180}};
  machine.topology = {
      .pair = {200, 3}, .pair_ranks = 4, .ranks_per_node = 8, .node = {400, 5}, .serial = true};
  machine.contention = {.memory_share = 0.25,
                        .misses = {0.5, std::nullopt, 0},
                        .channel_gbps = 36,
                        .chunk_bytes = 65536,
                        .store_slowdown = 0.2,
                        .chunk_us = 0.5,
                        .collective_slowdown = 0.07,
                        .product_slowdown = {0.15, 0.45, 0, 0.1},
                        .steals = 0.5,
                        .wake_us = 80,
                        .persistent = true,
                        .product_residual = 0.01,
                        .collective_residual = 0.0};
  machine.early_kernels = true;
  machine.contention_samples = {{Traffic::allgather, 4, 8, 65536, 1e6, 50, 55.5, 500, 510},
                                {Traffic::allreduce, 2, 0, 0, 4096, 5, 6, 500, 510, 3},
                                {.traffic = Traffic::allreduce,
                                 .workers = 8,
                                 .bytes = 4096,
                                 .us = 5,
                                 .beside_us = 6,
                                 .product_us = 500,
                                 .product_beside_us = 510,
                                 .computation = ComputationKind::attention,
                                 .moved = {1e8, 2e8}}};
  for (const char* of : {"workers", "ranks", "pass_gbps", "reduce_gbps", "parts_gbps", "topology",
                         "contention", "contention_samples", "whole_tiles", "early_kernels", "attention",
                         "library_rate", "library_tail", "tiles", "begin_us", "pass_us", "load_us"})
    machine.sources.push_back({of, Origin::assumed, "a test"});
  EXPECT_EQ(machine_from_json(to_json(machine)), machine);
  EXPECT_EQ(json::parse(to_json(machine))["topology"]["node"]["gbps"], 400);
  machine.topology.ranks_per_node = 0;
  machine.topology.node = {};
  EXPECT_EQ(machine_from_json(to_json(machine)), machine) << "pairs alone";
  machine.topology = {};
  machine.contention = {};
  machine.contention_samples.clear();
  machine.pass_gbps = machine.reduce_gbps = machine.parts_gbps = 0;
  EXPECT_EQ(machine_from_json(to_json(machine)), machine);
  for (const char* key :
       {"topology", "contention", "contention_samples", "pass_gbps", "reduce_gbps", "parts_gbps"})
    EXPECT_FALSE(json::parse(to_json(machine)).contains(key)) << key << " is left out at its default";
}

json smallest() {
  return {{"format", "shingle-machine"},
          {"version", 1},
          {"name", "small"},
          {"workers", 4},
          {"sources", {{{"of", "workers"}, {"origin", "assumed"}, {"note", "a test"}}}}};
}

TEST(Profile, RefusesWhatIsWrong) {
  const auto refused = [](const std::function<void(json&)>& spoil) {
    json profile = smallest();
    spoil(profile);
    try {
      machine_from_json(profile.dump());
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const auto sourced = [](json& p, const char* of) {
    p["sources"].push_back({{"of", of}, {"origin", "assumed"}});
  };
  EXPECT_EQ(refused([](json&) {}), "nothing");
  EXPECT_THAT(refused([](json& p) { p["format"] = "plan"; }), HasSubstr("shingle-machine"));
  EXPECT_THAT(refused([](json& p) { p["version"] = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(refused([](json& p) { p.erase("name"); }), HasSubstr("'name'"));
  EXPECT_THAT(refused([](json& p) { p["workers"] = 0; }), HasSubstr("workers"));
  EXPECT_THAT(refused([](json& p) { p["colour"] = 1; }), HasSubstr("colour"));
  EXPECT_THAT(refused([](json& p) { p["launch_us"] = 3; }), HasSubstr("launch_us has no source"));
  EXPECT_THAT(refused([](json& p) { p["sources"][0]["origin"] = "heard"; }), HasSubstr("heard"));
  EXPECT_THAT(refused([](json& p) { p["sources"][0]["of"] = "weather"; }), HasSubstr("weather"));
  EXPECT_THAT(refused([&](json& p) {
                sourced(p, "curves");
                p["curves"] = {{{"traffic", "allreduce"},
                                {"ranks", 2},
                                {"samples", {{{"bytes", 8}, {"us", 1}}, {{"bytes", 8}, {"us", 2}}}}}};
              }),
              HasSubstr("curves[0]: samples[1]: bytes must ascend"));
  EXPECT_THAT(refused([&](json& p) {
                sourced(p, "curves");
                p["curves"] = {{{"traffic", "gossip"}, {"ranks", 2}, {"samples", json::array()}}};
              }),
              HasSubstr("gossip"));
  EXPECT_THAT(refused([&](json& p) {
                sourced(p, "tiles");
                p["tiles"] = {{{"rows", 128}, {"cols", 0}, {"us_per_k", 1}}};
              }),
              HasSubstr("tiles[0]: cols"));
  const auto refused_value = [&](const char* key, const json& value) {
    return refused([&](json& p) {
      sourced(p, key);
      p[key] = value;
    });
  };
  const json link = {{"gbps", 50}};
  EXPECT_EQ(refused_value("topology", {{"ranks_per_node", 2}, {"node", link}}), "nothing");
  EXPECT_THAT(refused([&](json& p) { p["topology"] = {{"pair", link}}; }),
              HasSubstr("topology has no source"));
  EXPECT_THAT(refused([](json& p) { p["contention"] = json::object(); }),
              HasSubstr("contention has no source"));
  EXPECT_THAT(refused_value("topology", {{"ranks_per_node", 2}}),
              HasSubstr("topology: ranks_per_node and node"));
  EXPECT_THAT(refused_value("topology", {{"node", link}}), HasSubstr("topology: ranks_per_node and node"));
  EXPECT_THAT(refused_value("topology", {{"pair", {{"latency_us", 3}}}}),
              HasSubstr("topology: pair: missing"));
  EXPECT_THAT(refused_value("topology", {{"ring", link}}), HasSubstr("topology: unknown key \"ring\""));
  EXPECT_THAT(refused_value("contention", {{"memory_share", 1.5}}),
              HasSubstr("contention: memory_share = 1.5"));
  EXPECT_THAT(refused_value("contention", {{"persistent", 1}}), HasSubstr("contention: persistent"));
  EXPECT_THAT(refused_value("contention", {{"share", 1}}), HasSubstr("contention: unknown key"));
  const json sample = {{"traffic", "allreduce"},
                       {"ranks", 4},
                       {"workers", 8},
                       {"bytes", 4096},
                       {"us", 10},
                       {"beside_us", 12},
                       {"product_us", 500},
                       {"product_beside_us", 510}};
  const auto refused_sample = [&](const char* key, const json& value) {
    json changed = sample;
    changed[key] = value;
    return refused_value("contention_samples", json::array({changed}));
  };
  EXPECT_EQ(refused_value("contention_samples", json::array({sample})), "nothing");
  EXPECT_THAT(refused_sample("workers", 0), HasSubstr("contention_samples[0]: workers"));
  EXPECT_THAT(refused_sample("us", 0), HasSubstr("contention_samples[0]: us must be above zero"));
  EXPECT_THAT(refused_sample("traffic", "gossip"), HasSubstr("gossip"));
  EXPECT_THAT(refused_sample("speed", 1), HasSubstr("contention_samples[0]: unknown key \"speed\""));
  EXPECT_THAT(refused_value("pass_gbps", -1), HasSubstr("pass_gbps"));
  EXPECT_THAT(refused_value("pass_gbps", 1e-300), HasSubstr("pass_gbps = 1e-300 is outside [1e-09, 1"));
  EXPECT_THAT(refused_value("memory_gbps", 1e300), HasSubstr("memory_gbps = 1e+300 is outside [0, 1"));
  EXPECT_THAT(refused_value("workers", 18446744073709551615u), HasSubstr("workers = 18446744073709551615"));
  EXPECT_THAT(refused_sample("us", 1e-300),
              HasSubstr("contention_samples[0]: us = 1e-300 is outside [1e-09, 1"));
  EXPECT_THROW(machine_from_json("["), InvalidArgument);
  EXPECT_THROW(machine_from_json("[]"), InvalidArgument);
  EXPECT_THROW(read_machine("/nowhere/at/all.json"), IoError);
}

}  // namespace
}  // namespace shingle::machine_test
