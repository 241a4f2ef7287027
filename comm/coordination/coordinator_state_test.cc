// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/coordinator_state.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::coordination {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kToken[] = "token";

Member MemberOf(int rank, int size) {
  Member member;
  member.set_rank(rank);
  member.set_size(size);
  member.set_host("h");
  member.set_pid(100 + rank);
  member.set_program("build 1");
  return member;
}

/// Returns "kind", or the message's content.
std::string Text(const ServerMessage& message) {
  switch (message.kind_case()) {
    case ServerMessage::kStarted:
      return absl::StrCat("started by ", message.started().rank_0().pid());
    case ServerMessage::kHeartbeat:
      return "heartbeat";
    case ServerMessage::kGathered:
      return absl::StrCat("gathered ",
                          absl::StrJoin(message.gathered().blobs(), ","));
    case ServerMessage::kQuery:
      return "query";
    case ServerMessage::kFailure:
      return absl::StrCat(
          "failure ",
          std::string(ResultOf(ToNotice(message.failure())).message()));
    case ServerMessage::kRefused:
      return absl::StrCat("refused ", message.refused());
    case ServerMessage::kDismissed:
      return "dismissed";
    case ServerMessage::KIND_NOT_SET:
      return "nothing";
  }
  return "?";
}

/// A job whose ranks connect as peers 10 + rank. Times are seconds; the
/// coordinator's heartbeats are omitted.
class Job {
 public:
  explicit Job(int size)
      : size_(size),
        state_(MemberOf(0, size), kToken,
               {.start = absl::Seconds(60), .heartbeat = absl::Seconds(8)},
               Now()) {}

  absl::Time Now() const { return absl::UnixEpoch() + absl::Seconds(now_); }

  std::vector<std::string> Register(int peer, const Member& member,
                                    const std::string& token = kToken) {
    ClientMessage message;
    message.mutable_registration()->set_token(token);
    *message.mutable_registration()->mutable_member() = member;
    return Texts(state_.OnMessage(peer, message, Now()));
  }
  std::vector<std::string> Connect(int peer) {
    return Texts(state_.OnConnect(peer, Now()));
  }
  std::vector<std::string> Come(int rank) {
    return Register(10 + rank, MemberOf(rank, size_));
  }
  void Start() {
    for (int rank = 0; rank < size_; ++rank) Come(rank);
  }
  std::vector<std::string> Heartbeat(int rank, const std::string& activity) {
    ClientMessage message;
    message.set_heartbeat(activity);
    return Deliver(rank, message);
  }
  std::vector<std::string> Answer(int rank, const std::string& activity) {
    ClientMessage message;
    message.set_activity(activity);
    return Deliver(rank, message);
  }
  std::vector<std::string> Report(int rank, const std::string& error,
                                  bool cut_off = false) {
    ClientMessage message;
    *message.mutable_failure() =
        ToMessage({.world_ranks = {rank},
                   .cut_off = cut_off,
                   .error = absl::InternalError(error)});
    return Deliver(rank, message);
  }
  std::vector<std::string> Gather(int rank, const std::string& name,
                                  const std::string& blob = "") {
    ClientMessage message;
    message.mutable_gather()->set_name(name);
    message.mutable_gather()->set_blob(blob);
    message.mutable_gather()->set_timeout_ms(3000);
    return Deliver(rank, message);
  }
  std::vector<std::string> Goodbye(int rank) {
    ClientMessage message;
    message.mutable_goodbye();
    return Deliver(rank, message);
  }
  std::vector<std::string> Lose(int rank, const std::string& how) {
    ClientMessage message;
    message.set_lost(how);
    return Deliver(rank, message);
  }
  std::vector<std::string> Break(int rank) {
    return Texts(state_.OnBroken(10 + rank, Now()));
  }
  std::vector<std::string> Pass(double seconds) {
    now_ += seconds;
    return Texts(state_.OnTick(Now()));
  }
  CoordinatorState& state() { return state_; }

 private:
  std::vector<std::string> Deliver(int rank, const ClientMessage& message) {
    return Texts(state_.OnMessage(10 + rank, message, Now()));
  }
  /// Returns lines such as "PEER message" and "PEER closed".
  static std::vector<std::string> Texts(
      const CoordinatorState::Actions& actions) {
    std::vector<std::string> texts;
    for (const auto& [to, message] : actions.send) {
      if (message.has_heartbeat()) continue;
      for (const auto peer : to) {
        texts.push_back(absl::StrCat(peer, " ", Text(message)));
      }
    }
    for (const auto peer : actions.close) {
      texts.push_back(absl::StrCat(peer, " closed"));
    }
    for (const auto peer : actions.drop) {
      texts.push_back(absl::StrCat(peer, " dropped"));
    }
    return texts;
  }

