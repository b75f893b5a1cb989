// More ranks than run: they are planned and simulated, by some that stand for all.
#include "cli_program.hpp"

namespace shingle::cli_symmetric_test {
namespace {

const std::string problem = "--op gemm+reducescatter --m 512 --n 96 --k 64 --dtype bf16 --mechanism ring ";
const std::string nodes = "--machine \"" SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json * 16, 8x400Gb/s\" ";

TEST_F(Cli, SimulatesMoreRanksThanRun) {
  const std::string files =
      "--trace " + path("t.json") + " --svg " + path("t.svg") + " --html " + path("t.html");
  const Outcome shown =
      run("simulate " + problem + "--world 128 --timeline --critical-path " + nodes + files);
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, testing::HasSubstr("128 ranks"));
  for (const char* file : {"t.json", "t.svg", "t.html"})
    EXPECT_THAT(read_file(path(file), 1 << 28), testing::HasSubstr("rank 0")) << file;
  // The representatives, and no others.
  EXPECT_THAT(read_file(path("t.svg"), 1 << 28), testing::HasSubstr("rank 7 compute"));
  EXPECT_THAT(read_file(path("t.svg"), 1 << 28), testing::Not(testing::HasSubstr("rank 8 compute")));
}

TEST_F(Cli, SomeRanksTakeTheTimeOfAll) {
  const auto us = [&](const std::string& flags) {
    const Outcome outcome = run("simulate --format json --world 16 " + problem + nodes + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at(0).at("overlapped_us").get<double>();
  };
  EXPECT_DOUBLE_EQ(us(""), us("--symmetric"));
}

TEST_F(Cli, StoresButNeitherProvesNorRunsThem) {
  ASSERT_EQ(run("plan --format json --out " + path("p.json") + " --world 128 " + problem + nodes).code, 0);
  EXPECT_EQ(run("simulate " + path("p.json") + " " + nodes).code, 0);
  const Outcome proof = run("verify " + path("p.json"));
  EXPECT_EQ(proof.code, 1);
  EXPECT_THAT(proof.out, testing::HasSubstr("8 ranks stand for all 128"));
  expect_refused("verify --world 65 " + problem, "--world: 65 ranks, but at most 64 run or are proven");
  expect_refused("simulate --world 128 " + problem, "--world 128: this machine runs at most 64 ranks");
  expect_refused("simulate --world 16385 " + problem + nodes, "--world: 16385 is outside [1, 16384]");
  expect_refused("simulate --world 128 --noise 0.1 " + problem + nodes, "noise makes ranks differ");
  expect_refused("plan --world 128 --svg " + path("p.svg") + " " + problem + nodes,
                 "8 ranks stand for all 128");
  expect_refused("run --symmetric " + problem, "--symmetric");
}

}  // namespace
}  // namespace shingle::cli_symmetric_test
