// SPDX-License-Identifier: Apache-2.0

/// \file
/// Gathers and reductions of lists of several runs.

#include <cstdint>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/nccl/run_nccl_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/emulation/nccl.h"
#include "crosshatch/tensor/creation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// Shards are received in place, and no kernel packs them.
TEST(NcclRunsTest, AnAllGatherOfPiecesCopiesNothing) {
  const absl::Status status = RunNccl(2, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto all, world.Group("all", {0, 1}, "comm"));
    Stream& stream = world.context().SideStream("comm");
    // Two parameters. Ranks have 3 and 2 of 5 elements, and 4 and 4.
    const Tensor parameters = Zeros({5 + 8});
    auto* const data = static_cast<float*>(parameters.raw_data());
    Collective c{.kind = CollectiveKind::kAllGather, .label = "unshard"};
    c.recv = {
        {{.data = data, .run_elems = 3}, {.data = data + 5, .run_elems = 4}},
        {{.data = data + 3, .run_elems = 2},
         {.data = data + 9, .run_elems = 4}}};
    c.send = {c.recv[static_cast<size_t>(world.rank())]};
    // The first collective creates the communicator.
    CH_RETURN_IF_ERROR(Barrier(*all, stream, "first"));
    CH_RETURN_IF_ERROR(all->Exchange("", "before").status());
    const int64_t kernels = emulation::CountsOfRuntime().kernels;
    const int64_t sends = emulation::CountsOfNccl().sends;
    CH_RETURN_IF_ERROR(all->Exchange("", "counted").status());
    CH_RETURN_IF_ERROR(all->Issue(c, stream));
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    CH_RETURN_IF_ERROR(all->Exchange("", "after").status());
    EXPECT_EQ(emulation::CountsOfRuntime().kernels, kernels);
    EXPECT_EQ(emulation::CountsOfNccl().sends, sends + 4);
    return all->Exchange("", "counted").status();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// Parameters of 8 and 4 elements are gathered and reduced by one collective of
// NCCL each, and one of 5 elements by messages. No kernel packs anything.
TEST(NcclRunsTest, EvenParametersOfAGroupGoByCollectives) {
  const absl::Status status = RunNccl(
      2,
      [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto all, world.Group("all", {0, 1}, "comm"));
        Stream& stream = world.context().SideStream("comm");
        const int me = world.rank();
        const int64_t odd = 3 - me;
        const Tensor full = Zeros({8 + 5 + 4});
        const Tensor shard = Full({4 + odd + 2}, 1 + me);
        const Tensor sum = Zeros({4 + odd + 2});
        auto* const data = static_cast<float*>(full.raw_data());
        const std::vector<SegmentList> lists = {
            {{.data = data, .run_elems = 4},
             {.data = data + 8, .run_elems = 3},
             {.data = data + 13, .run_elems = 2}},
            {{.data = data + 4, .run_elems = 4},
             {.data = data + 11, .run_elems = 2},
             {.data = data + 15, .run_elems = 2}}};
        stream.Wait(world.context().compute_stream().Record());
        CH_RETURN_IF_ERROR(Barrier(*all, stream, "first"));
        CH_RETURN_IF_ERROR(all->Exchange("", "before").status());
        const int64_t kernels = emulation::CountsOfRuntime().kernels;
        const emulation::NcclCounts before = emulation::CountsOfNccl();
        CH_RETURN_IF_ERROR(all->Exchange("", "counted").status());
        CH_RETURN_IF_ERROR(all->Issue(
            {.kind = CollectiveKind::kAllGather,
             .label = "unshard",
             .send = {{{.data = shard.raw_data(), .run_elems = 6 + odd}}},
             .recv = lists},
            stream));
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        CH_RETURN_IF_ERROR(all->Exchange("", "gathered").status());
        const emulation::NcclCounts gathered = emulation::CountsOfNccl();
        EXPECT_EQ(gathered.collectives, before.collectives + 2 * 2);
        EXPECT_EQ(gathered.sends, before.sends + 2);
        EXPECT_EQ(emulation::CountsOfRuntime().kernels, kernels + 2)
            << "each rank's own rows of the odd parameter";
        CH_RETURN_IF_ERROR(all->Exchange("", "counted again").status());
        CH_RETURN_IF_ERROR(all->Issue(
            {.kind = CollectiveKind::kReduceScatter,
             .scale = 0.5,
             .label = "reduce",
             .send = lists,
             .recv = {{{.data = sum.raw_data(), .run_elems = 6 + odd}}}},
            stream));
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        CH_RETURN_IF_ERROR(all->Exchange("", "reduced").status());
        const emulation::NcclCounts reduced = emulation::CountsOfNccl();
        EXPECT_EQ(reduced.collectives, gathered.collectives + 2 * 2);
        EXPECT_EQ(reduced.sends, gathered.sends + 2);
        const std::vector<float> ones = {1, 1, 1, 1, 2, 2, 2, 2, 1,
                                         1, 1, 2, 2, 1, 1, 2, 2};
        EXPECT_EQ(full.ToVector<float>(), ones);
        EXPECT_EQ(sum.ToVector<float>(), shard.ToVector<float>());
        return all->Exchange("", "done").status();
      },
      {.nccl = {.least_collective_bytes = 0}});
  EXPECT_TRUE(status.ok()) << status;
}

// On each rank, the first list's run is consecutive with another run of the
// second list, so no collective of NCCL can move them.
TEST(NcclRunsTest, RunsThatRanksHaveAtOtherPlacesGoByMessages) {
  const absl::Status status = RunNccl(
      2,
      [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto all, world.Group("all", {0, 1}, "comm"));
        Stream& stream = world.context().SideStream("comm");
        const bool is_first = world.rank() == 0;
        const Tensor full = Zeros({16});
        auto* const data = static_cast<float*>(full.raw_data());
        const Tensor shard =
            is_first ? FromValues<float>({4}, {1, 1, 1, 1})
                     : FromValues<float>({8}, {2, 2, 2, 2, 3, 3, 3, 3});
        stream.Wait(world.context().compute_stream().Record());
        CH_RETURN_IF_ERROR(Barrier(*all, stream, "first"));
        CH_RETURN_IF_ERROR(all->Issue(
            {.kind = CollectiveKind::kAllGather,
             .label = "unshard",
             .send = {{{.data = shard.raw_data(), .run_elems = shard.numel()}}},
             .recv = {{{.data = data + (is_first ? 0 : 8), .run_elems = 4}},
                      {{.data = data + (is_first ? 4 : 0), .run_elems = 4},
                       {.data = data + 12, .run_elems = 4}}}},
            stream));
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        const std::vector<float> on_first = {1, 1, 1, 1, 2, 2, 2, 2,
                                             0, 0, 0, 0, 3, 3, 3, 3};
        const std::vector<float> on_second = {2, 2, 2, 2, 0, 0, 0, 0,
                                              1, 1, 1, 1, 3, 3, 3, 3};
        EXPECT_EQ(full.ToVector<float>(), is_first ? on_first : on_second);
        return all->Exchange("", "done").status();
      },
      {.nccl = {.least_collective_bytes = 0}});
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace crosshatch
