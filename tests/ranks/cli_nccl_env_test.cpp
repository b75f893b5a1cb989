// shingle tune --nccl-env: what a shell makes of what is printed.
#include "cli_program.hpp"
#include "cotune/tuned_table.hpp"

namespace shingle::cli_nccl_env_test {
namespace {

class CliNcclEnv : public Cli {
 protected:
  /// What a program started by a shell that has evaluated the lines finds in its environment.
  std::string value(const std::string& table, const std::string& name, const std::string& flags = "") const {
    write("ask.sh", "eval \"$(" SHINGLE_TEST_PROGRAM " tune --nccl-env \"$1\" " + flags + ")\"; printenv " +
                        name + " || echo unset");
    const std::string command = "sh " + path("ask.sh") + " \"" + table + "\" > " + path("value");
    EXPECT_EQ(std::system(command.c_str()), 0) << name;
    return read_file(path("value"), 4096);
  }
};

TEST_F(CliNcclEnv, IsForAShellToEvaluate) {
  const std::string table = path("it's tuned.json");
  const TunedKey key{.collective = NcclCollective::allgather, .size_class = 27, .ranks = 8};
  write_file_atomically(
      table, to_json({{{.key = key, .config = {.channels = 4, .chunk_bytes = 1 << 19, .threads = 256}}}}));
  EXPECT_EQ(value(table, "SHINGLE_TUNER_TABLE"), table + "\n");
  EXPECT_EQ(value(table, "NCCL_TUNER_PLUGIN"), "shingle\n");
  EXPECT_EQ(value(table, "NCCL_BUFFSIZE"), "1048576\n");
  EXPECT_EQ(value(table, "NCCL_NTHREADS"), "256\n");
  EXPECT_EQ(value(table, "NCCL_MIN_CTAS"), "4\n");
  EXPECT_EQ(value(table, "NCCL_BUFFSIZE", "--nccl 2.30.7"), "unset\n") << "the plugin sets chunks";
  EXPECT_EQ(value(table, "NCCL_NTHREADS", "--nccl 2.30.7"), "256\n");
}

TEST_F(CliNcclEnv, SaysWhyATableIsEmpty) {
  write_file_atomically(path("empty.json"), to_json({{}, "none of 12 configurations\nwas faster"}));
  EXPECT_THAT(run("tune --nccl-env " + path("empty.json")).out,
              testing::HasSubstr("# the table says: none of 12 configurations was faster\n"));
}

TEST_F(CliNcclEnv, RefusesWhatIsNoTable) {
  expect_refused("tune --nccl-env " + path("nowhere"), "No such file");
  write("good.json", to_json({}));
  for (const char* version : {"3.1", "2", "2.x", "2.30rc"})
    expect_refused("tune --nccl-env " + path("good.json") + " --nccl '" + version + "'",
                   "is not a version of NCCL 2");
  write("bad.json",
        R"({"format": "shingle-nccl-tuning", "version": 1, "entries": [{"collective": "gossip"}]})");
  expect_refused("tune --nccl-env " + path("bad.json"), "bad.json: unknown collective 'gossip'");
}

}  // namespace
}  // namespace shingle::cli_nccl_env_test
