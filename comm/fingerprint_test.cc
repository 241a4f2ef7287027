// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/fingerprint.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<int> kRanks = {3, 5, 9};

std::vector<Fingerprint> AllGathers() {
  Fingerprint f{.sequence = 7,
                .kind = CollectiveKind::kAllGather,
                .label = "wq",
                .send = {8},
                .recv = {8, 8, 8}};
  return {f, f, f};
}

absl::Status CheckAgreement(const std::string& group,
                            const std::vector<int>& world_ranks,
                            const std::vector<Fingerprint>& members) {
  std::vector<const Fingerprint*> pointers;
  for (const Fingerprint& member : members) pointers.push_back(&member);
  return ::crosshatch::CheckAgreement(group, world_ranks, pointers);
}

std::string Disagreement(const std::vector<Fingerprint>& members) {
  const absl::Status status =
      CheckAgreement("group 'tp' (ranks 3, 5, 9)", kRanks, members);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(Fingerprint, IsTheCollectiveWithoutItsMemory) {
  int x = 0;
  Collective c{.kind = CollectiveKind::kAllToAll,
               .dtype = kInt32,
               .root = 1,
               .label = "ids"};
  c.send = {{{.data = &x, .run_elems = 2, .runs = 3, .stride_elems = 2},
             {.data = &x, .run_elems = 1}},
            {}};
  c.recv = {{}, {{.data = &x, .run_elems = 4}}};
  Fingerprint f;
  f.send = {1, 2, 3};
  f.Assign(c, 12);
  EXPECT_EQ(f.sequence, 12);
  EXPECT_EQ(f.kind, CollectiveKind::kAllToAll);
  EXPECT_THAT(f.send, testing::ElementsAre(7, 0));
  EXPECT_THAT(f.recv, testing::ElementsAre(0, 4));
  EXPECT_EQ(Describe(f), "all_to_all #12 'ids' (i32)");
}

TEST(Fingerprint, DescribesWhatMattersForTheKind) {
  Fingerprint f{.kind = CollectiveKind::kAllReduce, .label = "g"};
  EXPECT_EQ(Describe(f), "all_reduce #0 'g' (f32, sum)");
  f.scale = 0.25;
  EXPECT_EQ(Describe(f), "all_reduce #0 'g' (f32, sum times 0.25)");
  f.kind = CollectiveKind::kBroadcast;
  f.root = 2;
  EXPECT_EQ(Describe(f), "broadcast #0 'g' (f32, root 2)");
  f.kind = CollectiveKind::kBarrier;
  EXPECT_EQ(Describe(f), "barrier #0 'g'");
  f.about = std::make_shared<const std::string>("of a.weight");
  EXPECT_EQ(Describe(f), "barrier #0 'g'") << "a report of a death";
}

TEST(CheckAgreement, AcceptsEqualOnes) {
  EXPECT_TRUE(CheckAgreement("g", kRanks, AllGathers()).ok());
}

TEST(CheckAgreement, NamesTheRanksOfEachValue) {
  std::vector<Fingerprint> members = AllGathers();
  members[1].dtype = kBFloat16;
  members[1].label = "wk";
  EXPECT_EQ(Disagreement(members),
            "ranks of group 'tp' (ranks 3, 5, 9) disagree:\n"
            "  label: 'wq' on ranks 3, 9; 'wk' on rank 5\n"
            "  dtype: f32 on ranks 3, 9; bf16 on rank 5\n"
            "  rank 3 issued all_gather #7 'wq' (f32), sends [8], receives "
            "[8, 8, 8]\n"
            "  rank 5 issued all_gather #7 'wk' (bf16), sends [8], receives "
            "[8, 8, 8]\n"
            "  rank 9 issued all_gather #7 'wq' (f32), sends [8], receives "
            "[8, 8, 8]");
}

TEST(CheckAgreement, ComparesEveryField) {
  const auto with = [](auto change) {
    std::vector<Fingerprint> members = AllGathers();
    change(members[2]);
    return Disagreement(members);
  };
  EXPECT_THAT(with([](Fingerprint& f) { f.sequence = 8; }),
              HasSubstr("sequence number: #7 on ranks 3, 5; #8 on rank 9"));
  EXPECT_THAT(with([](Fingerprint& f) { f.kind = CollectiveKind::kBarrier; }),
              HasSubstr("kind: all_gather on ranks 3, 5; barrier on rank 9"));
  EXPECT_THAT(with([](Fingerprint& f) { f.reduce_op = ReduceOp::kMin; }),
              HasSubstr("reduce op: sum on ranks 3, 5; min on rank 9"));
  EXPECT_THAT(with([](Fingerprint& f) { f.scale = 1 + 0x1p-52; }),
              HasSubstr("scale: 1 on ranks 3, 5; 1.0000000000000002 on"));
  EXPECT_THAT(with([](Fingerprint& f) { f.root = 2; }),
              HasSubstr("root: 0 on ranks 3, 5; 2 on rank 9"));
}

TEST(CheckAgreement, ComparesTheCountsOfAnAllGatherPairwise) {
  std::vector<Fingerprint> members = AllGathers();
  for (Fingerprint& f : members) f.recv = {8, 4, 0};
  members[1].send = {4};
  members[2].send = {0};
  EXPECT_TRUE(CheckAgreement("g", kRanks, members).ok()) << "uneven is fine";
  members[0].recv[1] = 5;
  EXPECT_THAT(
      Disagreement(members),
      HasSubstr("count: rank 5 sends 4 elements to rank 3, which expects 5"));
  EXPECT_THAT(Disagreement(members), Not(HasSubstr("label")));
}

TEST(CheckAgreement, ComparesTheCountsOfAReduceScatter) {
  std::vector<Fingerprint> members = AllGathers();
  for (Fingerprint& f : members) {
    f.kind = CollectiveKind::kReduceScatter;
    f.send = {3, 2, 1};
  }
  members[0].recv = {3};
  members[1].recv = {2};
  members[2].recv = {1};
  EXPECT_TRUE(CheckAgreement("g", kRanks, members).ok());
  members[2].send = {4, 2, 1};
  EXPECT_THAT(
      Disagreement(members),
      HasSubstr("count: rank 9 sends 4 elements to rank 3, which expects 3"));
}

TEST(CheckAgreement, ComparesTheCountsOfAnAllReduce) {
  std::vector<Fingerprint> members = AllGathers();
  for (Fingerprint& f : members) {
    f.kind = CollectiveKind::kAllReduce;
    f.recv = {8};
  }
  EXPECT_TRUE(CheckAgreement("g", kRanks, members).ok());
  members[1].send = members[1].recv = {9};
  EXPECT_THAT(Disagreement(members), HasSubstr("sends 9 elements to rank 3"));
}

TEST(CheckAgreement, ComparesTheCountsOfAnAllToAll) {
  std::vector<Fingerprint> members = AllGathers();
  for (int r = 0; r < 3; ++r) {
    members[r].kind = CollectiveKind::kAllToAll;
    members[r].send = {r + 0, r + 1, r + 2};
    members[r].recv = {r + 0, r + 1, r + 2};
  }
  EXPECT_TRUE(CheckAgreement("g", kRanks, members).ok());
  members[2].recv[0] = 5;
  EXPECT_THAT(
      Disagreement(members),
      HasSubstr("count: rank 3 sends 2 elements to rank 9, which expects 5"));
}

TEST(CheckAgreement, LeavesOutTheRootsOwnListOfABroadcast) {
  std::vector<Fingerprint> members = AllGathers();
  for (Fingerprint& f : members) {
    f.kind = CollectiveKind::kBroadcast;
    f.root = 1;
    f.send.clear();
    f.recv = {8};
  }
  members[1].send = {8};
  members[1].recv.clear();
  EXPECT_TRUE(CheckAgreement("g", kRanks, members).ok());
  members[2].recv = {7};
  EXPECT_THAT(
      Disagreement(members),
      HasSubstr("count: rank 5 sends 8 elements to rank 9, which expects 7"));
}

TEST(CheckAgreement, ComparesWhatIsGathered) {
  std::vector<Fingerprint> members(
      3, {.sequence = -1, .label = "exchange 'sizes'"});
  EXPECT_TRUE(CheckAgreement("g", kRanks, members).ok());
  members[2].label = "exchange 'shapes'";
  EXPECT_EQ(Disagreement(members),
            "ranks of group 'tp' (ranks 3, 5, 9) disagree: rank 3 came to "
            "exchange 'sizes', rank 9 to exchange 'shapes'");
}

TEST(CheckAgreement, StopsAfterAFewCounts) {
  std::vector<Fingerprint> members(20);
  std::vector<int> ranks(20);
  for (int r = 0; r < 20; ++r) {
    ranks[r] = r;
    members[r].kind = CollectiveKind::kAllReduce;
    members[r].send = members[r].recv = {r};
  }
  const absl::Status status = CheckAgreement("g", ranks, members);
  EXPECT_LT(status.message().size(), 2000u) << status;
}

TEST(DescribeArrivals, NamesWhoCameToWhatAndWhoDidNotCome) {
  std::vector<Fingerprint> members = AllGathers();
  EXPECT_EQ(DescribeArrivals(kRanks, {&members[0], nullptr, &members[2]}),
            "rank 3 came to all_gather #7 'wq' (f32), rank 9 came to "
            "all_gather #7 'wq' (f32), rank 5 did not come");
}

TEST(DescribeArrivals, PrintsOnceWhatCollectivesAreAbout) {
  std::vector<Fingerprint> members = AllGathers();
  for (Fingerprint& f : members) {
    f.about = std::make_shared<const std::string>("of a.weight");
  }
  EXPECT_EQ(DescribeArrivals(kRanks, {&members[0], nullptr, &members[2]}),
            "rank 3 came to all_gather #7 'wq' (f32) [of a.weight], rank 9 "
            "came to all_gather #7 'wq' (f32), rank 5 did not come");
  members[2].label = "wk";
  members[2].about = std::make_shared<const std::string>("of b.weight");
  EXPECT_THAT(
      Disagreement(members),
      testing::AllOf(HasSubstr("rank 3 issued all_gather #7 'wq' (f32) [of "
                               "a.weight], sends"),
                     HasSubstr("rank 5 issued all_gather #7 'wq' (f32), sends"),
                     HasSubstr("rank 9 issued all_gather #7 'wk' (f32) [of "
                               "b.weight], sends")));
}

TEST(DescribeArrivals, OfALargeGroupNamesAFew) {
  const Fingerprint barrier = {.label = "b"};
  std::vector<int> ranks(3000);
  std::vector<const Fingerprint*> came(3000);
  for (int r = 0; r < 3000; ++r) {
    ranks[r] = r;
    if (r < 20) came[r] = &barrier;
  }
  const std::string text = DescribeArrivals(ranks, came);
  EXPECT_THAT(text, HasSubstr("rank 7 came to barrier #0 'b', ranks 8-19 came, "
                              "too, ranks 20-2999 did not come"));
}

}  // namespace
}  // namespace crosshatch
