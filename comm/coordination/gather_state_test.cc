// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/gather_state.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::coordination {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

Gather GatherOf(int64_t request, const std::string& blob = "") {
  Gather gather;
  gather.set_request(request);
  gather.set_name("g");
  gather.set_blob(blob);
  gather.set_timeout_ms(1000);
  return gather;
}

/// Returns lines such as "rank #request code blobs-or-text".
std::vector<std::string> Text(const GatherState::Answers& answers) {
  std::vector<std::string> texts;
  for (const auto& [rank, answer] : answers) {
    texts.push_back(absl::StrCat(
        rank, " #", answer.request(), " ",
        absl::StatusCodeToString(static_cast<absl::StatusCode>(answer.code())),
        " ",
        answer.code() == 0 ? absl::StrJoin(answer.blobs(), ",")
                           : answer.text()));
  }
  return texts;
}

TEST(GatherStateTest, AllGetTheBlobsOfAllByRankAndAgain) {
  GatherState state(2);
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(state.OnGather(1, GatherOf(5, "b"), At(0)), IsEmpty());
    EXPECT_THAT(Text(state.OnGather(0, GatherOf(6, "a"), At(0))),
                ElementsAre("0 #6 OK a,b", "1 #5 OK a,b"));
  }
  EXPECT_THAT(state.OnTick(At(99)), IsEmpty());
}

TEST(GatherStateTest, ItsTimeEndsItForAllAndNamesWhoIsMissing) {
  GatherState state(4);
  state.OnGather(1, GatherOf(1), At(0));
  state.OnGather(2, GatherOf(2), At(0.5));
  EXPECT_THAT(state.OnTick(At(0.9)), IsEmpty());
  const char* text = "DEADLINE_EXCEEDED 'g': ranks 0, 3 did not come within 1s";
  EXPECT_THAT(
      Text(state.OnTick(At(1))),
      ElementsAre(absl::StrCat("1 #1 ", text), absl::StrCat("2 #2 ", text)));
  EXPECT_THAT(state.OnTick(At(2)), IsEmpty());
}

TEST(GatherStateTest, ARankCannotWaitTwice) {
  GatherState state(2);
  state.OnGather(1, GatherOf(1), At(0));
  EXPECT_THAT(Text(state.OnGather(1, GatherOf(2), At(0))),
              ElementsAre("1 #2 FAILED_PRECONDITION rank 1 waits for 'g' "
                          "already"));
}

TEST(GatherStateTest, BlobsThatNoAnswerCanHoldAreAnErrorForAll) {
  GatherState state(2);
  state.OnGather(1, GatherOf(1, std::string(2 << 20, 'b')), At(0));
  const auto answers =
      state.OnGather(0, GatherOf(2, std::string(2 << 20, 'a')), At(0));
  ASSERT_EQ(answers.size(), 2u);
  for (const auto& [rank, answer] : answers) {
    EXPECT_EQ(answer.code(),
              static_cast<int>(absl::StatusCode::kResourceExhausted));
    EXPECT_EQ(answer.blobs_size(), 0);
  }
}

TEST(GatherStateTest, AFailureEndsWhatWaitsAndWhatComes) {
  GatherState state(3);
  state.OnGather(1, GatherOf(5), At(0));
  state.OnGather(2, GatherOf(6), At(0));
  EXPECT_THAT(Text(state.OnFailure(absl::AbortedError("over"))),
              ElementsAre("1 #5 ABORTED over", "2 #6 ABORTED over"));
  EXPECT_THAT(Text(state.OnGather(0, GatherOf(1), At(0))),
              ElementsAre("0 #1 ABORTED over"));
}

}  // namespace
}  // namespace crosshatch::coordination
