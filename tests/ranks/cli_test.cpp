// What the program refuses, and how: exit code 2, one line, nothing written. Also plan, verify and info.
#include "cli_program.hpp"

namespace shingle::cli_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST_F(Cli, HelpAndVersionSucceed) {
  for (const char* arguments : {"--help", "run --help", "plan --help", "verify --help", "info --help"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments;
    EXPECT_THAT(outcome.out, HasSubstr("Usage"));
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_THAT(run("--help").out, HasSubstr("shingle run --model"));
  EXPECT_THAT(run("plan --help").out, HasSubstr("mlp, gemm+allgather+gemm, ulysses-attention"));
  EXPECT_THAT(run("plan --help").out, HasSubstr("Two products: columns"));
  EXPECT_THAT(run("--version").out, HasSubstr("shingle 0."));
}

TEST_F(Cli, RefusesBadUsageInOneLine) {
  expect_refused("", "subcommand");
  expect_refused("fly", "fly");
  expect_refused("run", "--op");
  expect_refused("run --op gemm+allreduce", "--m");
  expect_refused("run --op gemm+allreduce --m 8 --n 8", "--k");
  expect_refused("run --op gemm+sort --m 8 --n 8 --k 8", "gemm+sort");
  expect_refused("run --op gemm " + small + "--wings 2", "--wings");
  const std::string known =
      "'magic' (one of sequential, low-latency, chunked, ring, signal, copy-engine, fused, or ";
  expect_refused("run --op gemm " + small + "--mechanism magic", known + "all, best or auto");
  expect_refused("bench --mechanism magic", known + "auto)");
  expect_refused("run --op gemm " + small + "--dtype f8", "f8");
  expect_refused("run --op gemm " + small + "--epilogue relu,gelu", "more than one activation");
  expect_refused("run --op gemm " + small + "--epilogue tanh", "tanh");
  expect_refused("run --op gemm " + small + "--residual", "norm");
  expect_refused("run --op gemm " + small + "--tile 256", "256");
  expect_refused("run --op gemm " + small + "--groups 1,,2", "--groups");
  expect_refused("run --op gemm " + small + "--link fast", "--link");
  expect_refused("run --op gemm " + small + "--timeout 0s", "--timeout");
  expect_refused("run --op gemm " + small + "--format xml", "xml");
  expect_refused("run --op gemm " + small + "--backend abacus", "abacus");
  expect_refused("run --op gemm " + small + "--repeat 0", "--repeat");
  expect_refused("run --op gemm " + small + "--seed -1", "--seed");
  expect_refused("run --op gemm " + small + "--tokens 8", "--model");
  expect_refused("run --op gemm " + small + "--m 8", "--m");
  expect_refused("run --op gemm+allreduce " + small + "--row-order block-cyclic --row-block 4",
                 "block-cyclic");
  expect_refused("plan --op gemm " + small + "--rank 2", "--rank");
}

TEST_F(Cli, RefusesWhatHasNoEffect) {
  const std::string model = "run --model " SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json --tokens 8 ";
  for (const std::string flag :
       {"--op gemm", "--m 8", "--inner 8", "--heads 7", "--kv-heads 3", "--head-dim 5", "--causal",
        "--returns-lse", "--seq-lens 4,4", "--routing skewed", "--row-order contiguous", "--row-block 4",
        "--transpose-b", "--epilogue bias", "--activation silu", "--norm", "--residual"})
    expect_refused(model + flag, flag.substr(0, flag.find(' ')));
  for (const std::string flag : {"--tokens 8", "--layer-ops", "--mlp"})
    expect_refused("run --op gemm --a x.npy --b y.npy " + flag, "requires --model");

  EXPECT_EQ(run("plan --op gemm --format json --out " + path("plan.json") + " " + small).code, 0);
  const std::string h200 = "--machine " SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json ";
  for (const std::string flag : {"--op gemm", "--m 8", "--seed 1", "--mechanism ring", "--tile 8x8",
                                 "--world 2", "--workers 3", "--link 1GB/s,1us"}) {
    const std::string name = flag.substr(0, flag.find(' '));
    expect_refused("verify " + path("plan.json") + " " + flag, name);
    expect_refused("simulate " + path("plan.json") + " " + h200 + flag, name);
  }
  expect_refused("verify " + path("plan.json") + " " + h200, "--machine");
  expect_refused("plan --op gemm --m 8 --n 8 --k 8 --workers 3 " + h200, "--workers excludes --machine");

  expect_refused("run --op gemm+allreduce --routing skewed " + small, "--routing");
  expect_refused("run --op gemm+alltoall --capacity 4 " + small, "has no experts");
  expect_refused("run --op gemm+reducescatter --row-block 4 " + small, "row_block");
  expect_refused("run --op gemm --activation gelu --epilogue bias,silu " + small, "--activation");
  expect_refused("plan --op gemm --format json --rank 1 " + small, "--rank");
  expect_refused("run --op gemm --format json --timeline " + small, "--timeline");
  expect_refused("simulate --op gemm --format json --timeline " + h200 + small, "--timeline");
  expect_refused("simulate --op gemm --format json --critical-path " + h200 + small, "--critical-path");
}

TEST_F(Cli, RefusesAbsurdSizesAndWorlds) {
  expect_refused("run --op gemm --m 0 --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m -4 --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m 8x --n 8 --k 8", "8x");
  expect_refused("run --op gemm --m 99999999999999999999999 --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m 9999999T --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m 4G --n 8 --k 8", "--m");
  expect_refused("run --op gemm --m 8 --n 8 --k 8 --world 65", "--world: 65 ranks, but at most 64 run");
  expect_refused("run --op gemm --m 8 --n 8 --k 8 --world 0", "--world");
  expect_refused("run --op gemm --m 1G --n 1G --k 1G", "of memory");
  expect_refused("run --op gemm+allreduce --m 2147483647 --n 2147483647 --k 2147483647 --world 64",
                 "of memory");
  expect_refused("run --op gemm+alltoall --m 128M --n 128M --k 8", "");
}

TEST_F(Cli, RefusesBadFiles) {
  expect_refused("run --model nowhere.json --tokens 8 --tp 2", "nowhere.json");
  expect_refused("run --model " + path("") + " --tokens 8 --tp 2", path(""));
  write("broken.json", "{\"hidden_size\": 12,");
  expect_refused("run --model " + path("broken.json") + " --tokens 8 --tp 2", "broken.json");
  expect_refused("verify " + path("broken.json"), "broken.json");
  expect_refused("verify nowhere.json", "nowhere.json");
  write("broken.npy", "this is no array");
  expect_refused(
      "run --op gemm --a " + path("broken.npy") + " --b " + path("broken.npy") + " --out " + path("y.npy"),
      "broken.npy");
  expect_refused("run --op gemm --a nowhere.npy --b nowhere.npy", "nowhere.npy");
  expect_refused("run --op gemm+alltoall " + small + "--routing nowhere.json", "nowhere.json");
  expect_refused("run --op gemm+alltoall " + small + "--routing sideways", "sideways");
  write("routing.json", R"({"dest": [[0, 5], [1]]})");
  expect_refused("run --op gemm+alltoall --n 8 --k 8 --world 2 --routing " + path("routing.json"),
                 "routing.json");
  expect_refused("run --op gemm " + small + "--trace " + path("no/such/folder/t.json"), "--trace");
  EXPECT_FALSE(std::filesystem::exists(path("y.npy")));
}

TEST_F(Cli, RefusesEmptyValues) {
  for (const std::string flag : {"--out", "--html", "--trace", "--svg"})
    expect_refused("run --op gemm " + small + flag + " ''", flag + " is empty; give FILE");
  expect_refused("plan --op gemm " + small + "--out ''", "--out is empty; give FILE or leave it out");
  expect_refused("verify ''", "plan is empty; give FILE");
  expect_refused("plan --op gemm " + small + "--out= --format json",
                 "--out is empty; give FILE or leave it out");
  expect_refused("run --op gemm " + small + "--trace --timeline", "--trace is empty; give FILE");
  expect_refused("plan --op gemm --m --n 8 --k 8", "--m is empty; give");
  EXPECT_FALSE(std::filesystem::exists("--format"));
  const std::string twice = path("twice.html");
  expect_refused("run --op gemm " + small + "--html " + twice + " --trace " + path("./twice.html"),
                 "--trace and --html both write");
  EXPECT_FALSE(std::filesystem::exists(twice));
  EXPECT_EQ(
      run("plan --tokens 16 --layer-ops --model " SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json").code, 0);
}

/// Every command that writes: exit code 1 and one line that names the file.
TEST_F(Cli, AFullDiskIsAFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string gemm = "--op gemm+allreduce " + small;
  const std::string h200 = "--machine " SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json ";
  write("a.json", run("simulate --format json --mechanism sequential " + h200 + gemm).out);
  write("list.json", R"({"computations": [{"name": "p", "m": 64, "n": 64, "k": 64}],
                         "collectives": [{"name": "c", "kind": "allreduce", "bytes": 4096}]})");
  const std::string overlap = "cotune --world 2 " + h200 + "--overlap " + path("list.json");
  for (const std::string& arguments :
       {"run --repeat 1 " + gemm + "--html", "run --repeat 1 " + gemm + "--trace",
        "run --repeat 1 " + gemm + "--svg", "plan " + gemm + "--out", "plan " + gemm + "--trace",
        "simulate " + h200 + gemm + "--html", "simulate " + h200 + gemm + "--svg",
        "bench --iters 1 --mechanism chunked " + gemm + "--out",
        "bench --iters 1 --mechanism chunked " + gemm + "--html",
        "compare " + path("a.json") + " " + path("a.json") + " --html", overlap + " --plan"}) {
    const Outcome outcome = run(arguments + " /dev/full");
    EXPECT_EQ(outcome.code, 1) << arguments << outcome.err;
    EXPECT_EQ(outcome.err, "shingle: /dev/full: No space left on device\n") << arguments;
  }
  for (const std::string& arguments : {"plan --format json " + gemm, "simulate " + h200 + gemm,
                                       "verify " + gemm, "run --repeat 1 " + gemm, std::string("info")}) {
    const std::string command = SHINGLE_TEST_PROGRAM " " + arguments + " 2>" + path("stderr") + " >/dev/full";
    const int status = std::system(command.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << arguments;
    EXPECT_EQ(read_file(path("stderr"), 1 << 20), "shingle: standard output could not be written\n")
        << arguments;
  }
}

TEST_F(Cli, ShowsInfo) {
  const Outcome text = run("info");
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("oneDNN"));
  const json info = json::parse(run("info --format json").out);
  EXPECT_GE(info.at("cores"), 1);
  EXPECT_THAT(info.at("libraries").at("blas").get<std::string>(), HasSubstr("OpenBLAS"));
}

TEST_F(Cli, PlansAndProvesThem) {
  const std::string problem = "--op gemm+reducescatter --mechanism signal " + small;
  EXPECT_THAT(run("plan " + problem).out, HasSubstr("reducescatter"));
  const Outcome written = run("plan --format json --out " + path("plan.json") + " " + problem);
  EXPECT_EQ(written.code, 0);
  EXPECT_EQ(written.out, "");
  const Outcome proven = run("verify " + path("plan.json"));
  EXPECT_EQ(proven.code, 0) << proven.out << proven.err;
  EXPECT_THAT(proven.out, HasSubstr("proven"));
  EXPECT_EQ(run("verify --op gemm+reducescatter --mechanism all " + small).code, 0);

  // A plan that awaits what nobody adds is refuted, with the place.
  std::string text = read_file(path("plan.json"), 1 << 20);
  json plan = json::parse(text);
  for (json& step : plan.at("ranks").at(0).at("lanes").at(1).at("steps"))
    if (step.contains("target")) step["target"] = 1000;
  write("stuck.json", plan.dump());
  if (plan.dump() != json::parse(text).dump()) {
    const Outcome stuck = run("verify " + path("stuck.json"));
    EXPECT_EQ(stuck.code, 1) << stuck.out << stuck.err;
    EXPECT_THAT(stuck.out, HasSubstr("rank"));
  }
  const Outcome none = run("plan --op allgather+gemm --mechanism signal " + small);
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("use chunked"));
}

}  // namespace
}  // namespace shingle::cli_test