  const int size_;
  double now_ = 0;
  CoordinatorState state_;
};

TEST(CoordinatorStateTest, StartsWhenAllAreThereAndEndsWithAllGoodbyes) {
  Job job(2);
  EXPECT_THAT(job.Come(1), IsEmpty());
  EXPECT_THAT(job.Come(0),
              ElementsAre("10 started by 100", "11 started by 100"));
  EXPECT_THAT(job.Goodbye(1), IsEmpty());
  EXPECT_FALSE(job.state().is_over());
  EXPECT_THAT(job.Goodbye(0), ElementsAre("10 dismissed", "11 dismissed"));
  EXPECT_TRUE(job.state().is_over());
  EXPECT_FALSE(job.state().is_deserted());
  EXPECT_THAT(job.Break(0), IsEmpty());
  EXPECT_THAT(job.Break(1), IsEmpty());
  EXPECT_TRUE(job.state().is_deserted());
}

TEST(CoordinatorStateTest, RanksReceiveTheRanksOfTheirMachine) {
  CoordinatorState state(MemberOf(0, 70), kToken, {}, absl::UnixEpoch());
  CoordinatorState::Actions actions;
  for (int rank = 0; rank < 70; ++rank) {
    ClientMessage message;
    message.mutable_registration()->set_token(kToken);
    Member& member = *message.mutable_registration()->mutable_member();
    member = MemberOf(rank, 70);
    member.set_machine(rank == 2 || rank == 5 ? "a" : "b");
    actions = state.OnMessage(rank, message, absl::UnixEpoch());
  }
  // One answers the last registration, and one goes to each machine.
  ASSERT_EQ(actions.send.size(), 3u);
  const auto neighbours = [&](int rank) {
    std::vector<std::pair<int, int>> all;
    for (const auto& [to, message] : actions.send) {
      if (std::find(to.begin(), to.end(), rank) == to.end()) continue;
      for (const Neighbour& each : message.started().neighbours()) {
        all.emplace_back(each.rank(), each.pid());
      }
    }
    return all;
  };
  EXPECT_THAT(neighbours(5), ElementsAre(std::pair(2, 102), std::pair(5, 105)));
  EXPECT_EQ(neighbours(3).size(), 64u);
  EXPECT_EQ(neighbours(3)[2], std::pair(3, 103));
}

TEST(CoordinatorStateTest, AllReceiveTheBlobsOfAllByRankAndAgain) {
  Job job(2);
  job.Start();
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(job.Gather(1, "g", "b"), IsEmpty());
    EXPECT_THAT(job.Gather(0, "g", "a"),
                ElementsAre("10 gathered a,b", "11 gathered a,b"));
  }
  EXPECT_THAT(job.Pass(7), IsEmpty());
}

TEST(CoordinatorStateTest, AllRanksShareTheMessageOfAGather) {
  Job job(3);
  job.Start();
  job.Gather(0, "g");
  job.Gather(1, "g");
  ClientMessage last;
  last.mutable_gather()->set_name("g");
  const auto actions = job.state().OnMessage(12, last, job.Now());
  ASSERT_EQ(actions.send.size(), 1u);
  EXPECT_THAT(actions.send[0].to, ElementsAre(10, 11, 12));
}

TEST(CoordinatorStateTest, RanksThatDoNotGatherAreNamed) {
  Job job(4);
  job.Start();
  job.Gather(1, "g");
  job.Pass(2);
  job.Gather(2, "g");
  EXPECT_THAT(job.Pass(0.9), IsEmpty());
  EXPECT_THAT(job.Pass(0.1), Contains("10 query"));
  for (int rank = 0; rank < 3; ++rank) job.Answer(rank, "");
  EXPECT_THAT(
      job.Answer(3, ""),
      Contains("10 failure ranks 0, 3 did not come to the exchange of 'g' "
               "within 3s"));
}

