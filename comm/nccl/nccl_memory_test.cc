// SPDX-License-Identifier: Apache-2.0

/// \file
/// Registration of memory with NCCL.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/nccl/run_nccl_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/emulation/nccl.h"
#include "crosshatch/tensor/creation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kCount = 257;

TEST(NcclMemoryTest, RegistersWhatItMoves) {
  const emulation::NcclCounts before = emulation::CountsOfNccl();
  const auto steps = [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "comm"));
    Stream& stream = world.context().SideStream("comm");
    const Tensor x = Zeros({kCount});
    const auto step = [&]() -> absl::Status {
      for (int64_t skipped : {0, 1, 2}) {
        CH_RETURN_IF_ERROR(
            AllReduce(*all, static_cast<float*>(x.raw_data()) + skipped,
                      kCount - skipped, kFloat32, ReduceOp::kSum, stream, "x"));
      }
      CH_RETURN_IF_ERROR(world.context().Synchronize());
      return all->Exchange("", "stepped").status();
    };
    CH_RETURN_IF_ERROR(step());
    const int64_t registered = emulation::CountsOfNccl().registrations;
    EXPECT_GT(registered, 0);
    CH_RETURN_IF_ERROR(all->Exchange("", "counted").status());
    // The same memory, or part of it.
    CH_RETURN_IF_ERROR(step());
    EXPECT_EQ(emulation::CountsOfNccl().registrations, registered);
    return all->Exchange("", "counted").status();
  };
  for (const bool deterministic : {false, true}) {
    const absl::Status status =
        RunNccl(2, steps,
                {.nccl = {.deterministic = deterministic,
                          .least_collective_bytes = 0}});
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(emulation::CountsOfNccl().unregistered, before.unregistered);
}

// A full device frees unused memory. NCCL deregisters it first, and registers
// the new memory.
TEST(NcclMemoryTest, ForgetsMemoryThatGoesBack) {
  const emulation::NcclCounts before = emulation::CountsOfNccl();
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto sums = [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "comm"));
    RankContext& context = world.context();
    Stream& stream = context.SideStream("comm");
    const auto sum = [&](int64_t count) -> absl::Status {
      const Tensor x = Full({count}, world.rank() + 1);
      stream.Wait(context.compute_stream().Record());
      CH_RETURN_IF_ERROR(AllReduce(*all, x.raw_data(), count, kFloat32,
                                   ReduceOp::kSum, stream, "x"));
      context.compute_stream().Wait(stream.Record());
      EXPECT_EQ(x.ToVector<float>(),
                std::vector<float>(static_cast<size_t>(count), 3));
      return absl::OkStatus();
    };
    // In 1024 MiB the second does not fit next to the unused first one, nor the
    // third next to the second.
    for (const int64_t mib : {640, 768, 448}) {
      CH_RETURN_IF_ERROR(sum(kCount));
      CH_RETURN_IF_ERROR(sum(3 * kCount));
      const Tensor large = Empty({mib * kMiB / SizeOf(kFloat32)});
      EXPECT_LT(context.allocator().reserved_bytes(), (mib + 1) * kMiB);
      CH_RETURN_IF_ERROR(sum(2 * kCount));
    }
    CH_RETURN_IF_ERROR(context.Synchronize());
    return all->Exchange("", "summed").status();
  };
  for (const bool deterministic : {false, true}) {
    const absl::Status status =
        RunNccl(2, sums,
                {.nccl = {.deterministic = deterministic,
                          .least_collective_bytes = 0}});
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(emulation::CountsOfNccl().unregistered, before.unregistered);
}

TEST(NcclMemoryTest, MovesMemoryOfTheHostByWayOfTheDevice) {
  const auto move = [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "comm"));
    RankContext& context = world.context();
    Stream& stream = context.SideStream("comm");
    const int64_t n = world.size();
    const HostMemoryScope host;
    const Tensor own = Full({kCount}, world.rank() + 1, kFloat32);
    const Tensor gathered = Zeros({n, kCount});
    const Tensor whole = Full({n, kCount}, world.rank() + 1, kFloat32);
    const Tensor scattered = Zeros({kCount});
    const Tensor summed = Full({kCount}, world.rank() + 1, kFloat32);
    const Tensor sent = Full({kCount}, world.rank() + 1, kFloat32);
    EXPECT_TRUE(own.device().is_cpu());
    stream.Wait(context.compute_stream().Record());
    CH_RETURN_IF_ERROR(AllGather(*all, own.raw_data(), gathered.raw_data(),
                                 kCount, kFloat32, stream, "gather"));
    CH_RETURN_IF_ERROR(ReduceScatter(*all, whole.raw_data(),
                                     scattered.raw_data(), kCount, kFloat32,
                                     ReduceOp::kSum, stream, "scatter"));
    CH_RETURN_IF_ERROR(AllReduce(*all, summed.raw_data(), kCount, kFloat32,
                                 ReduceOp::kSum, stream, "sum"));
    CH_RETURN_IF_ERROR(Broadcast(*all, sent.raw_data(), kCount, kFloat32,
                                 /*root=*/1, stream, "send"));
    context.compute_stream().Wait(stream.Record());
    std::vector<float> of_ranks;
    for (int64_t r = 0; r < n; ++r) {
      of_ranks.insert(of_ranks.end(), kCount, static_cast<float>(r + 1));
    }
    EXPECT_EQ(gathered.ToVector<float>(), of_ranks);
    EXPECT_EQ(scattered.ToVector<float>(), std::vector<float>(kCount, 3));
    EXPECT_EQ(summed.ToVector<float>(), std::vector<float>(kCount, 3));
    EXPECT_EQ(sent.ToVector<float>(), std::vector<float>(kCount, 2));
    return context.Synchronize();
  };
  const int64_t before = emulation::CountsOfNccl().unregistered;
  for (const int64_t least_collective_bytes : {0, 1 << 20}) {
    const absl::Status status = RunNccl(
        2, move, {.nccl = {.least_collective_bytes = least_collective_bytes}});
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(emulation::CountsOfNccl().unregistered, before);
}

// NCCL needs memory of all members registered, or of none.
TEST(NcclMemoryTest, NamesMemoryThatCannotBeRegistered) {
  const auto sum = [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "comm"));
    Stream& stream = world.context().SideStream("comm");
    const Tensor x = Zeros({kCount});
    CH_RETURN_IF_ERROR(AllReduce(*all, x.raw_data(), kCount, kFloat32,
                                 ReduceOp::kSum, stream, "x"));
    return world.context().Synchronize();
  };
  for (const bool deterministic : {false, true}) {
    emulation::RefuseNcclRegistrations(1);
    const absl::Status status =
        RunNccl(2, sum,
                {.nccl = {.deterministic = deterministic,
                          .least_collective_bytes = 0}});
    emulation::RefuseNcclRegistrations(-1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    for (const char* said :
         {"NCCL in group 'all' (ranks 0, 1): cannot register ",
          "unhandled cuda error", "NCCL_LOCAL_REGISTER=0 on all ranks"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(said));
    }
  }
}

}  // namespace
}  // namespace crosshatch
