// shingle run, plan and verify of experts, on threads and under mpirun.
#include <map>
#include <tuple>

#include "cli_program.hpp"

namespace shingle::cli_experts_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string sizes = "--m 40 --n 24 --k 16 --topk 2 ", world = "--world 3 ";
const std::string tensor_parallel[] = {"--op allgather+grouped-gemm --experts 5 --activation swiglu " + sizes,
                                       "--op grouped-gemm+reducescatter --experts 5 " + sizes,
                                       "--op moe-tp --inner 8 --experts 5 --activation swiglu " + sizes};
const std::string expert_parallel[] = {"--op alltoall+grouped-gemm --experts 6 --activation silu " + sizes,
                                       "--op grouped-gemm+alltoall --experts 6 " + sizes,
                                       "--op moe --inner 8 --experts 6 --activation swiglu " + sizes};

const std::string replicated[] = {"--op grouped-gemm+allreduce --experts 5 " + sizes,
                                  "--op moe+allreduce --inner 8 --experts 5 --activation swiglu " + sizes};

TEST_F(Cli, RunsExpertsOfReplicatedTokens) {
  for (const std::string& op : replicated) {
    for (const std::string flags : {"", "--routing skewed --transpose-b", "--routing all-to-one --dtype bf16",
                                    "--capacity 30", "--capacity 4 --routing empty-rank"})
      for (const json& row : rows("--mechanism sequential,signal,fused " + world + op + flags))
        EXPECT_EQ(row.at("verified"), true) << flags << " " << row;
    for (const std::string params : {"fused --one-shot", "fused --helpers 1 --comm-order ring --tile 8x8",
                                     "signal --helpers 1 --groups 1,2 --tile 8x8"})
      EXPECT_EQ(rows("--workers 2 --mechanism " + params + " " + world + op)[0].at("verified"), true)
          << params;
    EXPECT_EQ(run("verify --mechanism sequential,signal,fused " + world + op).code, 0);
    EXPECT_THAT(run("plan --mechanism chunked " + world + op).err, HasSubstr("use signal or fused"));
  }
}

TEST_F(Cli, RefusesARoutingOfOtherSources) {
  write("routing.json", R"({"dest": [[0, 1], [1, 1, 1, 1]]})");
  for (const std::string capacity : {"", " --capacity 2"})
    for (const std::string op : {"moe+allreduce", "moe-tp"})
      expect_refused("run --op " + op + " --inner 8 --n 24 --k 16 --topk 2 --experts 5 " + world +
                         "--routing " + path("routing.json") + capacity,
                     op == "moe+allreduce" ? "one source" : "ranks");
}

TEST_F(Cli, RunsExperts) {
  for (const std::string& op : expert_parallel)
    for (const json& row : rows("--mechanism sequential,chunked,fused " + world + op))
      EXPECT_EQ(row.at("verified"), true) << row;
  for (const std::string& op : tensor_parallel)
    for (const std::string flags :
         {"", "--routing skewed --transpose-b", "--routing all-to-one --dtype bf16", "--routing empty-rank"})
      for (const json& row : rows("--mechanism sequential,chunked,signal,fused " + world + op + flags))
        EXPECT_EQ(row.at("verified"), true) << flags << " " << row;
}

TEST_F(Cli, RunsTensorParallelExpertsByAllParams) {
  for (const std::string& op : tensor_parallel)
    for (const std::string params : {"--helpers 1", "--helpers none", "--mover store --helpers 1"})
      EXPECT_EQ(rows("--mechanism fused --workers 2 " + params + " " + world + op)[0].at("verified"), true)
          << params;
  for (const std::string& op : tensor_parallel)
    for (const std::string params :
         {"--helpers 1 --groups 2,1,1,1", "--helpers none --groups equal", "--tile 8x8 --helpers 1"})
      EXPECT_EQ(rows("--mechanism signal --workers 2 " + params + " " + world + op)[0].at("verified"), true)
          << params;
  EXPECT_EQ(
      rows("--mechanism fused --stage-fp32 --dtype bf16 " + world + tensor_parallel[2])[0].at("verified"),
      true);
}

TEST_F(Cli, RunsTensorParallelExpertsWithACapacity) {
  for (const std::string& op : tensor_parallel)
    for (const std::string flags : {"--capacity 9", "--capacity 30 --routing skewed --transpose-b",
                                    "--capacity 4 --routing empty-rank --dtype bf16"})
      for (const json& row : rows("--mechanism sequential,chunked,signal,fused " + world + op + flags)) {
        EXPECT_EQ(row.at("verified"), true) << flags << " " << row;
        EXPECT_TRUE(row.at("dropped").is_number()) << row;
      }
  EXPECT_EQ(
      rows("--mechanism fused --stage-fp32 --dtype bf16 --capacity 9 " + world + tensor_parallel[2])[0].at(
          "verified"),
      true);
}