TEST(CoordinatorStateTest, GathersThatDifferFailTheJob) {
  Job job(2);
  job.Start();
  job.Gather(1, "g");
  job.Gather(0, "h");
  job.Answer(0, "");
  EXPECT_THAT(job.Answer(1, ""),
              Contains("10 failure rank 0 gathers 'h' and rank 1 'g'"));
}

TEST(CoordinatorStateTest, ARankThatGathersTwiceAtOnceFailsTheJob) {
  for (const std::string second : {"g", "h"}) {
    Job job(2);
    job.Start();
    job.Gather(1, "g", "first");
    EXPECT_THAT(job.Gather(1, second, "second"), Contains("10 query"));
    job.Answer(0, "");
    EXPECT_THAT(job.Answer(1, ""),
                Contains(absl::StrCat("10 failure rank 1 gathers '", second,
                                      "' while it waits for the others' 'g'")));
  }
}

TEST(CoordinatorStateTest, BlobsThatNoMessageCanHoldFailTheJob) {
  Job job(2);
  job.Start();
  job.Gather(1, "g", std::string(2 << 20, 'b'));
  job.Gather(0, "g", std::string(2 << 20, 'a'));
  job.Answer(0, "");
  EXPECT_THAT(job.Answer(1, ""),
              Contains("10 failure 'g' has 4194304 bytes of all ranks; the "
                       "most is 3145728"));
}

TEST(CoordinatorStateTest, StrangersDoNotDisturbTheJob) {
  Job job(2);
  const std::string wrong =
      " refused the token is not this job's: give all ranks the same "
      "CROSSHATCH_JOB_TOKEN and CROSSHATCH_JOB_ID";
  for (const int rank : {0, 1}) {
    EXPECT_THAT(job.Register(50 + rank, MemberOf(rank, 2), "tokem"),
                ElementsAre(absl::StrCat(50 + rank, wrong),
                            absl::StrCat(50 + rank, " closed")));
  }
  const auto actions = job.state().OnMessage(52, ClientMessage(), job.Now());
  ASSERT_EQ(actions.send.size(), 1u);
  EXPECT_EQ(actions.send[0].message.refused(),
            "the first message must be the registration");
  job.Come(0);
  EXPECT_THAT(job.Come(1),
              ElementsAre("10 started by 100", "11 started by 100"));
}

TEST(CoordinatorStateTest, StrangersAreDroppedAfterTenSeconds) {
  Job job(1);
  for (const int peer : {1, 2, 10}) EXPECT_THAT(job.Connect(peer), IsEmpty());
  EXPECT_THAT(job.Come(0), Contains("10 started by 100"));
  job.Break(-8);  // Peer 2 closes its connection.
  job.Register(1, MemberOf(0, 1), "tokem");
  job.Pass(4);
  job.Heartbeat(0, "");
  EXPECT_THAT(job.Connect(20), IsEmpty());
  EXPECT_THAT(job.Pass(6), IsEmpty());
  job.Heartbeat(0, "");
  // It does not read its refusal, and the rank is none any more.
  EXPECT_THAT(job.Pass(0.1), ElementsAre("1 dropped"));
  EXPECT_THAT(job.Pass(3.9), IsEmpty());
  EXPECT_THAT(job.Pass(0.1), ElementsAre("20 dropped"));
}

TEST(CoordinatorStateTest, TheOldestOfTooManyStrangersIsDropped) {
  Job job(1);
  job.Connect(0);
  constexpr auto kMost = static_cast<int>(CoordinatorState::kMostStrangers);
  for (int peer = 100; peer < 100 + kMost - 1; ++peer) {
    EXPECT_THAT(job.Connect(peer), IsEmpty());
  }
  EXPECT_THAT(job.Connect(300), ElementsAre("0 dropped"));
  EXPECT_THAT(job.Connect(301), ElementsAre("100 dropped"));
}

// Jobs without a user's token share a token if they share an address.
TEST(CoordinatorStateTest, AnotherJobDoesNotDisturbOneThatRuns) {
  Job job(2);
  job.Start();
  const auto is_refused = [&job](int peer, const Member& member) {
    const std::vector<std::string> texts = job.Register(peer, member);
    ASSERT_EQ(texts.size(), 2u);
    EXPECT_THAT(texts[0], HasSubstr("refused the job of rank 0 (process "));
    EXPECT_THAT(texts[0], HasSubstr("has all its ranks"));
  };
  is_refused(50, MemberOf(0, 2));
  is_refused(51, MemberOf(3, 4));
  job.Goodbye(0);
  job.Goodbye(1);
  is_refused(52, MemberOf(1, 2));
}

