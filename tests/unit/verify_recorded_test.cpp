// Plans that were proven once although they are wrong, as they were found.
#include "base/file.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/expect_proof.hpp"

namespace shingle::verify_recorded_test {
namespace {

using test::expect_wrong;

Plan recorded(const std::string& name) {
  return plan_from_json(read_file(SHINGLE_TEST_SOURCE_DIR "/tests/data/plans/" + name + ".json", 1 << 20));
}

TEST(VerifyRecorded, AnOverlapsProductOverHalfOfItsKByWayOfARowMap) {
  expect_wrong(recorded("overlap_k"), "content", {"over K = 32", "but holds", "over K = 16"});
}

TEST(VerifyRecorded, AttentionThatOtherRanksGet) {
  expect_wrong(recorded("attend_ranks"), "content",
               {"rank 0, lane compute, step 1 (gemm)", "attended on rank 0"});
}

TEST(VerifyRecorded, AGatedPassIssuedBeforeTheCommunicationThatItWaitsFor) {
  expect_wrong(recorded("gated_pass_issued_first"), "hardware queue",
               {"lane communicate, step 0 (await) waits in the hardware queue behind rank 0, lane compute, "
                "step 1 (permute)"});
}

/// Rank 0 cuts its rows elsewhere than the others, and sums some columns in another order.
TEST(VerifyRecorded, RowsWhosePartsAreCutElsewhereOnARank) {
  const Proof proof = verify(recorded("rows_cut_elsewhere"));
  EXPECT_FALSE(proof);
  EXPECT_THAT(proof.failure, testing::HasSubstr("rank"));
}

}  // namespace
}  // namespace shingle::verify_recorded_test
