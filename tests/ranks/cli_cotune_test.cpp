// shingle cotune: configurations for a model's collectives, a list's, a plan to prove and a table for NCCL.
#include "cli_program.hpp"
#include "cotune/tuned_table.hpp"

namespace shingle::cli_cotune_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string source = SHINGLE_TEST_SOURCE_DIR;
const std::string a40 = " --machine " + source + "/machines/a40x8-nvlink.json ";
const std::string phi = "cotune --model " + source + "/models/phi-2.json" + a40;

class CliCotune : public Cli {
 protected:
  std::string list() const {
    const std::string file = path("list.json");
    write_file_atomically(file, R"({"computations": [{"name": "product", "m": 256, "n": 512, "k": 128}],
        "collectives": [{"name": "weights", "kind": "allgather", "bytes": 262144},
                        {"name": "gradients", "kind": "reducescatter", "bytes": 262144, "after": [0]}]})");
    return file;
  }
};

TEST_F(CliCotune, SaysWhatAnIterationGains) {
  const Outcome table = run(phi + "--pattern fsdp --tokens 4K --sequence 2K");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("layer backward"));
  EXPECT_THAT(table.out, HasSubstr("reducescatter"));
  const Outcome outcome = run(phi + "--pattern fsdp --tokens 4K --sequence 2K --exhaustive --format json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json all = json::parse(outcome.out), us = all.at("iteration_us");
  EXPECT_LT(us.at("lagom"), us.at("nccl"));
  EXPECT_LE(us.at("lagom"), us.at("autoccl"));
  EXPECT_GE(us.at("exhaustive").get<double>() / us.at("lagom").get<double>(), 0.97);
  for (const json& pattern : all.at("patterns"))
    for (const json& method : pattern.at("methods"))
      EXPECT_EQ(method.at("configs").size(), pattern.at("overlap").at("collectives").size());
}

TEST_F(CliCotune, WritesAPlanThatIsProvenAndSimulated) {
  const std::string plan = path("plan.json");
  ASSERT_EQ(run("cotune --world 4 --overlap " + list() + a40 + "--plan " + plan).code, 0);
  const Outcome proof = run("verify " + plan);
  EXPECT_EQ(proof.code, 0) << proof.err;
  EXPECT_THAT(proof.out, HasSubstr("overlap of 1 computation and 2 collectives"));
  EXPECT_EQ(run("simulate " + plan + a40).code, 0);
  expect_refused("run " + plan, "has no result to check");
}

/// A workload comes from --overlap, --trace or --model: it is no operator.
TEST_F(CliCotune, IsTheOnlyCommandThatPlansOverlaps) {
  for (const char* const command : {"run", "plan", "verify", "simulate", "tune", "bench"})
    expect_refused(std::string(command) + " --op overlap --m 64 --n 64 --k 64",
                   "--op: unknown operator 'overlap' (one of gemm, gemm+allreduce");
}

/// Plans from before workloads had a type of their own.
TEST_F(CliCotune, ReadsOlderPlans) {
  const std::string older = source + "/tests/data/plans/overlap_k.json";
  const Outcome proof = run("verify " + older);
  EXPECT_EQ(proof.code, 1);
  EXPECT_THAT(proof.out,
              HasSubstr("not proven: chunked plan for overlap of 2 computations and 1 collective"));
  EXPECT_THAT(proof.out, HasSubstr("over K = 32 of epoch 0, row 0, column 0 at its start, but holds C"));
  expect_refused("run " + older, "has no result to check");
  EXPECT_EQ(run("simulate " + older + a40).code, 0);
}

TEST_F(CliCotune, RunsTheOverlapWhereNoMachineIsNamed) {
  const Outcome outcome = run("cotune --world 2 --workers 3 --repeat 2 --format json --overlap " + list());
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json all = json::parse(outcome.out);
  EXPECT_EQ(all.at("source"), "measured");
  EXPECT_GT(all.at("iteration_us").at("lagom"), 0);
  const Outcome processes = mpirun(2, "cotune --repeat 1 --overlap " + list());
  EXPECT_EQ(processes.code, 0) << processes.err;
  EXPECT_THAT(processes.out, HasSubstr("measured on 2 ranks, host"));
}

TEST_F(CliCotune, WritesATableForNccl) {
  const std::string file = path("tuned.json");
  const Outcome outcome = run(phi + "--pattern tp --tokens 16K --table " + file);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const TunedTable table = read_tuned_table(file);
  ASSERT_EQ(table.entries.size(), 1) << "four all-reduces of one size";
  EXPECT_EQ(table.entries[0].key.collective, NcclCollective::allreduce);
  EXPECT_EQ(table.entries[0].key.ranks, 8);
  EXPECT_GT(table.entries[0].config.channels, 0);
  EXPECT_LE(table.entries[0].iteration_us, table.entries[0].default_us);
  EXPECT_THAT(outcome.out, HasSubstr(file + ": 1 entry\n"));
}