TEST_F(Cli, ReadsARoutingOfRanksWithDifferentTokens) {
  write("routing.json", R"({"dest": [[4, 0, 0, 4], [], [1, 1, 1, 3, 4, 0]]})");
  const std::string routed =
      "--n 24 --k 16 --topk 2 " + world + "--experts 5 --routing " + path("routing.json");
  for (const std::string op : {"moe-tp --inner 8", "allgather+grouped-gemm", "grouped-gemm+reducescatter"})
    for (const json& row : rows("--mechanism sequential,chunked,signal,fused --op " + op + " " + routed)) {
      EXPECT_EQ(row.at("verified"), true) << row;
      EXPECT_EQ(row.at("m"), 3);
    }
  expect_refused("run --op moe --inner 8 " + routed, "5 experts do not divide among 3 ranks");
}

TEST_F(Cli, PlansAndProvesTensorParallelExperts) {
  for (const std::string& op : tensor_parallel) {
    EXPECT_EQ(run("verify --mechanism sequential,chunked,signal,fused " + world + op).code, 0);
    for (const std::string mechanism : {"signal ", "fused "}) {
      EXPECT_EQ(
          run("plan --format json --out " + path("plan.json") + " " + world + "--mechanism " + mechanism + op)
              .code,
          0);
      EXPECT_EQ(run("verify " + path("plan.json")).code, 0);
      EXPECT_EQ(run("run " + path("plan.json")).code, 0);
    }
    EXPECT_THAT(run("plan --machine h200x8 --mechanism sequential,fused --dtype bf16 " + world + op).out,
                HasSubstr("fused"));
    EXPECT_THAT(run("plan --mechanism signal --workers 3 --helpers 3 " + world + op).err,
                HasSubstr("helpers = 3 of 3 workers leave none for the GEMM"));
  }
  EXPECT_THAT(
      run("plan --mechanism signal --helpers 1 " + world + expert_parallel[2]).err,
      HasSubstr("helpers of signal sort and sum tokens of tensor-parallel experts, which moe does not "
                "have: leave them out"));
  EXPECT_THAT(run("plan --mechanism ring " + world + expert_parallel[2]).err,
              HasSubstr("ring does not plan grouped products: use sequential, chunked, signal or fused"));
}

TEST_F(Cli, PlansTheExpertsOfModels) {
  for (const std::string model : {"mixtral-8x7b", "mixtral-8x22b", "deepseek-moe-16b", "olmoe-1b-7b",
                                  "qwen1.5-moe-a2.7b", "qwen3-30b-a3b"})
    for (const auto& [split, up, down] :
         {std::tuple{"1", "allgather+grouped-gemm", "grouped-gemm+reducescatter"},
          std::tuple{"2", "alltoall+grouped-gemm", "grouped-gemm+alltoall"}}) {
      const Outcome outcome =
          run("simulate --tp 2 --tokens 64 --layer-ops --machine h200x8 --format json --model " + model +
              " --mechanism sequential,fused --ep " + split);
      ASSERT_EQ(outcome.code, 0) << model << ": " << outcome.err;
      std::map<std::string, std::string> ops;  // by operator of the layer
      for (const json& row : json::parse(outcome.out)) {
        EXPECT_TRUE(row.at("reason").is_null()) << model << ": " << row;
        ops[row.at("layer_op")] = row.at("op");
      }
      EXPECT_EQ(ops["moe_up"], up) << model;
      EXPECT_EQ(ops["moe_down"], down) << model;
      EXPECT_EQ(ops.contains("shared_up"), model == "deepseek-moe-16b" || model == "qwen1.5-moe-a2.7b")
          << model;
    }
}

TEST_F(Cli, RefusesExpertsThatDoNotFit) {
  expect_refused("run --op moe-tp --inner 8 --n 24 --k 16 --experts 5 --world 2", "moe-tp needs --m");
  expect_refused("run --op moe-tp --inner 8 --m 4 --n 24 --k 16 --world 2", "needs --experts");
  expect_refused("run --op moe-tp --inner 8 --m 4 --n 24 --k 16 --experts 3 --topk 4 --world 2", "4");
  for (const std::string flag : {"--experts 4", "--topk 2", "--capacity 8"})
    expect_refused("plan --model mixtral-8x7b --tp 2 --tokens 64 " + flag, "--model excludes --");
  expect_refused("run --a a.npy --b b.npy --op allgather+grouped-gemm --experts 5",
                 "need an operator with one GEMM");
}

TEST_F(Cli, RunsTensorParallelExpertsUnderMpirun) {
  for (const std::string& op : tensor_parallel) {
    const Outcome outcome = mpirun(
        3, "run --format json --repeat 1 --mechanism sequential,chunked,signal --chunks 3 --groups 2,1,1,1 " +
               op);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const json& row : json::parse(outcome.out)) {
      EXPECT_EQ(row.at("backend"), "mpi");
      EXPECT_EQ(row.at("verified"), true) << row;
    }
  }
}

}  // namespace
}  // namespace shingle::cli_experts_test
