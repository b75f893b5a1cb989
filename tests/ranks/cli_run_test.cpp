// shingle run, on threads and under mpirun: rows with the keys of the manual, and what the flags do.
#include "cli_program.hpp"

#include <functional>
#include <set>

#include "shingle/api/registry.hpp"

namespace shingle::cli_run_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST_F(Cli, PrintsRowsWithTheKeysOfTheManual) {
  const json all = rows("--op gemm+allreduce --mechanism all " + small);
  ASSERT_EQ(all.size(), planners().size());
  const std::set<std::string> keys{"op",
                                   "m",
                                   "n",
                                   "k",
                                   "world",
                                   "dtype",
                                   "backend",
                                   "machine",
                                   "mechanism",
                                   "params",
                                   "params_note",
                                   "source",
                                   "sequential_us",
                                   "overlapped_us",
                                   "spread",
                                   "rounds",
                                   "speedup",
                                   "overlap_efficiency",
                                   "max_error",
                                   "tolerance",
                                   "verified",
                                   "noise",
                                   "reason"};
  for (const json& row : all) {
    std::set<std::string> found;
    for (const auto& [key, value] : row.items()) found.insert(key);
    EXPECT_EQ(found, keys);
    EXPECT_EQ(row.at("op"), "gemm+allreduce");
    EXPECT_EQ(row.at("m"), 96);
    EXPECT_EQ(row.at("world"), 2);
    EXPECT_EQ(row.at("dtype"), "f32");
    EXPECT_EQ(row.at("backend"), "host");
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_TRUE(row.at("reason").is_null());
    EXPECT_LE(row.at("max_error").get<double>(), row.at("tolerance").get<double>());
    EXPECT_NEAR(row.at("speedup").get<double>(),
                row.at("sequential_us").get<double>() / row.at("overlapped_us").get<double>(), 1e-9);
  }
  EXPECT_EQ(all[1].at("mechanism"), "low-latency");
  EXPECT_EQ(all[3].at("mechanism"), "ring");
  EXPECT_EQ(all[4].at("mechanism"), "signal");
}

TEST_F(Cli, RoutesTokensOnTheDevice) {
  const std::string sizes = "--experts 8 --topk 2 --m 60 --n 24 --k 20 --inner 16 --world 2 ";
  for (const std::string op : {"moe", "alltoall+grouped-gemm", "grouped-gemm+alltoall"})
    for (const std::string routing : {"random", "skewed", "all-to-one", "balanced", "empty-rank"})
      for (const json& row :
           rows("--mechanism sequential,chunked,signal,fused --capacity 20 --routing " + routing + " --op " +
                op + " " + (op == "moe" ? sizes : sizes.substr(0, sizes.find("--inner")) + "--world 2 ")))
        EXPECT_EQ(row.at("verified"), true) << op << " " << routing;
  // All 60 tokens of each rank choose one expert, which has 20 slots for each rank.
  const json full = rows("--op moe --mechanism fused --capacity 20 --routing all-to-one " + sizes)[0];
  EXPECT_GE(full.at("dropped").get<int>(), 2 * 40);
  EXPECT_EQ(rows("--op moe --mechanism fused --capacity 60 --routing all-to-one " + sizes)[0].at("dropped"),
            0);
  EXPECT_FALSE(rows("--op moe --mechanism fused --routing all-to-one " + sizes)[0].contains("dropped"));
  const Outcome text =
      run("run --repeat 1 --op moe --mechanism fused --capacity 20 --routing all-to-one " + sizes);
  EXPECT_THAT(text.out, testing::ContainsRegex(
                            "dropped +moe: [0-9]+ of 240 choices found no slot \\(--capacity 20\\)"));
  const json ring = rows("--op moe --mechanism ring --capacity 20 " + sizes, 1)[0];
  EXPECT_THAT(ring.at("reason").get<std::string>(), HasSubstr("ring does not plan grouped products"));
}

