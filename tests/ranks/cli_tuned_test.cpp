// What is kept is used: results of `tune` by --mechanism auto, a kept profile by --mechanism signal; and what
// cannot be kept costs a line.
#include "api/own_profile.hpp"
#include "cli_program.hpp"
#include "shingle/machine/profile.hpp"
#include "support/variable.hpp"

namespace shingle::cli_tuned_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string problem = "--op gemm+reducescatter --m 512 --n 512 --k 64 --world 2 ";

class CliTuned : public Cli {
 protected:
  std::string kept_in(const std::string& folder) const { return "env XDG_CACHE_HOME=" + path(folder); }

  /// A profile of threads, one each, as if this machine had been measured. Processes have no peer memory.
  std::string profile(bool peer_memory = true) const {
    Machine machine = machine_of(2, {.backend = "host", .workers_per_rank = 1});
    machine.name = "mine";
    machine.peer_memory = peer_memory;
    machine.link = {1, 10};
    machine.tiles = {{64, 128, 10, 1}};
    machine.memory_gbps = 10;
    for (const char* of : {"workers", "tile", "link", "tiles", "memory_gbps", "peer_memory", "ranks",
                           "collective_workers", "topology"})
      machine.sources.push_back({of, Origin::assumed, "of a test"});
    write_file_atomically(path("mine.json"), to_json(machine));
    return path("mine.json");
  }

  /// Tunes the problem, then has it that chunked with three chunks was measured to be fastest.
  void tune(const std::string& folder, const std::string& machine) const {
    const Outcome tuned = run("tune " + problem + machine, kept_in(folder));
    ASSERT_EQ(tuned.code, 0) << tuned.err;
    const std::string line = tuned.out.substr(tuned.out.find("kept in ") + 8);
    const std::string file = line.substr(0, line.find('\n'));
    json cache = json::parse(read_file(file, 1 << 20));
    for (json& entry : cache.at("entries"))
      if (entry.at("mechanism") == "chunked") {
        entry["params"] = {{"chunks", 3}};
        entry["measured_us"] = 1.0;
      }
    write_file_atomically(file, cache.dump());
  }

  void expect_tuned(const json& row) const {
    EXPECT_EQ(row.at("mechanism"), "chunked");
    EXPECT_EQ(row.at("params").at("chunks"), 3);
    EXPECT_THAT(row.at("choice").at("reason"), HasSubstr("its params were tuned before"));
  }
};

TEST_F(CliTuned, AutoTakesWhatTuneFound) {
  const std::string mine = "--workers 1 --mechanism auto --machine " + profile();
  tune("cache", "--workers 1 --machine " + profile());
  const Outcome ran = run("run --format json --repeat 1 " + problem + mine, kept_in("cache"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  expect_tuned(json::parse(ran.out)[0]);
  const std::string there = problem + "--mechanism auto --machine " + profile();
  expect_tuned(json::parse(run("simulate --format json " + there, kept_in("cache")).out)[0]);
  expect_tuned(json::parse(run("plan --format json " + there, kept_in("cache")).out)[0]);
  EXPECT_THAT(run("plan --steps " + there, kept_in("cache")).out, HasSubstr("chunked chunks=3"));
  EXPECT_THAT(run("verify " + there, kept_in("cache")).out, HasSubstr("proven: chunked plan"));
  const Outcome without = run("simulate --format json " + there, kept_in("other"));
  EXPECT_THAT(without.out, Not(HasSubstr("tuned before")));
  EXPECT_FALSE(std::filesystem::exists(path("other"))) << "only `tune` keeps what is found";
}

/// Processes have no peer memory, which h200x8 has.
TEST_F(CliTuned, AutoKeepsToWhatRunsHere) {
  const std::string arguments =
      "run --format json --repeat 1 --workers 1 --op gemm+allreduce --m 64 --n 4K --k 512 --mechanism auto "
      "--machine h200x8";
  EXPECT_EQ(json::parse(run(arguments + " --world 2").out)[0].at("mechanism"), "low-latency");
  const Outcome launched = run(arguments, SHINGLE_TEST_MPIEXEC " --oversubscribe -n 2");
  ASSERT_EQ(launched.code, 0) << launched.err;
  EXPECT_EQ(json::parse(launched.out)[0].at("verified"), true);
}

/// Each process may have kept other results, on a host of its own: rank 0's choice is everyone's.
TEST_F(CliTuned, ProcessesTakeTheFirstOnesChoice) {
  tune("first", "--machine " + profile(false));
  const std::string arguments =
      "run --format json --repeat 1 --workers 1 --op gemm+reducescatter --m 512 --n 512 --k 64 --mechanism "
      "auto "
      "--machine " +
      profile(false);
  for (const bool first : {true, false}) {
    const std::string one = kept_in(first ? "first" : "none"), other = kept_in(first ? "none" : "first");
    const Outcome outcome = run(arguments, SHINGLE_TEST_MPIEXEC " --oversubscribe -n 1 " + one +
                                               " " SHINGLE_TEST_PROGRAM " " + arguments + " : -n 1 " + other);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json row = json::parse(outcome.out)[0];
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_EQ(row.at("params") == json({{"chunks", 3}}), first) << row;
  }
}

TEST_F(CliTuned, SignalIsSearchedByAKeptProfile) {
  const std::string what = "run --repeat 1 --workers 1 --mechanism signal --tile 64x128 " + problem;
  const Outcome plain = run(what, kept_in("cache"));
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out,
              HasSubstr("signal: equal groups: this machine has no profile; `shingle profile --keep` "
                        "measures one"));
  const Outcome launched = run(what, SHINGLE_TEST_MPIEXEC " --oversubscribe -n 2");
  EXPECT_EQ(launched.code, 0) << launched.err;
  EXPECT_THAT(launched.out, HasSubstr("signal: equal groups: no profile; give one with --machine"));
  const WorldOptions here{.backend = "host", .workers_per_rank = 1};
  std::string kept;
  {
    const test::Variable cache("XDG_CACHE_HOME", path("cache"));
    kept = own_profile_path(2, here);
    keep_own_profile(read_machine(profile()), kept);
    EXPECT_EQ(own_profile(2, here)->path, kept);
  }

  const std::string by = "signal: groups of waves searched by this machine's profile, " + kept;
  EXPECT_THAT(run(what, kept_in("cache")).out, HasSubstr(by));
  EXPECT_THAT(run(what + "--machine " + kept, kept_in("none")).out, HasSubstr("searched by mine"));
  EXPECT_THAT(run(what + "--groups equal", kept_in("cache")).out, Not(HasSubstr("searched")));
  const Outcome bench = run(
      "bench --iters 2 --warmup 1 --workers 1 --mechanism signal:tile=64x128 " + problem, kept_in("cache"));
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("searched by this machine's profile"));
  EXPECT_THAT(run("verify --workers 1 --mechanism signal " + problem, kept_in("cache")).out,
              HasSubstr("proven"));
  write_file_atomically(kept, "{}");
  const Outcome broken = run(what, kept_in("cache"));
  EXPECT_EQ(broken.code, 0);
  EXPECT_THAT(broken.err, HasSubstr("(ignored)"));
}

