// What other programs read: proofs and failures as JSON, and plans that they have stored.
#include "cli_program.hpp"

namespace shingle::cli_json_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class CliJson : public Cli {
 protected:
  void store_plan() const {
    const Outcome stored = run("plan --op gemm+allreduce --mechanism fused " + small +
                               "--format json --out " + path("plan.json"));
    ASSERT_EQ(stored.code, 0) << stored.err;
  }
};

TEST_F(CliJson, ProvesAStoredPlan) {
  store_plan();
  const Outcome proven = run("verify --context --format json " + path("plan.json"));
  ASSERT_EQ(proven.code, 0) << proven.err;
  const json proofs = json::parse(proven.out);
  ASSERT_EQ(proofs.size(), 1u);
  EXPECT_EQ(proofs[0].at("proven"), true);
  EXPECT_EQ(proofs[0].at("mechanism"), "fused");
  EXPECT_EQ(proofs[0].at("world"), 2);
  EXPECT_EQ(proofs[0].at("claims").size(), 5u);
  EXPECT_GT(proofs[0].at("steps"), 0);
  EXPECT_EQ(proofs[0].at("skew"), 1);
}

TEST_F(CliJson, NamesTheFailureOfAProof) {
  store_plan();
  json plan = json::parse(read_file(path("plan.json"), 1 << 28));
  plan.at("ranks").at(0).at("lanes").at(0).at("steps").back().at("target") =
      1;  // of two tiles of rank 1's sums
  write("wrong.json", plan.dump());
  const Outcome refused = run("verify --format json " + path("wrong.json"));
  ASSERT_EQ(refused.code, 1) << refused.err;
  const json proof = json::parse(refused.out).at(0);
  EXPECT_EQ(proof.at("proven"), false);
  EXPECT_FALSE(proof.at("rule").get<std::string>().empty());
  EXPECT_THAT(proof.at("failure"), HasSubstr("rank "));
}

TEST_F(CliJson, NamesTheOperatorWithoutAPlan) {
  const Outcome none = run("verify --op gemm --mechanism ring --m 8 --n 8 --k 8 --world 2 --format json");
  EXPECT_EQ(none.code, 1);
  const json proof = json::parse(none.out).at(0);
  EXPECT_EQ(proof.at("proven"), false);
  EXPECT_FALSE(proof.at("reason").get<std::string>().empty());
}

TEST_F(CliJson, ShowsAStoredPlan) {
  store_plan();
  const std::string made = "plan --op gemm+allreduce --mechanism fused " + small;
  EXPECT_EQ(run("plan " + path("plan.json")).out, run(made).out);
  EXPECT_EQ(run("plan --lowered " + path("plan.json")).out, run(made + "--lowered").out);
  EXPECT_EQ(run("plan " + path("plan.json") + " --svg " + path("plan.svg")).code, 0);
  EXPECT_THAT(read_file(path("plan.svg"), 1 << 28), HasSubstr("<svg"));
  expect_refused("plan --rank 2 " + path("plan.json"), "--rank 2 is outside [0, 1]");
  expect_refused("plan --m 96 " + path("plan.json"), "excludes");
}

TEST_F(CliJson, FailuresNameTheirStatus) {
  const auto failure = [&](const std::string& arguments, int code) {
    const Outcome outcome = run("--json-errors " + arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return json::parse(outcome.err);
  };
  const json flag = failure("plan --wings 2", 2);
  EXPECT_EQ(flag.at("status"), "invalid argument");
  EXPECT_THAT(flag.at("message"), HasSubstr("--wings"));
  EXPECT_EQ(failure("plan --op gemm --m 0 --n 8 --k 8", 2).at("status"), "invalid argument");
  EXPECT_EQ(failure("plan " + path("none.json"), 2).at("status"), "I/O error");
}

}  // namespace
}  // namespace shingle::cli_json_test