/// The product is over before any all-gather: no configuration hides it.
TEST_F(CliCotune, SaysThatNcclsChoiceStandsWhereTheTableIsEmpty) {
  const std::string file = path("tuned.json"), list = path("exposed.json");
  write_file_atomically(list, R"({"computations": [{"name": "product", "m": 64, "n": 64, "k": 64}],
      "collectives": [{"name": "weights", "kind": "allgather", "bytes": 1073741824},
                      {"name": "tokens", "kind": "alltoall", "bytes": 1048576}]})");
  const std::string what = "cotune --overlap " + list + a40 + "--table " + file;
  const Outcome outcome = run(what);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(file + ": no entries: NCCL's choice stands for "));
  EXPECT_TRUE(read_tuned_table(file).entries.empty());
  EXPECT_THAT(read_tuned_table(file).why,
              AllOf(HasSubstr("configurations was faster"), HasSubstr("all-to-alls (1) are left out")));
  EXPECT_THAT(json::parse(run(what + " --format json").out).at("table"), HasSubstr("NCCL's choice stands"));
}

/// NCCL asks no tuner about all-to-alls: that is known before anything is searched.
TEST_F(CliCotune, RefusesATableOfWhatNcclDoesNotAsk) {
  const std::string file = path("tuned.json");
  const Outcome outcome = run("cotune --model " + source +
                              "/models/olmoe-1b-7b.json --pattern ep --tokens 4K" + a40 + "--table " + file);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("8 collectives are all-to-alls, for which NCCL calls no tuner"));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(CliCotune, TunesAnIterationThatRan) {
  const std::string trace = source + "/tests/data/torch_trace.json", again = path("again.json"),
                    table = path("tuned.json");
  const Outcome outcome =
      run("cotune --trace " + trace + a40 + "--format json --list " + again + " --table " + table);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("ProfilerStep#4: "));
  EXPECT_THAT(outcome.err, HasSubstr("6 are products, and 4 collectives of 4 ranks"));
  const json all = json::parse(outcome.out), pattern = all.at("patterns").at(0);
  EXPECT_EQ(pattern.at("world"), 4);
  EXPECT_EQ(pattern.at("dtype"), "bf16");
  EXPECT_LE(all.at("iteration_us").at("lagom"), all.at("iteration_us").at("nccl"));
  EXPECT_EQ(pattern.at("methods").at(2).at("configs").at(0), pattern.at("methods").at(2).at("configs").at(1))
      << "two all-gathers of one size";
  EXPECT_EQ(json::parse(read_file(again, 1 << 20)), pattern.at("overlap"));
  for (const TunedEntry& entry : read_tuned_table(table).entries) EXPECT_EQ(entry.key.ranks, 4);
  const Outcome replayed = run("cotune --world 4 --overlap " + again + a40);
  EXPECT_EQ(replayed.code, 0) << replayed.err;
}

TEST_F(CliCotune, RefusesTracesThatDoNotFit) {
  const std::string trace = "cotune --trace " + source + "/tests/data/torch_trace.json";
  expect_refused(trace + a40 + "--step 9", "torch_trace.json: the trace has no ProfilerStep#9");
  expect_refused(trace + a40 + "--world 8", "torch_trace.json: no collectives of 8 ranks in ProfilerStep#4");
  expect_refused(trace + a40 + "--tokens 4K", "--tokens and --sequence need --model");
  expect_refused(trace + a40 + "--overlap " + list(), "no overlap: give --model");
  expect_refused("cotune --overlap " + list() + a40 + "--list " + path("again.json"), "--list need --trace");
  expect_refused("cotune --trace nowhere.json" + a40, "nowhere.json");
}

TEST_F(CliCotune, RefusesWhatDoesNotFit) {
  expect_refused("cotune --link 1GB/s --overlap " + list() + a40, "--link excludes --machine");
  expect_refused("cotune" + a40, "--model with --pattern");
  expect_refused(phi + "--tokens 4K", "--pattern");
  expect_refused(phi + "--pattern dp --tokens 4K", "--pattern: unknown pattern 'dp'");
  expect_refused(phi + "--pattern ep --tokens 4K", "experts");
  expect_refused(phi + "--pattern fsdp --tokens 4K --plan " + path("plan.json"), "--plan");
  expect_refused("cotune --tokens 4K --overlap " + list() + a40, "need --model");
  expect_refused("cotune --overlap " + path("none.json") + a40, "none.json");
}

}  // namespace
}  // namespace shingle::cli_cotune_test
