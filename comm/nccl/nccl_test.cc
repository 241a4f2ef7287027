// SPDX-License-Identifier: Apache-2.0

/// \file
/// Tests of NCCL that the conformance suite does not contain.

#include "crosshatch/emulation/nccl.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crosshatch/base/process.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "crosshatch/comm/nccl/nccl_data_planes.h"
#include "crosshatch/comm/nccl/run_nccl_testutil.h"
#include "crosshatch/comm/on_cuda_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int64_t kCount = 257;

// Returns numbers whose sum depends on the order of additions.
std::vector<float> NumbersOf(int rank) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < kCount; ++i) {
    const auto mixed = static_cast<float>((i * 7919 + rank * 104729) % 9973);
    numbers.push_back((mixed - 5000.0f) * (rank == 1 ? 1e4f : 1e-2f));
  }
  return numbers;
}

// Sums over all ranks. Rank 0 stores the result in `sum`.
absl::Status SumUp(World& world, std::vector<float>& sum) {
  CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "comm"));
  RankContext& context = world.context();
  const std::vector<float> numbers = NumbersOf(world.rank());
  const Tensor x = FromValues<float>({kCount}, absl::MakeConstSpan(numbers));
  Stream& stream = context.SideStream("comm");
  stream.Wait(context.compute_stream().Record());
  CH_RETURN_IF_ERROR(AllReduce(*all, x.raw_data(), kCount, kFloat32,
                               ReduceOp::kSum, stream, "sum"));
  context.compute_stream().Wait(stream.Record());
  const std::vector<float> values = x.ToVector<float>();
  if (world.rank() == 0) sum = values;
  return context.Synchronize();
}

TEST(NcclEngineTest, DeterministicSumsHaveTheBitsOfLocal) {
  std::vector<float> expected, in_order, fast;
  ASSERT_TRUE(RunLocal(kRanks, [&](World& world) {
                return SumUp(world, expected);
              }).ok());
  const auto run = [&](const NcclOptions& nccl, std::vector<float>& sum) {
    const absl::Status status = RunNccl(kRanks,
                                        [&](World& world) {
                                          EXPECT_EQ(world.engine(), "nccl");
                                          return SumUp(world, sum);
                                        },
                                        {.nccl = nccl});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(sum.size(), expected.size());
  };
  run({.deterministic = true, .least_collective_bytes = 0}, in_order);
  run({.least_collective_bytes = 0}, fast);
  ASSERT_EQ(in_order.size(), expected.size());
  EXPECT_EQ(
      std::memcmp(in_order.data(), expected.data(), kCount * sizeof(float)), 0);
  EXPECT_NE(fast, expected) << "in the order of a ring";
}

// Issues a collective and waits for the device's queue.
absl::Status ReduceAndWait(World& world) {
  CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "comm"));
  Stream& stream = world.context().SideStream("comm");
  const Tensor x = Zeros({kCount});
  for (int step = 0; step < 3; ++step) {
    CH_RETURN_IF_ERROR(AllReduce(*all, x.raw_data(), kCount, kFloat32,
                                 ReduceOp::kSum, stream, "layer"));
  }
  return world.context().Synchronize();
}

constexpr NcclOptions kCollectives = {.least_collective_bytes = 0};

// The timeout of jobs that must run into it. Long enough that ranks of a busy
// machine arrive in time.
constexpr absl::Duration kShortTimeout = absl::Seconds(1);