TEST(CoordinatorStateTest, TwoProcessesAsOneRankFailTheJob) {
  Job job(3);
  job.Come(0);
  job.Come(1);
  Member twin = MemberOf(1, 3);
  twin.set_pid(7);
  const std::string text =
      "failure two processes are rank 1: process 101 on host h, and process 7 "
      "on host h: give each rank to one process";
  EXPECT_THAT(job.Register(50, twin), ElementsAre("10 " + text, "11 " + text,
                                                  "50 " + text, "50 closed"));
  job.Break(0);
  job.Break(1);
  job.state().OnBroken(50, job.Now());
  EXPECT_TRUE(job.state().is_deserted());
  // A late rank receives the same failure.
  EXPECT_THAT(job.Come(2), ElementsAre("12 " + text, "12 closed"));
}

TEST(CoordinatorStateTest, AFailedJobWaitsForRanksThatMayStillCome) {
  Job job(3);
  job.Come(0);
  job.Break(0);
  EXPECT_TRUE(job.state().is_over());
  for (const int rank : {1, 2}) {
    EXPECT_FALSE(job.state().is_deserted());
    EXPECT_THAT(job.Come(rank), Contains(HasSubstr("failure rank 0")));
    job.Break(rank);
  }
  EXPECT_TRUE(job.state().is_deserted());
}

TEST(CoordinatorStateTest, WorldsOfOtherSizesFailTheJob) {
  Job job(3);
  job.Come(0);
  EXPECT_THAT(job.Register(11, MemberOf(1, 2)),
              Contains("10 failure rank 1 (process 101 on host h) was started "
                       "for a world of 2 ranks, rank 0 (process 100 on host h) "
                       "for 3: start all ranks with the same number"));
}

TEST(CoordinatorStateTest, RanksOutsideOfTheWorldFailTheJob) {
  for (const int rank : {-1, 3}) {
    Job job(3);
    job.Come(0);
    EXPECT_THAT(job.Register(50, MemberOf(rank, 3)),
                Contains(HasSubstr("is outside of the world of 3 ranks, which "
                                   "are 0 to 2")));
  }
}

TEST(CoordinatorStateTest, ProcessesWithoutARankFailTheJobWithTheReason) {
  for (const auto& [rank, size, who] :
       {std::tuple(-1, 3, "process 99 on host h"),
        std::tuple(2, 0, "rank 2 (process 102 on host h)")}) {
    Job job(3);
    job.Come(0);
    Member member = MemberOf(rank, size);
    member.set_wrong("RANK is not set");
    EXPECT_THAT(
        job.Register(50, member),
        Contains(absl::StrCat("10 failure ", who, ": RANK is not set")));
  }
}

TEST(CoordinatorStateTest, OtherProgramsFailTheJob) {
  Job job(2);
  job.Come(0);
  Member other = MemberOf(1, 2);
  other.set_program("build 2");
  EXPECT_THAT(job.Register(11, other),
              Contains("10 failure rank 1 (process 101 on host h) runs another "
                       "program (build 2) than rank 0 (process 100 on host h) "
                       "(build 1): start the same build on all"));
}

TEST(CoordinatorStateTest, MissingRanksAreNamed) {
  Job job(4);
  job.Come(0);
  job.Come(2);
  job.Register(50, MemberOf(1, 4), "other");
  for (int i = 0; i < 30; ++i) {
    job.Pass(2);
    job.Heartbeat(0, "");
    job.Heartbeat(2, "");
  }
  EXPECT_FALSE(job.state().is_over());
  const std::string text =
      "failure ranks 1, 3 have not come within 1m2s of the start of rank 0 "
      "(process 100 on host h); 1 connection without this job's token came: "
      "give all ranks the same CROSSHATCH_JOB_TOKEN and CROSSHATCH_JOB_ID";
  EXPECT_THAT(job.Pass(2), ElementsAre("10 " + text, "12 " + text));
  EXPECT_FALSE(job.state().is_deserted());
  job.Break(2);
  EXPECT_FALSE(job.state().is_deserted());
  // Rank 0 is in this process, and is done after its goodbye.
  job.Goodbye(0);
  EXPECT_TRUE(job.state().is_deserted());
}

