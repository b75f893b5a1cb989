// The program as its users meet it: run behind a shell, with what it printed and how it ended.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.hpp"

namespace shingle {

struct Outcome {
  int code = -1;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("shingle_cli_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Runs `shingle ARGUMENTS`, behind `launcher` if there is one.
  Outcome run(const std::string& arguments, const std::string& launcher = "") const {
    const std::string command = launcher + " " SHINGLE_TEST_PROGRAM " " + arguments + " >" + path("stdout") +
                                " 2>" + path("stderr") + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(path("stdout"), 1 << 28),
            read_file(path("stderr"), 1 << 28)};
  }
  Outcome mpirun(int processes, const std::string& arguments) const {
    return run(arguments, SHINGLE_TEST_MPIEXEC " --oversubscribe -n " + std::to_string(processes));
  }

  /// Exit code 2 and one line that says why, with nothing printed.
  void expect_refused(const std::string& arguments, const std::string& why) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_TRUE(outcome.err.starts_with("shingle: ")) << arguments << "\n" << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, testing::HasSubstr(why)) << arguments;
  }

  nlohmann::json rows(const std::string& arguments, int code = 0) const {
    const Outcome outcome = run("run --format json --repeat 1 " + arguments);
    EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }

  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }

 private:
  std::filesystem::path folder_;
};

inline const std::string small = "--m 96 --n 80 --k 64 --world 2 ";

}  // namespace shingle
