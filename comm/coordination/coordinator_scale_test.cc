// SPDX-License-Identifier: Apache-2.0
//
// The coordinator of jobs with many simulated ranks.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "crosshatch/comm/coordination/coordinator_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::coordination {
namespace {

using ::testing::ElementsAre;

constexpr char kToken[] = "token";

Member MemberOf(int rank, int size) {
  Member member;
  member.set_rank(rank);
  member.set_size(size);
  member.set_host("node" + std::to_string(rank / 8));
  member.set_pid(100000 + rank);
  member.set_program("build 1");
  member.set_machine(member.host());
  return member;
}

/// Message counts and bytes.
struct Traffic {
  int64_t in = 0;
  int64_t out = 0;
  int64_t bytes_out = 0;
  int64_t largest_out = 0;
};

/// A job of many idle ranks, which only send messages to the coordinator.
class LargeJob {
 public:
  explicit LargeJob(int size)
      : size_(size), state_(MemberOf(0, size), kToken, {}, now_) {}

  Traffic Start() {
    return Everybody([](int rank, int size) {
      ClientMessage message;
      message.mutable_registration()->set_token(kToken);
      *message.mutable_registration()->mutable_member() = MemberOf(rank, size);
      return message;
    });
  }
  Traffic Heartbeats() {
    now_ += CoordinationTimes().interval();
    Traffic traffic = Everybody([](int, int) {
      ClientMessage message;
      message.set_heartbeat(kActivity);
      return message;
    });
    Count(state_.OnTick(now_), traffic);
    return traffic;
  }
  Traffic LoseOne() {
    const int lost = size_ / 2;
    Traffic traffic;
    Count(state_.OnBroken(lost, now_), traffic);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == lost) continue;
      ClientMessage message;
      message.set_activity(kActivity);
      ++traffic.in;
      Count(state_.OnMessage(rank, message, now_), traffic);
    }
    return traffic;
  }
  Traffic End() {
    return Everybody([](int, int) {
      ClientMessage message;
      message.mutable_goodbye();
      return message;
    });
  }
  const CoordinatorState& state() const { return state_; }

 private:
  static constexpr char kActivity[] =
      "its last collective is all_gather #123456 'layers.31.feed_forward' (f32)"
      " of group 'fsdp' (ranks 0, 8, 16, 24), which it came to 12s ago";

  Traffic Everybody(
      const std::function<ClientMessage(int rank, int size)>& message_of) {
    Traffic traffic;
    for (int rank = 0; rank < size_; ++rank) {
      ++traffic.in;
      Count(state_.OnMessage(rank, message_of(rank, size_), now_), traffic);
    }
    return traffic;
  }
  static void Count(const CoordinatorState::Actions& actions,
                    Traffic& traffic) {
    for (const auto& [to, message] : actions.send) {
      const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
      const auto count = static_cast<int64_t>(to.size());
      traffic.out += count;
      traffic.bytes_out += count * bytes;
      traffic.largest_out = std::max(traffic.largest_out, bytes);
    }
  }

  const int size_;
  absl::Time now_ = absl::UnixEpoch();
  CoordinatorState state_;
};

// The coordinator's numbers in docs/scale.md.
TEST(CoordinatorScaleTest, MessagesGrowInProportionToTheRanks) {
  std::printf("%6s %14s %6s %6s %11s %8s\n", "ranks", "", "in", "out",
              "bytes out", "largest");
  for (const int64_t n : {64, 1024, 16384}) {
    LargeJob job(static_cast<int>(n));
    LargeJob quiet(static_cast<int>(n));
    const Traffic start = job.Start();
    const Traffic heartbeats = job.Heartbeats();
    const Traffic loss = job.LoseOne();
    quiet.Start();
    const Traffic end = quiet.End();
    const std::pair<const char*, const Traffic*> lines[] = {
        {"start", &start},
        {"heartbeats", &heartbeats},
        {"a loss", &loss},
        {"end", &end}};
    for (const auto& [name, traffic] : lines) {
      std::printf("%6lld %14s %6lld %6lld %11lld %8lld\n",
                  static_cast<long long>(n), name,
                  static_cast<long long>(traffic->in),
                  static_cast<long long>(traffic->out),
                  static_cast<long long>(traffic->bytes_out),
                  static_cast<long long>(traffic->largest_out));
    }
    EXPECT_EQ(start.in, n);
    EXPECT_EQ(start.out, 2 * n) << "that it is registered and the start";
    EXPECT_LE(start.largest_out, 200);
    EXPECT_EQ(heartbeats.in, n);
    EXPECT_EQ(heartbeats.out, n);
    EXPECT_EQ(loss.in, n - 1);
    EXPECT_EQ(loss.out, 2 * (n - 1)) << "the query and the failure";
    EXPECT_LE(loss.largest_out, 8192);
    EXPECT_EQ(end.in, n);
    EXPECT_EQ(end.out, n);
    EXPECT_LE(end.largest_out, 20);
    ASSERT_TRUE(job.state().failure().has_value());
    EXPECT_THAT(job.state().failure()->world_ranks, ElementsAre(n / 2));
    EXPECT_TRUE(quiet.state().is_over());
  }
}

}  // namespace
}  // namespace crosshatch::coordination