TEST(CoordinatorStateTest, AnAgeOfLessThanAMillisecondHasAUnit) {
  Job job(2);
  job.Start();
  job.Heartbeat(1, "in all_gather #3");
  job.Break(1);
  EXPECT_THAT(job.Answer(0, ""),
              Contains(HasSubstr("in all_gather #3 (0ms before)")));
}

TEST(CoordinatorStateTest, ADeathIsReportedWithAllActivities) {
  Job job(3);
  job.Start();
  job.Pass(1);
  job.Heartbeat(2, "in all_gather #3");
  job.Pass(0.5);
  EXPECT_THAT(job.Break(2), ElementsAre("10 query", "11 query"));
  EXPECT_THAT(job.Answer(1, "in all_gather #4"), IsEmpty());
  const std::string text =
      "failure rank 2: process 102 on host h died: its connection ended "
      "without a goodbye, as when a process is killed, aborts or exits early; "
      "when that was noticed:\n"
      "  rank 0 (process 100 on host h): in no collective\n"
      "  rank 1 (process 101 on host h): in all_gather #4\n"
      "  rank 2 (process 102 on host h): in all_gather #3 (500ms before)";
  EXPECT_THAT(job.Answer(0, ""), ElementsAre("10 " + text, "11 " + text));
  EXPECT_TRUE(job.state().is_over());
  EXPECT_TRUE(job.state().failure()->process_lost);
  EXPECT_FALSE(job.state().is_deserted());
  EXPECT_THAT(job.Goodbye(0), ElementsAre("10 dismissed"));
  EXPECT_THAT(job.Goodbye(1), ElementsAre("11 dismissed"));
  job.Break(0);
  job.Break(1);
  EXPECT_TRUE(job.state().is_deserted());
}

TEST(CoordinatorStateTest, SeveralDeathsAreAllNamed) {
  Job job(4);
  job.Start();
  job.Break(2);
  EXPECT_THAT(job.Answer(0, ""), IsEmpty());
  EXPECT_THAT(job.Break(1), IsEmpty());
  const std::vector<std::string> reported = job.Answer(3, "");
  ASSERT_EQ(reported.size(), 2u);
  const std::string died =
      " on host h died: its connection ended without a goodbye, as when a "
      "process is killed, aborts or exits early";
  EXPECT_THAT(reported[0],
              HasSubstr("10 failure rank 2: process 102" + died +
                        "; rank 1: process 101" + died + "; when that was"));
  EXPECT_THAT(job.state().failure()->world_ranks, ElementsAre(2, 1));
  EXPECT_TRUE(job.state().failure()->process_lost);
}

TEST(CoordinatorStateTest, DeathsAfterTheFailureAreReportedWithTheNextTick) {
  Job job(5);
  job.Start();
  job.Report(0, "bad");
  for (int rank = 0; rank < 5; ++rank) job.Answer(rank, "");
  job.Goodbye(4);
  EXPECT_THAT(job.Break(4), IsEmpty()) << "it has left";
  EXPECT_THAT(job.Break(2), IsEmpty());
  EXPECT_THAT(job.Break(3), IsEmpty());
  const std::vector<std::string> reported = job.Pass(0.25);
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_THAT(reported[0],
              HasSubstr("10 failure rank 2: process 102 on host h"));
  EXPECT_THAT(reported[0], HasSubstr("; rank 3: process 103 on host h died"));
  EXPECT_THAT(reported[1], HasSubstr("11 failure rank 2"));
  EXPECT_THAT(job.Pass(0.25), IsEmpty()) << "once";
  EXPECT_THAT(job.state().failure()->world_ranks, ElementsAre(0));
}

TEST(CoordinatorStateTest, RanksThatAreCutOffAreReportedWhateverTheCause) {
  Job job(4);
  job.Start();
  job.Report(1, "a link is down", /*cut_off=*/true);
  job.Report(3, "no route", /*cut_off=*/true);
  job.Break(2);
  for (const int rank : {0, 1, 3}) job.Answer(rank, "");
  EXPECT_THAT(job.state().failure()->world_ranks, ElementsAre(2));
  const std::vector<std::string> reported = job.Pass(0.25);
  ASSERT_EQ(reported.size(), 3u);
  EXPECT_EQ(reported[0], "10 failure rank 3: no route; rank 1: a link is down");
}