/// The indented lines of the README that call the program; a backslash continues a line.
std::vector<std::string> commands_of_the_readme() {
  const std::string program = "\n    build/host/bin/shingle ";
  std::string text = read_file(SHINGLE_TEST_SOURCE_DIR "/README.md", 1 << 20);
  for (std::size_t at; (at = text.find("\\\n")) != std::string::npos;) text.replace(at, 2, " ");
  std::vector<std::string> commands;
  for (std::size_t at = 0; (at = text.find(program, at)) != std::string::npos;) {
    at += program.size();
    commands.push_back(text.substr(at, text.find('\n', at) - at));
  }
  return commands;
}

TEST_F(Cli, RunsTheCommandsOfTheReadme) {
  const std::vector<std::string> commands = commands_of_the_readme();
  ASSERT_FALSE(commands.empty());
  for (const std::string& command : commands) {
    const Outcome outcome = run(command + (command.starts_with("run ") ? " --repeat 1" : ""));
    EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("sequential")) << command;
  }
}

TEST_F(Cli, SaysHowItsLinkIsPaced) {
  const std::string gemm = "run --repeat 1 --op gemm " + small;
  EXPECT_THAT(run(gemm + "--link 10us").out, HasSubstr("link 10 us latency, rate not paced\n"));
  EXPECT_THAT(run(gemm + "--link 2GB/s,10us").out, HasSubstr("link 2 GB/s, 10 us\n"));
  EXPECT_THAT(run(gemm).out, HasSubstr("link not paced\n"));
}

TEST_F(Cli, RunsWhatTheFlagsSay) {
  EXPECT_EQ(rows("--op gemm --mechanism sequential " + small)[0].at("verified"), true);
  const json tiled = rows(
      "--op gemm+allreduce --mechanism signal --tile 32x16 --groups 3,7,8 --raster m --swizzle 2 --rotation "
      "1 --workers 1 " +
      small);
  EXPECT_EQ(tiled[0].at("params").at("groups"), "3,7,8");  // 15 tiles, and 3 phantoms of the swizzle
  EXPECT_EQ(tiled[0].at("params").at("tile"), "32x16");
  EXPECT_EQ(
      rows("--op gemm+reducescatter --mechanism chunked --chunks 3 " + small)[0].at("params").at("chunks"),
      3);
  EXPECT_EQ(rows("--op allgather+gemm " + small)[0].at("mechanism"), "fused");
  EXPECT_EQ(rows("--op gemm+allreduce --mechanism ring --slices 3 " + small)[0].at("params").at("slices"), 3);
  const json shards =
      rows("--op allgather+gemm --mechanism fused --comm-rows 20 --pull --mover store " + small);
  EXPECT_EQ(shards[0].at("params").at("comm-rows"), 20);
  EXPECT_EQ(shards[0].at("params").at("pull"), true);
  EXPECT_EQ(shards[0].at("params").at("mover"), "store");
  EXPECT_EQ(rows("--op allgather+gemm --mechanism fused --comm-order reverse " + small)[0].at("params").at(
                "comm-order"),
            "reverse");
  const json sums =
      rows("--op gemm+allreduce --mechanism fused --helpers 1 --stage-fp32 --one-shot --workers 2 " + small);
  EXPECT_EQ(sums[0].at("params").at("helpers"), 1);
  EXPECT_EQ(sums[0].at("params").at("stage-fp32"), true);
  EXPECT_EQ(sums[0].at("params").at("one-shot"), true);
  for (const std::string routing : {"random", "skewed", "all-to-one", "balanced", "empty-rank"})
    EXPECT_EQ(rows("--op gemm+alltoall --routing " + routing + " " + small)[0].at("verified"), true)
        << routing;
  for (const std::string flags :
       {"--dtype bf16 --epilogue bias,gelu --transpose-b", "--dtype f16 --norm --residual",
        "--transpose-a --epilogue swiglu", "--row-order block-cyclic --row-block 8 --seed 99"})
    for (const json& row : rows("--op gemm+reducescatter --mechanism all " + flags + " " + small))
      if (row.at("reason").is_null())
        EXPECT_EQ(row.at("verified"), true) << flags << ", " << row.at("mechanism");
      else
        EXPECT_THAT(row.at("mechanism"), testing::AnyOf("fused", "copy-engine", "low-latency"))
            << row.at("reason");
}