TEST(NcclEngineTest, NamesTheCollectiveInWhichADeviceHangs) {
  emulation::StopNcclRank(1, /*after=*/1);
  const absl::Status status =
      RunNccl(2, ReduceAndWait,
              {.nccl = kCollectives, .job = {.timeout = kShortTimeout}});
  emulation::StopNcclRank(-1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  for (const char* said :
       {"group 'all' (ranks 0, 1) timed out after 1s", "all_reduce #1",
        "'layer'", "all ranks have issued it", "up to all_reduce #2"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
  EXPECT_TRUE(RunNccl(2, ReduceAndWait).ok()) << "a new job";
}

// The unwritten result must not cause an index error that hides the hang.
TEST(NcclEngineTest, WhatComesOfAHungCollectiveHidesItNot) {
  emulation::StopNcclRank(1, /*after=*/1);
  const absl::Status status =
      RunNccl(2,
              [](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(
                    auto all, world.Group("all", world.AllRanks(), "comm"));
                RankContext& context = world.context();
                Stream& stream = context.SideStream("comm");
                const Tensor table = Zeros({4, 2});
                const Tensor ids = Full({3}, 99, kInt64);
                stream.Wait(context.compute_stream().Record());
                CH_RETURN_IF_ERROR(Barrier(*all, stream, "first"));
                CH_RETURN_IF_ERROR(Broadcast(*all, ids.raw_data(), 3, kInt64,
                                             /*root=*/0, stream, "ids"));
                context.compute_stream().Wait(stream.Record());
                IndexSelect(table, 0, ids);
                return context.Synchronize();
              },
              {.nccl = kCollectives, .job = {.timeout = kShortTimeout}});
  emulation::StopNcclRank(-1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  for (const char* said : {"broadcast #1", "'ids'"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
}

// The coordination service queries each rank when a job fails.
TEST(NcclEngineTest, EveryRankSaysWhatItsDeviceHasDone) {
  internal::CoordinatorForTest channels(2);
  std::vector<std::string> said(2);
  emulation::StopNcclRank(1, /*after=*/1);
  const absl::Status status =
      RunNccl(2,
              [&](World& world) {
                const absl::Status end = ReduceAndWait(world);
                const auto rank = static_cast<size_t>(world.rank());
                said[rank] = channels[world.rank()].Query();
                return end;
              },
              {.nccl = kCollectives,
               .job = {.timeout = kShortTimeout},
               .channels = {&channels[0], &channels[1]}});
  emulation::StopNcclRank(-1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  for (const std::string& text : said) {
    EXPECT_THAT(text,
                HasSubstr("; its device has done all_reduce #0 'layer', and "
                          "not all_reduce #1 'layer', all_reduce #2 'layer' of "
                          "group 'all' (ranks 0, 1)"));
  }
}

// 2 x 2 ranks: each has a handle of the world's communicator, of its axes, and
// of those for streams.
TEST(NcclEngineTest, SplitsACommunicatorByAxes) {
  const emulation::NcclCounts before = emulation::CountsOfNccl();
  const absl::Status status = RunNccl(4, [](World& world) -> absl::Status {
    const int row = world.rank() / 2;
    const int column = world.rank() % 2;
    const std::vector<std::vector<int>> groups = {{column, column + 2},
                                                  {2 * row, 2 * row + 1}};
    CH_ASSIGN_OR_RETURN(auto all,
                        world.Group("world", world.AllRanks(), "mesh"));
    CH_RETURN_IF_ERROR(world.Split(*all, groups));
    for (const char* name : {"a", "b"}) {
      Stream& stream = world.context().SideStream(name);
      stream.Wait(world.context().compute_stream().Record());
      for (const std::vector<int>& ranks : groups) {
        CH_ASSIGN_OR_RETURN(auto group, world.Group("axis", ranks, name));
        const Tensor x = Full({1}, 1 + world.rank());
        stream.Wait(world.context().compute_stream().Record());
        CH_RETURN_IF_ERROR(AllReduce(*group, x.raw_data(), 1, kFloat32,
                                     ReduceOp::kSum, stream, "sum"));
        world.context().compute_stream().Wait(stream.Record());
        EXPECT_EQ(x.ToVector<float>()[0],
                  static_cast<float>(2 + ranks[0] + ranks[1]));
      }
    }
    return world.context().Synchronize();
  });
  EXPECT_TRUE(status.ok()) << status;
  const emulation::NcclCounts after = emulation::CountsOfNccl();
  EXPECT_EQ(after.of_ids - before.of_ids, 4);
  EXPECT_EQ(after.of_splits - before.of_splits, 4 * (2 + 2 * 2));
}

TEST(NcclEngineTest, ADryRunAccountsForWhatIsSummed) {
  constexpr int kMembers = 3;
  const auto sums = [](World& world) -> absl::StatusOr<MemoryStats> {
    CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "comm"));
    Stream& stream = world.context().SideStream("comm");
    const Tensor x = Zeros({10 * kCount});
    CH_RETURN_IF_ERROR(AllReduce(*all, x.raw_data(), 10 * kCount, kFloat32,
                                 ReduceOp::kSum, stream, "all"));
    // A dry run has no addresses.
    const auto at = [data = static_cast<float*>(x.raw_data())](int64_t i) {
      return data == nullptr ? nullptr : data + i;
    };
    Collective c{.kind = CollectiveKind::kReduceScatter, .label = "shards"};
    for (int r = 0; r < kMembers; ++r) {
      // Different sizes: 257, 258 and 259 elements.
      c.send.push_back({{.data = at(r * 300), .run_elems = kCount + r}});
    }
    c.recv = {{{.data = at(1000), .run_elems = kCount + world.rank()}}};
    CH_RETURN_IF_ERROR(all->Issue(c, stream));
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    return world.context().device_allocator().stats();
  };
  const auto peak = [](const MemoryStats& stats) {
    return stats.peak[static_cast<size_t>(MemoryClass::kCommunication)];
  };
  std::vector<int64_t> peaks_in_order;
  for (const bool deterministic : {true, false}) {
    const NcclOptions nccl = {.deterministic = deterministic,
                              .least_collective_bytes = 0};
    std::vector<int64_t> real(kMembers);
    const absl::Status status =
        RunNccl(kMembers,
                [&](World& world) -> absl::Status {
                  CH_ASSIGN_OR_RETURN(const MemoryStats stats, sums(world));
                  real[static_cast<size_t>(world.rank())] = peak(stats);
                  return absl::OkStatus();
                },
                {.nccl = nccl});
    EXPECT_TRUE(status.ok()) << status;
    for (int rank = 0; rank < kMembers; ++rank) {
      const absl::Status dry_run =
          RunFake({.world_size = kMembers, .rank = rank, .nccl = nccl},
                  [&](World& world) -> absl::Status {
                    CH_ASSIGN_OR_RETURN(const MemoryStats stats, sums(world));
                    EXPECT_EQ(peak(stats), real[static_cast<size_t>(rank)])
                        << "rank " << rank;
                    return absl::OkStatus();
                  });
      EXPECT_TRUE(dry_run.ok()) << dry_run;
    }
    peaks_in_order.push_back(real[0]);
  }
  EXPECT_GT(peaks_in_order[0], peaks_in_order[1]);
}

TEST(NcclEngineTest, RanksOfNoGroupTakePartInASplit) {
  const absl::Status status = RunNccl(
      3,
      [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto all,
                            world.Group("world", world.AllRanks(), "mesh"));
        const bool is_on = world.rank() != 1;
        std::vector<std::vector<int>> groups(2);
        if (is_on) groups = {{world.rank()}, {0, 2}};
        CH_RETURN_IF_ERROR(world.Split(*all, groups));
        if (!is_on) return absl::OkStatus();
        Stream& stream = world.context().SideStream("comm");
        CH_ASSIGN_OR_RETURN(auto group, world.Group("axis", {0, 2}, "comm"));
        CH_RETURN_IF_ERROR(Barrier(*group, stream, "b"));
        return world.context().Synchronize();
      },
      {.job = {.timeout = absl::Seconds(10)}});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(NcclEngineTest, ADivisionThatFailsLeavesNothingBehind) {
  const absl::Status status =
      RunNccl(2,
              [](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(
                    auto all, world.Group("world", world.AllRanks(), "comm"));
                const absl::Status divided = world.Split(*all, {{0, 1}});
                EXPECT_EQ(divided.code(), absl::StatusCode::kInvalidArgument)
                    << divided;
                Stream& stream = world.context().SideStream("comm");
                CH_RETURN_IF_ERROR(Barrier(*all, stream, "after"));
                return world.context().Synchronize();
              },
              {.devices = 1});
  EXPECT_THAT(std::string(status.message()), HasSubstr("are both on GPU 0"));
}

TEST(NcclEngineTest, AbortsWhatItSplitsWhenTheJobFails) {
  const auto divide_and = [](absl::Status end) {
    return RunNccl(4, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(auto all,
                          world.Group("world", world.AllRanks(), "mesh"));
      const int row = world.rank() / 2;
      CH_RETURN_IF_ERROR(world.Split(*all, {{2 * row, 2 * row + 1}}));
      CH_RETURN_IF_ERROR(all->Exchange("", "divided").status());
      return world.rank() == 1 ? end : absl::OkStatus();
    });
  };
  const emulation::NcclCounts before = emulation::CountsOfNccl();
  const auto expect_ends = [&](int64_t destroyed) {
    EXPECT_EQ(emulation::CountsOfNccl().destroyed - before.destroyed,
              destroyed);
    EXPECT_EQ(emulation::CountsOfNccl().open, before.open);
  };
  EXPECT_TRUE(divide_and(absl::OkStatus()).ok());
  expect_ends(4 * 2);
  EXPECT_FALSE(divide_and(absl::InternalError("out of luck")).ok());
  expect_ends(4 * 2);
}

TEST(NcclEngineTest, WhatFailsAfterTheJobIsAborted) {
  const emulation::NcclCounts before = emulation::CountsOfNccl();
  EXPECT_TRUE(RunNccl(2, [](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(
                    auto all, world.Group("all", world.AllRanks(), "comm"));
                CH_RETURN_IF_ERROR(world.Split(*all, {}));
                CH_RETURN_IF_ERROR(all->Exchange("", "divided").status());
                // Unused communicators are not watched.
                if (world.rank() == 0) emulation::FailNccl(ncclRemoteError);
                return all->Exchange("", "failed").status();
              }).ok());
  const emulation::NcclCounts after = emulation::CountsOfNccl();
  EXPECT_EQ(after.of_ids - before.of_ids, 2);
  EXPECT_EQ(after.destroyed, before.destroyed);
  EXPECT_EQ(after.open, before.open);
}

TEST(NcclEngineTest, NamesRanksThatShareADevice) {
  const absl::Status status = RunNccl(3, ReduceAndWait, {.devices = 2});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const char* said :
       {"group 'all' (ranks 0, 1, 2): ranks 0 and 2 are both on GPU 0 of host ",
        "one rank on a GPU", "LOCAL_RANK"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
}

// Machines with the same image may have the same host name and the same device
// addresses.
TEST(NcclEngineTest, HostsOfOneNameShareNoDevice) {
  const absl::Status status = RunNccl(1, [](World& world) -> absl::Status {
    const std::string machine = ThisMachine();
    const std::string id = machine.substr(machine.find('\n'));
    const auto tell = [&](std::string mine) {
      std::string others = mine;
      const size_t at = others.find(id);
      if (at != std::string::npos)
        others[at + 1] = mine[at + 1] == '0' ? '1' : '0';
      return absl::StatusOr<std::vector<std::string>>({mine, others});
    };
    const auto planes = MakeNcclDataPlanes({});
    // The other rank never joins.
    const absl::Status divided = planes->Split({0, 1}, {}, world.context(),
                                               absl::Milliseconds(100), tell);
    EXPECT_EQ(divided.code(), absl::StatusCode::kDeadlineExceeded) << divided;
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// Later versions allow ranks to share a device if configured.
TEST(NcclEngineTest, RanksShareADeviceWhereNcclLetsThem) {
  emulation::SetNcclVersion(23004);
  EXPECT_EQ(RunNccl(4, ReduceAndWait, {.devices = 1}).code(),
            absl::StatusCode::kInvalidArgument);
  constexpr std::pair<const char*, const char*> kVariables[] = {
      {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
      {"CUDA_MODULE_LOADING", "EAGER"},
      {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}};
  for (const auto& [name, value] : kVariables) {
    const absl::Status status = RunNccl(4, ReduceAndWait, {.devices = 1});
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(name) + "=" + value));
    ASSERT_EQ(setenv(name, value, /*replace=*/1), 0);
  }
  for (const bool deterministic : {true, false}) {
    const absl::Status status = RunNccl(
        4, ReduceAndWait,
        {.nccl = {.deterministic = deterministic, .least_collective_bytes = 0},
         .devices = 1});
    EXPECT_TRUE(status.ok()) << status;
  }
  emulation::SetNcclVersion(22809);
  EXPECT_EQ(RunNccl(4, ReduceAndWait, {.devices = 1}).code(),
            absl::StatusCode::kInvalidArgument);
  for (const auto& [name, value] : kVariables) ASSERT_EQ(unsetenv(name), 0);
}

// The sum exceeds 16 bits before it is scaled.
TEST(NcclEngineTest, ScalesSumsThatTheDTypeDoesNotHold) {
  const absl::Status status =
      RunNccl(4,
              [](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(
                    auto all, world.Group("all", world.AllRanks(), "comm"));
                RankContext& context = world.context();
                Stream& stream = context.SideStream("comm");
                const Tensor x = Full({5}, 20000, kFloat16);
                stream.Wait(context.compute_stream().Record());
                Collective c{.kind = CollectiveKind::kAllReduce,
                             .dtype = kFloat16,
                             .scale = 0.25,
                             .label = "sum"};
                c.send = c.recv = {{{.data = x.raw_data(), .run_elems = 5}}};
                CH_RETURN_IF_ERROR(all->Issue(c, stream));
                context.compute_stream().Wait(stream.Record());
                EXPECT_EQ(ToDType(x, kFloat32).ToVector<float>(),
                          std::vector<float>(5, 20000));
                return context.Synchronize();
              },
              {.nccl = kCollectives});
  EXPECT_TRUE(status.ok()) << status;
}

// NCCL's own collectives do not scale.
TEST(NcclEngineTest, ScalesWhatNcclSums) {
  constexpr int kMembers = 4;
  const absl::Status status = RunNccl(
      kMembers,
      [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto all,
                            world.Group("all", world.AllRanks(), "comm"));
        RankContext& context = world.context();
        Stream& stream = context.SideStream("comm");
        const Tensor summands = Full({kMembers * 3}, 1 + world.rank());
        const Tensor shard = Zeros({3});
        stream.Wait(context.compute_stream().Record());
        const auto at = [](const Tensor& x, int64_t begin, int64_t count) {
          return SegmentList{{.data = static_cast<float*>(x.raw_data()) + begin,
                              .run_elems = count}};
        };
        Collective scatter{.kind = CollectiveKind::kReduceScatter,
                           .scale = 0.25,
                           .label = "scatter"};
        for (int r = 0; r < kMembers; ++r) {
          scatter.send.push_back(at(summands, 3 * r, 3));
        }
        scatter.recv = {at(shard, 0, 3)};
        CH_RETURN_IF_ERROR(all->Issue(scatter, stream));
        Collective sum{
            .kind = CollectiveKind::kAllReduce, .scale = 0.5, .label = "sum"};
        sum.send = sum.recv = {at(summands, 0, kMembers * 3)};
        CH_RETURN_IF_ERROR(all->Issue(sum, stream));
        context.compute_stream().Wait(stream.Record());
        EXPECT_EQ(shard.ToVector<float>(), std::vector<float>(3, 2.5f));
        EXPECT_EQ(summands.ToVector<float>(),
                  std::vector<float>(kMembers * 3, 5));
        return context.Synchronize();
      },
      {.nccl = kCollectives});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(NcclEngineTest, NamesAGroupWhoseCommunicatorIsNotMade) {
  emulation::StopNcclRank(1, /*after=*/-1);
  const absl::Status status =
      RunNccl(2, ReduceAndWait, {.job = {.timeout = kShortTimeout}});
  emulation::StopNcclRank(-1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("NCCL in group 'all' (ranks 0, 1) is in progress for "
                        "more than 1s"));
}

TEST(NcclEngineTest, GivesUpACommunicatorWhenTheJobFails) {
  // World rank 1 waits for world rank 2, the second member of their group.
  emulation::StopNcclRank(1, /*after=*/-1);
  const absl::Status status = RunNccl(
      3,
      [](World& world) -> absl::Status {
        Stream& stream = world.context().SideStream("comm");
        if (world.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          return absl::InternalError("out of luck");
        }
        CH_ASSIGN_OR_RETURN(auto pair, world.Group("pair", {1, 2}, "comm"));
        return Barrier(*pair, stream, "b");
      },
      {.job = {.timeout = absl::Minutes(5)}});
  emulation::StopNcclRank(-1);
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of luck"));
}

TEST(NcclEngineTest, SaysWhatNcclFindsLater) {
  const absl::Status status =
      RunNccl(2,
              [](World& world) -> absl::Status {
                CH_RETURN_IF_ERROR(ReduceAndWait(world));
                if (world.rank() == 0) emulation::FailNccl(ncclRemoteError);
                while (!world.context().poisoned()) {
                }
                return world.context().status();
              },
              {.nccl = kCollectives});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("NCCL in group 'all' (ranks 0, 1): remote process "
                        "exited or there was a network error"));
  EXPECT_TRUE(RunNccl(2, ReduceAndWait).ok()) << "a new job";
}

}  // namespace
}  // namespace crosshatch