TEST(CoordinatorStateTest, ManyDeathsAreAllReportedAndSomeDescribed) {
  Job job(100);
  job.Start();
  std::vector<std::string> reported;
  for (int rank = 1; rank < 100; ++rank) reported = job.Break(rank);
  reported = job.Answer(0, "");
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_THAT(reported[0], HasSubstr("; rank 32: process 132"));
  EXPECT_THAT(reported[0], HasSubstr("aborts or exits early; and more; when"));
  EXPECT_EQ(job.state().failure()->world_ranks.size(), 99u);
}

TEST(CoordinatorStateTest, ASilentRankIsLostAndReceivesTheFailure) {
  Job job(2);
  job.Start();
  for (int i = 0; i < 4; ++i) {
    job.Pass(2);
    job.Heartbeat(0, "");
  }
  EXPECT_FALSE(job.state().is_over());
  EXPECT_THAT(job.Pass(0.5), ElementsAre("10 query", "11 query"));
  const std::vector<std::string> reported = job.Answer(0, "");
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_THAT(reported[0],
              HasSubstr("process 101 on host h does not answer: no "
                        "sign of it for 8.5s"));
  EXPECT_THAT(reported[1], HasSubstr("11 failure rank 1"));
}

TEST(CoordinatorStateTest, TheFirstErrorIsAnnouncedOnceAllAnswer) {
  Job job(3);
  job.Start();
  EXPECT_THAT(job.Report(1, "bad"),
              ElementsAre("10 query", "11 query", "12 query"));
  EXPECT_THAT(job.Report(2, "worse"), IsEmpty());
  job.Answer(0, "");
  job.Answer(1, "");
  EXPECT_THAT(job.Answer(2, ""),
              ElementsAre("10 failure rank 1: bad", "11 failure rank 1: bad",
                          "12 failure rank 1: bad"));
  EXPECT_THAT(job.Report(2, "worse"), IsEmpty());
  EXPECT_THAT(job.Break(2), IsEmpty());
}

TEST(CoordinatorStateTest, ADeathIsTheCauseOfEarlierErrors) {
  Job job(3);
  job.Start();
  job.Report(1, "a peer is gone");
  job.Answer(0, "");
  job.Answer(1, "");
  const std::vector<std::string> reported = job.Break(2);
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_THAT(reported[0],
              HasSubstr("failure rank 2: process 102 on host h died"));
}

TEST(CoordinatorStateTest, TheWaitForAnswersIsBounded) {
  Job job(3);
  job.Start();
  job.Report(1, "bad");
  job.Answer(0, "");
  job.Answer(1, "");
  EXPECT_THAT(job.Pass(1), IsEmpty());
  EXPECT_THAT(job.Pass(1.1), Contains("10 failure rank 1: bad"));
}

TEST(CoordinatorStateTest, ACoordinatorThatWasStoppedIsTheCause) {
  Job job(2);
  job.Start();
  const std::vector<std::string> reported =
      job.Lose(1, "had no sign of it for 9s");
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_EQ(reported[0],
            "10 failure rank 0: process 100 on host h, which coordinates the "
            "job, was stopped or cut off: rank 1 (process 101 on host h) had "
            "no sign of it for 9s");
}

TEST(CoordinatorStateTest, ManyMissingRanksAreARange) {
  Job job(3000);
  job.Come(0);
  std::vector<std::string> reported;
  for (int i = 0; i < 40 && reported.empty(); ++i) {
    job.Heartbeat(0, "");
    reported = job.Pass(2);
  }
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_THAT(reported[0], HasSubstr("ranks 1-2999 have not come within"));
  EXPECT_LT(reported[0].size(), 200u);
}

TEST(CoordinatorStateTest, AGoodbyeIsNoDeathAndOutlastsAFailure) {
  Job job(2);
  job.Start();
  job.Goodbye(1);
  job.Report(0, "bad");
  job.Answer(0, "");
  EXPECT_THAT(job.Answer(1, ""),
              ElementsAre("10 failure rank 0: bad", "11 failure rank 0: bad",
                          "11 dismissed"));
}

TEST(CoordinatorStateTest, LargeJobsDescribeSomeRanks) {
  Job job(100);
  job.Start();
  job.Break(99);
  std::vector<std::string> reported;
  for (int rank = 0; rank < 99; ++rank) reported = job.Answer(rank, "");
  ASSERT_EQ(reported.size(), 99u);
  EXPECT_THAT(reported[0], HasSubstr("and 68 more"));
}

}  // namespace
}  // namespace crosshatch::coordination