TEST_F(Cli, RunsAnMlpByEveryMechanismThatServes) {
  const std::string sizes = "--op mlp --inner 48 " + small;
  for (const std::string flags : {"--activation swiglu", "--epilogue bias,gelu --transpose-b --dtype bf16",
                                  "--activation relu --norm --residual --dtype f16"})
    for (const json& row : rows(sizes + "--mechanism all " + flags)) {
      EXPECT_EQ(row.at("inner"), 48);
      if (row.at("mechanism") == "signal" || row.at("mechanism") == "copy-engine" ||
          row.at("mechanism") == "low-latency")
        EXPECT_THAT(row.at("reason").get<std::string>(), HasSubstr("use ring or fused"));
      else
        EXPECT_EQ(row.at("verified"), true) << row;
    }
  EXPECT_EQ(run("verify " + sizes + "--mechanism ring --slices 3").code, 0);
  const Outcome plan = run("plan --format json --activation silu " + sizes);
  EXPECT_EQ(plan.code, 0);
  write("mlp.json", plan.out);
  EXPECT_EQ(run("verify " + path("mlp.json")).code, 0);
  expect_refused("run --op mlp " + small, "needs --inner");
  expect_refused("run --op gemm --inner 3 " + small, "at most one GEMM");
  expect_refused("run --transpose-a " + sizes, "transpose_a");
  expect_refused("run --op mlp --a x.npy --b y.npy", "mlp has two");
  const std::string model = "--model " SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json --tp 4 --tokens 16 ";
  EXPECT_EQ(rows(model + "--mlp --layer-ops=ffn --mechanism ring")[0].at("op"), "mlp");
  expect_refused("run --mlp " + sizes, "requires --model");
}

TEST_F(Cli, RunsAProducerAGatherAndAConsumer) {
  const std::string sizes = "--op gemm+allgather+gemm --inner 40 --activation gelu " + small;
  std::vector<std::string> served;
  for (const json& row : rows(sizes + "--mechanism all"))
    if (row.at("reason").is_null()) {
      served.push_back(row.at("mechanism"));
      EXPECT_EQ(row.at("verified"), true) << row;
    } else {
      EXPECT_THAT(row.at("reason").get<std::string>(), HasSubstr("use chunked or copy-engine"));
    }
  EXPECT_THAT(served, testing::ElementsAre("sequential", "chunked", "copy-engine"));
  for (const std::string trigger : {"host", "direct"})
    for (const std::string variant : {"pcpy", "bcst", "b2b", "ring"})
      EXPECT_EQ(rows(sizes + "--mechanism copy-engine --prelaunch --trigger " + trigger + " --variant " +
                     variant)[0]
                    .at("verified"),
                true);
}

TEST_F(Cli, SaysWhoWaitedForWhomWhenADeadlinePasses) {
  const Outcome outcome = run("run --op gemm+allreduce --timeout 1us " + small);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, testing::MatchesRegex("shingle: rank [01], lane .*\n"));
}

TEST_F(Cli, ReadsARoutingFile) {
  write("routing.json", R"({"dest": [[0, 1, 1], [1], []]})");
  const json row = rows("--op gemm+alltoall --n 16 --k 8 --world 3 --routing " + path("routing.json"))[0];
  EXPECT_EQ(row.at("m"), 3);
  EXPECT_EQ(row.at("verified"), true);
}

