// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/exchange_state.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::coordination {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

Put PutOf(int64_t request, const std::string& key, const std::string& value) {
  Put put;
  put.set_request(request);
  put.set_key(key);
  put.set_value(value);
  return put;
}

Get GetOf(int64_t request, const std::string& key) {
  Get get;
  get.set_request(request);
  get.set_key(key);
  get.set_timeout_ms(1000);
  return get;
}

Barrier BarrierOf(int64_t request) {
  Barrier barrier;
  barrier.set_request(request);
  barrier.set_name("b");
  barrier.set_timeout_ms(1000);
  return barrier;
}

/// "rank #request code value-or-text".
std::vector<std::string> Text(const ExchangeState::Answers& answers) {
  std::vector<std::string> texts;
  for (const auto& [rank, answer] : answers) {
    texts.push_back(absl::StrCat(
        rank, " #", answer.request(), " ",
        absl::StatusCodeToString(static_cast<absl::StatusCode>(answer.code())),
        " ", answer.code() == 0 ? answer.value() : answer.text()));
  }
  return texts;
}

TEST(ExchangeStateTest, AGetWaitsForItsPut) {
  ExchangeState state(3);
  EXPECT_THAT(state.OnGet(1, GetOf(5, "a"), At(0)), IsEmpty());
  EXPECT_THAT(state.OnGet(2, GetOf(6, "a"), At(0)), IsEmpty());
  EXPECT_THAT(Text(state.OnPut(0, PutOf(1, "a", "v"))),
              ElementsAre("0 #1 OK ", "1 #5 OK v", "2 #6 OK v"));
  EXPECT_THAT(Text(state.OnGet(0, GetOf(7, "a"), At(9))),
              ElementsAre("0 #7 OK v"));
  EXPECT_THAT(state.OnTick(At(99)), IsEmpty());
}

TEST(ExchangeStateTest, AKeyIsSetOnce) {
  ExchangeState state(2);
  state.OnPut(0, PutOf(1, "a", "v"));
  EXPECT_THAT(Text(state.OnPut(1, PutOf(2, "a", "v"))),
              ElementsAre("1 #2 OK "));
  EXPECT_THAT(Text(state.OnPut(1, PutOf(3, "a", "w"))),
              ElementsAre("1 #3 ALREADY_EXISTS the key 'a' has another value "
                          "already: a key is set once"));
}

TEST(ExchangeStateTest, AGetEndsWithItsTimeAndNamesTheKey) {
  ExchangeState state(2);
  state.OnGet(1, GetOf(5, "a"), At(0));
  EXPECT_THAT(state.OnTick(At(0.5)), IsEmpty());
  EXPECT_THAT(Text(state.OnTick(At(1))),
              ElementsAre("1 #5 DEADLINE_EXCEEDED no rank has set the key 'a' "
                          "within 1s"));
  EXPECT_THAT(state.OnTick(At(2)), IsEmpty());
}

TEST(ExchangeStateTest, ABarrierOpensWhenAllHaveComeAndAgain) {
  ExchangeState state(2);
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(state.OnBarrier(1, BarrierOf(1), At(0)), IsEmpty());
    EXPECT_THAT(Text(state.OnBarrier(0, BarrierOf(2), At(0))),
                ElementsAre("1 #1 OK ", "0 #2 OK "));
  }
}

TEST(ExchangeStateTest, ABarrierEndsForAllAndNamesWhoIsMissing) {
  ExchangeState state(4);
  state.OnBarrier(1, BarrierOf(1), At(0));
  state.OnBarrier(2, BarrierOf(2), At(0.5));
  const char* text =
      "DEADLINE_EXCEEDED barrier 'b': ranks 0, 3 did not come within 1s";
  EXPECT_THAT(
      Text(state.OnTick(At(1))),
      ElementsAre(absl::StrCat("1 #1 ", text), absl::StrCat("2 #2 ", text)));
  EXPECT_THAT(state.OnTick(At(2)), IsEmpty());
}

TEST(ExchangeStateTest, ARankCannotWaitTwice) {
  ExchangeState state(2);
  state.OnBarrier(1, BarrierOf(1), At(0));
  EXPECT_THAT(Text(state.OnBarrier(1, BarrierOf(2), At(0))),
              ElementsAre("1 #2 FAILED_PRECONDITION rank 1 waits in the "
                          "barrier 'b' already"));
}

TEST(ExchangeStateTest, AFailureEndsWhatWaitsAndWhatComes) {
  ExchangeState state(3);
  state.OnGet(1, GetOf(5, "a"), At(0));
  state.OnBarrier(2, BarrierOf(6), At(0));
  EXPECT_THAT(Text(state.OnFailure(absl::AbortedError("over"))),
              ElementsAre("1 #5 ABORTED over", "2 #6 ABORTED over"));
  EXPECT_THAT(Text(state.OnPut(0, PutOf(1, "a", "v"))),
              ElementsAre("0 #1 ABORTED over"));
  EXPECT_THAT(Text(state.OnGet(0, GetOf(2, "a"), At(0))),
              ElementsAre("0 #2 ABORTED over"));
  EXPECT_THAT(Text(state.OnBarrier(0, BarrierOf(3), At(0))),
              ElementsAre("0 #3 ABORTED over"));
}

}  // namespace
}  // namespace crosshatch::coordination
