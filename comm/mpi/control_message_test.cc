// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/control_message.h"

#include <cstring>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

TEST(ControlMessageTest, AFingerprintComesBack) {
  Fingerprint f;
  f.sequence = 7;
  f.kind = CollectiveKind::kAllToAll;
  f.dtype = DType::kBFloat16;
  f.reduce_op = ReduceOp::kMax;
  f.scale = 0.3;
  f.root = 3;
  f.label.assign(5000, 'x');
  f.label.push_back('\0');
  f.about = std::make_shared<const std::string>("shape [4, 4]");
  f.send = {1, 1, 1, 2, 1, 0, 0};
  f.recv = {};
  std::string message;
  StartMessage({.kind = MessageKind::kAgree, .round = 5}, message);
  AppendFingerprint(f, message);
  std::memcpy(AppendPayload(3, message), "abc", 3);

  const MessageHeader header = HeaderOf(message);
  EXPECT_EQ(header.round, 5);
  EXPECT_EQ(header.data_bytes, 3);
  EXPECT_EQ(header.data_at % 16, 0);
  EXPECT_EQ(message.substr(static_cast<size_t>(header.data_at)), "abc");
  Fingerprint got;
  got.send = {9, 9};
  ReadFingerprint(message, got);
  EXPECT_EQ(Describe(got), Describe(f));
  EXPECT_EQ(got.sequence, f.sequence);
  EXPECT_EQ(got.reduce_op, f.reduce_op);
  EXPECT_EQ(got.scale, f.scale);
  EXPECT_EQ(got.root, f.root);
  EXPECT_EQ(got.label, f.label);
  EXPECT_EQ(*got.about, *f.about);
  EXPECT_EQ(got.send, f.send);
  EXPECT_EQ(got.recv, f.recv);

  f.about = nullptr;
  StartMessage({}, message);
  AppendFingerprint(f, message);
  ReadFingerprint(message, got);
  EXPECT_EQ(got.about, nullptr);
}

TEST(ControlMessageTest, EqualCountsCostAsMuchAsOne) {
  Fingerprint few, many;
  few.send.assign(1, 4096);
  many.send.assign(10000, 4096);
  std::string a, b;
  AppendFingerprint(few, a);
  AppendFingerprint(many, b);
  EXPECT_EQ(a.size(), b.size());
}

TEST(ControlMessageTest, AFailureComesBack) {
  const FailureNotice failure = {.world_ranks = {0, 2},
                                 .of_group = true,
                                 .cut_off = true,
                                 .error = absl::UnavailableError("cable cut")};
  std::string message;
  StartMessage({.kind = MessageKind::kFailure}, message);
  AppendFailure(failure, message);
  const FailureNotice got = ReadFailure(message);
  EXPECT_EQ(got.error, failure.error);
  EXPECT_EQ(got.of_group, failure.of_group);
  EXPECT_EQ(got.process_lost, failure.process_lost);
  EXPECT_EQ(got.cut_off, failure.cut_off);
  EXPECT_EQ(got.world_ranks, failure.world_ranks);
}

TEST(ControlMessageDeathTest, AMessageThatIsCutShortEndsTheProcess) {
  std::string message;
  StartMessage({}, message);
  Fingerprint f;
  f.label = "weights";
  AppendFingerprint(f, message);
  message.resize(message.size() - 5);
  Fingerprint got;
  EXPECT_DEATH(ReadFingerprint(message, got), "a message is cut short");
}

TEST(ControlMessageTest, GroupsHaveDifferentIds) {
  const GroupKey key{"tp", {0, 1}, "comm"};
  EXPECT_EQ(GroupId(key), GroupId(key));
  for (const GroupKey& other :
       {GroupKey{"tq", {0, 1}, "comm"}, GroupKey{"tp", {1, 0}, "comm"},
        GroupKey{"tp", {0, 1, 2}, "comm"}, GroupKey{"tpc", {0, 1}, "omm"}}) {
    EXPECT_NE(GroupId(key), GroupId(other)) << Describe(other);
  }
}

void File(Arrivals& rounds, int member, int64_t round, std::string message) {
  rounds.File(member, {.round = round}, message);
}

TEST(ArrivalsTest, OneMayBeARoundAhead) {
  Arrivals rounds(2);
  File(rounds, 0, 0, "a0");
  EXPECT_TRUE(rounds.Came(0, 0));
  EXPECT_FALSE(rounds.Came(1, 0));
  File(rounds, 1, 0, "b0");
  EXPECT_TRUE(rounds.AllCame(0));
  // Member 1 has finished round 0, this process has not.
  File(rounds, 1, 1, "b1");
  EXPECT_TRUE(rounds.AllCame(0));
  EXPECT_FALSE(rounds.AllCame(1));
  EXPECT_EQ(rounds.message(1, 0), "b0");
  rounds.Close(0);
  EXPECT_FALSE(rounds.AllCame(0));
  EXPECT_EQ(rounds.message(0, 0), "a0") << "still readable";
  File(rounds, 0, 1, "a1");
  EXPECT_TRUE(rounds.AllCame(1));
  rounds.Close(1);
  File(rounds, 0, 2, "a2");
  EXPECT_FALSE(rounds.AllCame(2));
  EXPECT_EQ(rounds.header(0, 2).round, 2);
}

TEST(ArrivalsDeathTest, NobodySkipsARound) {
  Arrivals rounds(2);
  File(rounds, 0, 0, "");
  EXPECT_DEATH(File(rounds, 0, 4, ""), "came to round 4 after 0");
  EXPECT_DEATH(File(rounds, 0, 0, ""), "came to round 0 after 0");
}

}  // namespace
}  // namespace crosshatch::internal