TEST_F(Cli, RunsCollectivesAlone) {
  const std::string sizes = "--m 36 --n 20 --world 3 ";
  for (const std::string op : {"allgather", "reducescatter", "allreduce", "alltoall --routing balanced"})
    for (const json& row : rows("--op " + op + " --mechanism sequential,copy-engine " + sizes)) {
      EXPECT_EQ(row.at("verified"), true) << row;
      EXPECT_TRUE(row.at("overlap_efficiency").is_null()) << "there is no computation";
    }
  const json bcst = rows(
      "--op allgather --mechanism copy-engine --variant bcst --prelaunch --poll rank --engines 1 --launchers "
      "2 "
      "--engine control=1us,schedule=2us,copy=3us,sync=2us,rate=60GB/s " +
      sizes)[0];
  EXPECT_EQ(bcst.at("verified"), true);
  const json wanted{
      {"variant", "bcst"}, {"prelaunch", true}, {"poll", "rank"}, {"engines", 1}, {"launchers", 2}};
  for (const auto& [key, value] : wanted.items()) EXPECT_EQ(bcst.at("params").at(key), value) << key;
  const json direct =
      rows("--op gemm+reducescatter --mechanism copy-engine --variant swap --trigger direct " + small)[0];
  EXPECT_EQ(direct.at("verified"), true);
  EXPECT_EQ(direct.at("params").at("trigger"), "direct");
  EXPECT_THAT(run("run --op allgather --variant bcst --repeat 1 " + sizes).out, HasSubstr("36×20"));
  expect_refused("run --op allgather --m 8 --n 8 --k 8", "leave out --k");
  expect_refused("run --op allgather --m 8", "--n");
  expect_refused("run --op allgather --m 8 --n 8 --epilogue relu", "no GEMM");
  expect_refused("run --op allgather --m 8 --n 8 --variant fast", "pcpy");
  expect_refused("run --op allgather --m 8 --n 8 --engine speed=2us", "phase");
  expect_refused("run --op allgather --m 8 --n 8 --engine rate=2us", "rate");
  expect_refused("run --op alltoall --n 8", "--m");
}

TEST_F(Cli, PlansForTheMachineOfAProfile) {
  const std::string h200 = " --machine " SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json ";
  const Outcome plan =
      run("plan --steps --op gemm+allreduce --mechanism signal --m 2K --n 2K --k 512 --world 8" + h200);
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("tile=128x256"));
  EXPECT_THAT(plan.out, HasSubstr("132 workers"));
  EXPECT_EQ(run("verify --op gemm+allreduce --mechanism signal " + small + h200).code, 0);
  expect_refused("plan --op gemm --m 8 --n 8 --k 8 --world 16" + h200, "8 ranks");
  expect_refused("plan --op gemm --m 8 --n 8 --k 8 --machine " + path("none.json"), "none.json");
  expect_refused("plan --op gemm --m 8 --n 8 --k 8 --machine none", "no machine 'none'");
  const std::string nodes = " --machine '" SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json * 2, 8x400Gb/s'";
  EXPECT_EQ(run("plan --op gemm --m 8 --n 8 --k 8 --world 16" + nodes).code, 0);
}

TEST_F(Cli, RunsAPlanFromAFile) {
  const std::string file = path("plan.json");
  for (const std::string plan : {"--op gemm+allreduce --mechanism chunked --chunks 3",
                                 "--op gemm+alltoall --mechanism signal --routing skewed --seed 5",
                                 "--op gemm+reducescatter --mechanism sequential"}) {
    ASSERT_EQ(run("plan --format json --out " + file + " " + plan + " " + small).code, 0);
    const json all = rows(file + " --seed 3 --link 2GB/s,10us --workers 1");
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].at("verified"), true) << plan;
    EXPECT_EQ(all[0].at("params"), json::parse(read_file(file, 1 << 26)).value("params", json::object()))
        << "as it is";
    EXPECT_EQ(all[0].at("m"), 96);
  }
  for (const std::string flag : {"--op gemm", "--m 8", "--mechanism ring", "--tile 8x8", "--world 2",
                                 "--dtype bf16", "--a x.npy", "--machine h200x8", "--model x.json"})
    expect_refused("run " + file + " " + flag, flag.substr(0, flag.find(' ')));
  expect_refused("run " + path("none.json"), "none.json");

  // What is run is the file's plan, and only once it is proven.
  json plan = json::parse(read_file(file, 1 << 26));
  const std::function<bool(json&)> forget = [&](json& at) {
    if (at.is_object() && at.contains("target") && at["target"] == 1) return at["target"] = 0, true;
    return at.is_structured() && std::ranges::any_of(at, forget);
  };
  ASSERT_TRUE(forget(plan.at("ranks")));
  write("racy.json", plan.dump());
  const Outcome unproven = run("run " + path("racy.json"));
  EXPECT_EQ(unproven.code, 1);
  EXPECT_EQ(unproven.out, "");
  EXPECT_THAT(unproven.err, HasSubstr("racy.json is not proven, so it is not run: "));
}

