// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/launch.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

FillArgs Fill(const Tensor& tensor, double value) {
  FillArgs args{.value = value};
  args.shape = {1, {tensor.numel()}};
  args.out = {tensor.raw_data(), tensor.dtype(), {1}};
  return args;
}

TEST(LaunchTest, IssuesToTheCurrentStream) {
  RankContext rank({});
  const RankContextScope scope(&rank);
  const Tensor x = Zeros({2});
  Stream& side = rank.SideStream("side");
  {
    const StreamScope on_side(side);
    internal::Launch(&KernelTable::fill, Fill(x, 3));
  }
  side.Synchronize();
  EXPECT_EQ(x.ToVector<float>(), (std::vector<float>{3, 3}));
}

// The input of a skipped kernel may not have been written. A kernel that checks
// its indices must not end the process before the error is reported.
TEST(LaunchTest, APoisonedRankSkipsLaterKernels) {
  for (const uint64_t seed : {0, 1}) {
    RankContext rank({.adversarial_seed = seed});
    const RankContextScope scope(&rank);
    const Tensor x = Full({2}, 1);
    const int64_t beyond = 7;
    rank.current_stream().Launch(
        [&](KernelContext&) { rank.Poison(absl::AbortedError("peer")); });
    internal::Launch(&KernelTable::fill, Fill(x, 3));
    internal::Launch(&KernelTable::check_index_range,
                     CheckIndexRangeArgs{.op = "embedding",
                                         .index = "id",
                                         .named = "rows",
                                         .count = 1,
                                         .indices = &beyond,
                                         .bound = 5});
    EXPECT_EQ(rank.Synchronize(), absl::AbortedError("peer"));
    EXPECT_EQ(x.ToVector<float>(), (std::vector<float>{1, 1}));
  }
}

TEST(LaunchTest, ADryRunAllocatesTheWorkspaceAndRunsNothing) {
  RankContext rank({.dry_run = true});
  const RankContextScope scope(&rank);
  internal::Launch(&KernelTable::fill, FillArgs{.shape = {1, {100}}});
  const int64_t before = rank.allocator().stats().peak_total;
  SortArgs args;
  args.shape = {1, {100}};
  args.count = 100;
  const int64_t bytes = rank.kernels().sort_workspace_bytes(args);
  internal::LaunchWithWorkspace(&KernelTable::sort_workspace_bytes,
                                &KernelTable::sort, args);
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(rank.allocator().stats().peak_total - before, bytes);
  EXPECT_EQ(rank.allocator().stats().current_total, 0);
}

}  // namespace
}  // namespace crosshatch
