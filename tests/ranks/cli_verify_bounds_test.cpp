// `verify` within bounds, whatever it is given: 2 s of an unloaded machine and 512 MB.
#include "cli_program.hpp"

namespace shingle::cli_verify_bounds_test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class CliVerifyBounds : public Cli {
 protected:
  /// A process that may take so much: memory as a whole, libraries included; time is what the processor
  /// spent, with room for slow machines and sanitizers.
  Outcome bounded(const std::string& arguments) const {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return run(arguments, "ulimit -t 120;");
#else
    return run(arguments, "ulimit -t 20; ulimit -v 700000;");
#endif
  }
};

TEST_F(CliVerifyBounds, RefusesRowsOneByOne) {
  const Outcome outcome = bounded("verify " SHINGLE_TEST_SOURCE_DIR "/tests/data/plans/rows_one_by_one.json");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\n  size: too large to prove: "));
}

TEST_F(CliVerifyBounds, ProvesOrRefusesPlansOf64Ranks) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes a multiple of the bounds";
#endif
  for (const char* what : {"alltoall --m 64K --n 512 --routing random --mechanism copy-engine",
                           "gemm+alltoall --m 8K --n 4K --k 1K --routing random --mechanism signal",
                           "gemm+allreduce --m 8K --n 8K --k 1K --mechanism ring",
                           "gemm+reducescatter --m 8K --n 8K --k 1K --mechanism signal"}) {
    const Outcome outcome = bounded("verify --world 64 --op " + std::string(what));
    EXPECT_THAT(outcome.code, AnyOf(0, 1)) << what << "\n" << outcome.err;
    EXPECT_THAT(outcome.out, AnyOf(HasSubstr("proven: "), HasSubstr("\n  size: too large to prove: ")))
        << what;
    EXPECT_EQ(outcome.err, "") << what;
  }
}

TEST_F(CliVerifyBounds, RefusesTextOfManyValues) {
  std::string text = "[";
  for (int i = 0; i < 8000000; ++i) text += "[],";
  write("many.json", text + "1]");
  const Outcome outcome = bounded("verify " + path("many.json"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("the limit of 160.0 MiB"));
}

}  // namespace
}  // namespace shingle::cli_verify_bounds_test