TEST_F(CliTuned, AProfileOfAnotherMachineIsRefused) {
  expect_refused("run " + problem + "--workers 1 --mechanism signal --machine h200x8",
                 "h200x8 has 132 workers, a rank here 1");
  expect_refused("run " + problem + "--workers 1 --mechanism chunked --machine h200x8",
                 "--mechanism auto or signal");
}

/// Said before anything is measured.
TEST_F(CliTuned, AFolderThatCannotBeWrittenCostsALine) {
  const Outcome tuned = run("tune --machine h200x8 --cache /dev/null/x " + problem);
  EXPECT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_THAT(tuned.err, HasSubstr("shingle: /dev/null/x: Not a directory; results are not kept\n"));
  EXPECT_THAT(tuned.out, HasSubstr("\nnot kept\n"));
  const Outcome measured =
      run("run --workers 1 --mechanism auto " + problem, "env XDG_CACHE_HOME=/dev/null/x timeout 2");
  EXPECT_TRUE(
      measured.err.starts_with("shingle: /dev/null/x/shingle: Not a directory; results are not "
                               "kept\nmeasuring this machine"))
      << measured.err;
  EXPECT_THAT(measured.err, testing::ContainsRegex("\n +[0-9]+\\.[0-9] s  steps and signals\n"))
      << "progress, as of `shingle profile`";
}

TEST_F(CliTuned, ParamsThatNoMechanismTakesAreRefused) {
  expect_refused("plan " + problem + "--mechanism ring --groups 1,2",
                 "ring takes no --groups; its params are --");
  expect_refused("run " + problem + "--mechanism ring,chunked --groups 1,2",
                 "none of ring, chunked takes it");
  expect_refused("verify " + problem + "--mechanism sequential --chunks 2", "sequential takes no --chunks");
  expect_refused("run " + problem + "--chunks 2 --slices 2", "no mechanism takes all");
  const Outcome both = run("plan " + problem + "--mechanism ring,chunked --chunks 3 --slices 2");
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("chunks=3"));
  // Of what is automatic some take it: that the chosen one does not is said.
  const std::string automatic =
      "plan --machine h200x8 --op gemm+allreduce --m 8K --n 8K --k 4K --world 2 --dtype "
      "bf16 --mechanism auto ";
  EXPECT_THAT(run(automatic + "--chunks 3").out, HasSubstr("; fused takes no --chunks"));
}

}  // namespace
}  // namespace shingle::cli_tuned_test
