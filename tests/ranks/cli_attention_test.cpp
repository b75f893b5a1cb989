// shingle run, plan and verify of attention, on threads and under mpirun.
#include "cli_program.hpp"

#include "shingle/api/registry.hpp"

namespace shingle::cli_attention_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string heads = "--m 50 --heads 8 --kv-heads 4 --head-dim 8 --world 2 ";
const std::string ulysses = "--op ulysses-attention " + heads;
const std::string ring_attention =
    "--op allgather+attention --m 50 --heads 6 --kv-heads 3 --head-dim 8 --world 4 ";

TEST_F(Cli, RunsAttention) {
  for (const std::string flags :
       {"", "--causal", "--causal --seq-lens 13,7,30", "--dtype bf16 --slices 1", "--slices 5"}) {
    const json all = rows("--mechanism all " + ulysses + flags);
    ASSERT_EQ(all.size(), planners().size());
    for (const json& row : all) {
      if (row.at("mechanism") == "sequential" || row.at("mechanism") == "ring") {
        EXPECT_EQ(row.at("verified"), true) << flags << " " << row;
        EXPECT_EQ(row.at("n"), 64);
        EXPECT_EQ(row.at("k"), 64);
      } else {
        EXPECT_THAT(row.at("reason").get<std::string>(), HasSubstr("ring"));
      }
    }
  }
  EXPECT_EQ(rows("--op attention+reducescatter --n 20 " + heads)[0].at("verified"), true);
  EXPECT_EQ(rows(ulysses)[0].at("mechanism"), "ring");
  EXPECT_EQ(rows(ulysses + "--mechanism ring --slices 3")[0].at("params").at("slices"), 3);
}

TEST_F(Cli, RunsRingAttention) {
  for (const std::string flags : {"", "--causal --row-order zigzag", "--causal --seq-lens 13,7,30",
                                  "--dtype bf16 --row-order zigzag --slices 3", "--returns-lse --causal"})
    for (const json& row : rows("--mechanism sequential,ring " + ring_attention + flags)) {
      EXPECT_EQ(row.at("verified"), true) << flags << " " << row;
      EXPECT_EQ(row.at("n"), 48);
    }
  EXPECT_THAT(run("run --timeline --repeat 1 --mechanism ring " + ring_attention).out, HasSubstr("merge"));
  expect_refused("run --row-order zigzag " + ulysses, "takes no zigzag rows");
  EXPECT_THAT(run("plan --mechanism ring --returns-lse " + ring_attention).out,
              HasSubstr("log-sum-exp out_lse"));
  expect_refused("run --returns-lse " + ulysses, "does not return the log-sum-exp");
}

TEST_F(Cli, RunsTheBackwardOfRingAttention) {
  const std::string backward =
      "--op attention-backward --m 50 --heads 6 --kv-heads 3 --head-dim 8 --world 4 ";
  for (const std::string flags : {"", "--causal --row-order zigzag", "--causal --seq-lens 13,7,30",
                                  "--dtype bf16 --row-order zigzag --slices 3"})
    for (const json& row : rows("--mechanism sequential,ring " + backward + flags)) {
      EXPECT_EQ(row.at("verified"), true) << flags << " " << row;
      EXPECT_EQ(row.at("n"), 48);
    }
  EXPECT_EQ(rows("--mechanism ring --engines 1 --causal " + backward)[0].at("verified"), true);
  EXPECT_THAT(run("plan --mechanism ring " + backward).out, HasSubstr("attend-backward"));
  EXPECT_EQ(run("verify --mechanism ring --row-order zigzag " + backward).code, 0);
  const Outcome bench =
      run("bench -b 32 -e 32 --kv-heads 2 --heads 4 --head-dim 8 --causal --world 2 "
          "--mechanism sequential,ring --op attention-backward");
  EXPECT_EQ(bench.code, 0) << bench.err;
  const Outcome outcome =
      mpirun(3,
             "run --format json --repeat 1 --mechanism sequential,ring --op attention-backward --m 50 "
             "--heads 4 --kv-heads 2 --head-dim 8 --causal --row-order zigzag");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const json& row : json::parse(outcome.out)) EXPECT_EQ(row.at("verified"), true) << row;
}

TEST_F(Cli, PlansAndProvesAttention) {
  for (const std::string mechanism : {"sequential", "ring --slices 2"})
    for (const std::string& problem : {ulysses, ring_attention + "--causal --row-order zigzag"}) {
      const Outcome plan = run("plan --format json --mechanism " + mechanism + " " + problem);
      ASSERT_EQ(plan.code, 0) << plan.err;
      write("plan.json", plan.out);
      const Outcome proof = run("verify " + path("plan.json"));
      EXPECT_EQ(proof.code, 0) << proof.err;
      EXPECT_THAT(proof.out, HasSubstr("proven"));
    }
  EXPECT_EQ(run("plan --mechanism sequential,ring --svg " + path("p.svg") + " " + ulysses).code, 0);
  EXPECT_THAT(read_file(path("p.svg"), 1 << 26), HasSubstr("</svg>"));
  EXPECT_THAT(run("run --timeline --repeat 1 " + ulysses).out, HasSubstr("attend"));
  EXPECT_EQ(run("verify --mechanism fused " + ulysses).code, 1);
}

TEST_F(Cli, RefusesAttentionThatDoesNotFit) {
  expect_refused("run " + ulysses + "--n 64", "instead of --n and --k");
  expect_refused("run " + ulysses + "--k 64", "instead of --n and --k");
  expect_refused("run " + ulysses + "--norm", "takes no transposes, epilogue or norm");
  expect_refused("run " + ulysses + "--epilogue bias", "takes no transposes, epilogue or norm");
  expect_refused("run " + ulysses + "--transpose-b", "takes no transposes, epilogue or norm");
  expect_refused("run " + ulysses + "--seq-lens 20,20", "40 tokens");
  expect_refused("run --op ulysses-attention --m 8 --heads 6 --kv-heads 3 --head-dim 4 --world 2",
                 "not a multiple of");
  expect_refused("run --op ulysses-attention --m 8 --heads 6", "--head-dim");
  expect_refused("run --op ulysses-attention --m 8 --head-dim 6", "--heads");
  expect_refused("run --op ulysses-attention --heads 4 --head-dim 6", "--m");
  expect_refused("run --op ulysses-attention --a x.npy --b y.npy --out z.npy", "attention");
  expect_refused("run --op gemm " + small + "--heads 4", "no attention");
}

TEST_F(Cli, RunsAttentionUnderMpirun) {
  const Outcome outcome = mpirun(
      3,
      "run --format json --repeat 1 --mechanism sequential,ring --op ulysses-attention --m 50 --heads 12 "
      "--kv-heads 6 --head-dim 8 --causal --seq-lens 20,30 --slices 2");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json all = json::parse(outcome.out);
  ASSERT_EQ(all.size(), 2u);
  for (const json& row : all) {
    EXPECT_EQ(row.at("backend"), "mpi");
    EXPECT_EQ(row.at("verified"), true) << row;
  }
}

}  // namespace
}  // namespace shingle::cli_attention_test
