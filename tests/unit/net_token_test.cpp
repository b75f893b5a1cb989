// Where processes take from what they prove to each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "net/token.hpp"
#include "shingle/base/error.hpp"

namespace shingle::net::net_token_test {
namespace {

using testing::HasSubstr;

Token from(const std::map<std::string, std::string>& variables) {
  return job_token([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal_of(const std::map<std::string, std::string>& variables) {
  try {
    from(variables);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

class TokenFile : public testing::Test {
 protected:
  TokenFile() {
    std::string name = testing::TempDir() + "token.XXXXXX";
    folder_ = ::mkdtemp(name.data());
    path = folder_ / "token";
  }
  ~TokenFile() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& text, mode_t mode) const {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
  }

  std::string path;

 private:
  std::filesystem::path folder_;
};

TEST(JobToken, NoneWithoutAnyVariable) {
  const Token token = from({});
  EXPECT_EQ(token.value, "");
  EXPECT_EQ(token.source, "");
  EXPECT_FALSE(token.is_secret);
}

TEST(JobToken, WhatTheUserGivesComesFirst) {
  const Token token = from({{"SHINGLE_TOKEN", "hush"},
                            {"SHINGLE_TOKEN_FILE", "/nowhere"},
                            {"TORCHELASTIC_RUN_ID", "run"},
                            {"SLURM_JOB_ID", "77"}});
  EXPECT_EQ(token.value, "hush");
  EXPECT_EQ(token.source, "SHINGLE_TOKEN");
  EXPECT_TRUE(token.is_secret);
}

TEST(JobToken, ThenWhatTheInnermostLauncherGives) {
  std::map<std::string, std::string> variables{{"SLURM_JOB_ID", "77"}};
  EXPECT_EQ(from(variables).value, "77");
  variables["OMPI_MCA_orte_precondition_transports"] = "73f5f53bb7e134ed-3bbca184a83dbe2e";
  EXPECT_EQ(from(variables).source, "OMPI_MCA_orte_precondition_transports");
  variables["TORCHELASTIC_RUN_ID"] = "run";
  EXPECT_EQ(from(variables).value, "run");
  EXPECT_FALSE(from(variables).is_secret) << "others on the cluster may see it";
}

TEST(JobToken, AnEmptyOneIsAMistake) {
  EXPECT_THAT(refusal_of({{"SHINGLE_TOKEN", ""}}), HasSubstr("SHINGLE_TOKEN is empty"));
}

TEST_F(TokenFile, IsReadWithoutItsLastLineBreak) {
  write("hush hush\n", 0600);
  const Token token = from({{"SHINGLE_TOKEN_FILE", path}});
  EXPECT_EQ(token.value, "hush hush");
  EXPECT_TRUE(token.is_secret);
}

TEST_F(TokenFile, IsRefusedWhereOthersMayReadIt) {
  for (const mode_t mode : {0644, 0640, 0602}) {
    write("hush", mode);
    EXPECT_THAT(refusal_of({{"SHINGLE_TOKEN_FILE", path}}), HasSubstr("chmod 600"));
  }
}

TEST_F(TokenFile, IsRefusedWhereItIsEmptyOrMissing) {
  write("\n", 0600);
  EXPECT_THAT(refusal_of({{"SHINGLE_TOKEN_FILE", path}}), HasSubstr("is empty"));
  EXPECT_THROW(from({{"SHINGLE_TOKEN_FILE", path + "s"}}), IoError);
}

}  // namespace
}  // namespace shingle::net::net_token_test
