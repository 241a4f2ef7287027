// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/note.h"

#include <cstring>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

TEST(NoteTest, AFingerprintComesBack) {
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
  std::string note;
  StartNote({.kind = NoteKind::kMeet, .meeting = 5}, note);
  AppendFingerprint(f, note);
  std::memcpy(AppendData(3, note), "abc", 3);

  const NoteHeader header = HeaderOf(note);
  EXPECT_EQ(header.meeting, 5);
  EXPECT_EQ(header.data_bytes, 3);
  EXPECT_EQ(header.data_at % 16, 0);
  EXPECT_EQ(note.substr(static_cast<size_t>(header.data_at)), "abc");
  Fingerprint got;
  got.send = {9, 9};
  ReadFingerprint(note, got);
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
  StartNote({}, note);
  AppendFingerprint(f, note);
  ReadFingerprint(note, got);
  EXPECT_EQ(got.about, nullptr);
}

TEST(NoteTest, EqualCountsCostAsMuchAsOne) {
  Fingerprint few, many;
  few.send.assign(1, 4096);
  many.send.assign(10000, 4096);
  std::string a, b;
  AppendFingerprint(few, a);
  AppendFingerprint(many, b);
  EXPECT_EQ(a.size(), b.size());
}

TEST(NoteTest, AFailureComesBack) {
  const FailureNotice failure = {.world_ranks = {0, 2},
                                 .of_group = true,
                                 .cut_off = true,
                                 .error = absl::UnavailableError("cable cut")};
  std::string note;
  StartNote({.kind = NoteKind::kFailure}, note);
  AppendFailure(failure, note);
  const FailureNotice got = ReadFailure(note);
  EXPECT_EQ(got.error, failure.error);
  EXPECT_EQ(got.of_group, failure.of_group);
  EXPECT_EQ(got.process_lost, failure.process_lost);
  EXPECT_EQ(got.cut_off, failure.cut_off);
  EXPECT_EQ(got.world_ranks, failure.world_ranks);
}

TEST(NoteDeathTest, ANoteThatIsCutShortStops) {
  std::string note;
  StartNote({}, note);
  Fingerprint f;
  f.label = "weights";
  AppendFingerprint(f, note);
  note.resize(note.size() - 5);
  Fingerprint got;
  EXPECT_DEATH(ReadFingerprint(note, got), "a message is cut short");
}

TEST(NoteTest, GroupsHaveNumbersOfTheirOwn) {
  const GroupKey key{"tp", {0, 1}, "comm"};
  EXPECT_EQ(GroupId(key), GroupId(key));
  for (const GroupKey& other :
       {GroupKey{"tq", {0, 1}, "comm"}, GroupKey{"tp", {1, 0}, "comm"},
        GroupKey{"tp", {0, 1, 2}, "comm"}, GroupKey{"tpc", {0, 1}, "omm"}}) {
    EXPECT_NE(GroupId(key), GroupId(other)) << Describe(other);
  }
}

}  // namespace
}  // namespace crosshatch::internal