TEST_F(Cli, ExplainsTableAndTimeline) {
  const Outcome outcome = run("run --op gemm+allreduce --repeat 3 --timeline " + small);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::ContainsRegex("overlapped +spread +speedup"));
  EXPECT_THAT(outcome.out, HasSubstr("median of 3 rounds"));
  EXPECT_THAT(outcome.out, HasSubstr("\n  .        waiting"));
}

TEST_F(Cli, TellsWhyAMechanismCannotServe) {
  const json none = rows("--op allgather+gemm --mechanism signal " + small, 1);
  EXPECT_TRUE(none[0].at("sequential_us").is_null());
  EXPECT_EQ(none[0].at("verified"), false);
  EXPECT_THAT(none[0].at("reason").get<std::string>(), HasSubstr("chunked"));
  const json some = rows("--op allgather+gemm --mechanism all " + small);
  EXPECT_EQ(some.size(), planners().size());
  const Outcome outcome = run("run --op allgather+gemm --mechanism signal --repeat 1 " + small);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("use chunked"));
}

TEST_F(Cli, RunsALayerOfAModel) {
  const std::string model =
      "--model " SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json --tp 4 --tokens 16 --layer-ops";
  const Outcome table = run("run --repeat 1 " + model);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("attn_out"));
  EXPECT_THAT(table.out, HasSubstr("speedup"));
  EXPECT_EQ(rows(model + "=ffn_down").size(), 1u);
  expect_refused("run " + model + "=nose", "nose");
  expect_refused(
      "run --model " SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json --tp 3 --tokens 16 --layer-ops", "");
}

TEST_F(Cli, WritesTracesAndPictures) {
  const std::string files = "--trace " + path("t.json") + " --svg " + path("t.svg") + " ";
  EXPECT_EQ(run("run --repeat 1 --op gemm+allreduce " + files + small).code, 0);
  EXPECT_GT(json::parse(read_file(path("t.json"), 1 << 26)).at("traceEvents").size(), 4u);
  EXPECT_THAT(read_file(path("t.svg"), 1 << 26), HasSubstr("</svg>"));
  EXPECT_EQ(run("plan --op gemm+allreduce " + files + small).code, 0);
  EXPECT_GT(json::parse(read_file(path("t.json"), 1 << 26)).at("traceEvents").size(), 4u);
}

TEST_F(Cli, RunsUnderMpirun) {
  const Outcome outcome =
      mpirun(3, "run --format json --repeat 1 --mechanism all --op gemm+reducescatter --m 90 --n 40 --k 32");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json all = json::parse(outcome.out);  // of rank 0 alone
  ASSERT_EQ(all.size(), planners().size());
  for (const json& row : all) {
    EXPECT_EQ(row.at("world"), 3);
    EXPECT_EQ(row.at("backend"), "mpi");
    if (row.at("mechanism") == "fused" || row.at("mechanism") == "low-latency" ||
        row.at("mechanism") == "copy-engine") {  // processes have no memory in common
      EXPECT_THAT(row.at("reason").get<std::string>(), HasSubstr("is not accessible here"));
      continue;
    }
    EXPECT_EQ(row.at("verified"), true) << row;
  }
  const Outcome mlp = mpirun(3,
                             "run --format json --repeat 1 --mechanism sequential,chunked,ring --op mlp --m "
                             "91 --n 40 --k 32 --inner 24");
  ASSERT_EQ(mlp.code, 0) << mlp.err;
  for (const json& row : json::parse(mlp.out)) EXPECT_EQ(row.at("verified"), true) << row;
  EXPECT_EQ(mpirun(2, "run --op gemm --m 8 --n 8 --k 8 --world 5").code, 2);
}

}  // namespace
}  // namespace shingle::cli_run_test
