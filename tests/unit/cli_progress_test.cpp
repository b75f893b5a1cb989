// Progress where stderr is no terminal: lines now and then, with what is done and what is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <thread>

#include "shingle/common/console.hpp"

namespace shingle::cli::cli_progress_test {
namespace {

using namespace std::chrono_literals;

class ProgressTest : public testing::Test {
 protected:
  /// Waits until the file has a line with `text`.
  std::string wait_for(const std::string& text) {
    for (int i = 0; i < 5000; ++i) {
      std::string all(1 << 16, '\0');
      std::rewind(file_.get());
      all.resize(std::fread(all.data(), 1, all.size(), file_.get()));
      if (all.find(text) != std::string::npos) return all;
      std::this_thread::sleep_for(1ms);
    }
    ADD_FAILURE() << "no line with: " << text;
    return {};
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> written_{std::tmpfile()},
      file_{::fdopen(::dup(fileno(written_.get())), "r")};
};

TEST_F(ProgressTest, SaysOnAPipeWhatIsDoneAndWhatIsLeft) {
  Progress progress(true, {.file = written_.get(), .every = 20ms});
  progress.now("planning");
  EXPECT_THAT(wait_for("planning"), testing::MatchesRegex("(shingle: 0 s: planning\n)+"));
  progress.expect(4);
  wait_for("shingle: 0 s, 0 of 4 done: planning\n");
  progress.advance();
  progress.now("gemm 8x8x8");
  wait_for("shingle: 0 s, 1 of 4 done, about 0 s left: gemm 8x8x8\n");
  for (int i = 0; i < 3; ++i) progress.advance();
  wait_for("shingle: 0 s, 4 of 4 done: gemm 8x8x8\n");
}

TEST_F(ProgressTest, SaysNothingOfWhatIsShort) {
  { Progress progress(true, {.file = written_.get()}); }
  {
    Progress progress(false, {.file = written_.get(), .every = 1ms});
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(std::ftell(written_.get()), 0);
}

}  // namespace
}  // namespace shingle::cli::cli_progress_test
