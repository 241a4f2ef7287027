// SPDX-License-Identifier: Apache-2.0
// Ops after a failed collective: missing data must not hide the error.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 5;

/// Each op reads indices that are out of range unless they were received.
struct IndexOp {
  std::string name;
  Tensor (*run)(const Tensor& values, const Tensor& indices);
};

const IndexOp kIndexOps[] = {
    {"Embedding",
     [](const Tensor& values, const Tensor& indices) {
       return Embedding(indices, values);
     }},
    {"Gather",
     [](const Tensor& values, const Tensor& indices) {
       return Gather(Slice(values, 1, 0, 1), 0, View(indices, {2, 1}));
     }},
    {"IndexSelect",
     [](const Tensor& values, const Tensor& indices) {
       return IndexSelect(values, 0, indices);
     }},
    {"ScatterAdd",
     [](const Tensor& values, const Tensor& indices) {
       return ScatterAdd(Slice(values, 1, 0, 1), 0, View(indices, {2, 1}),
                         Ones({2, 1}));
     }},
    {"CrossEntropy",
     [](const Tensor& values, const Tensor& indices) {
       return CrossEntropy(Slice(values, 0, 0, 2), indices);
     }},
};

/// Gathers indices on a side stream, with a label that differs on rank 1, and
/// then reads them.
absl::Status ReadIndicesThatDidNotCome(World& world, const IndexOp& op) {
  CH_ASSIGN_OR_RETURN(const auto tp, world.Group("tp", {0, 1}, "gather"));
  const Tensor mine = Full({1}, world.rank(), kInt64);
  const Tensor indices = Full({2}, 1e12, kInt64);
  Stream& gather = world.context().SideStream("gather");
  Stream& compute = world.context().current_stream();
  gather.Wait(compute.Record());
  CH_RETURN_IF_ERROR(AllGather(*tp, mine.raw_data(), indices.raw_data(), 1,
                               kInt64, gather,
                               world.rank() == 0 ? "tokens" : "targets"));
  compute.Wait(gather.Record());
  const Tensor values = Ones({kRows, 3}).set_requires_grad(true);
  const Tensor loss = Sum(op.run(values, indices));
  CH_RETURN_IF_ERROR(Backward(loss));
  return world.context().Synchronize();
}

class PoisonedOpsTest : public ::testing::TestWithParam<IndexOp> {};

TEST_P(PoisonedOpsTest, NameBothSides) {
  for (const uint64_t seed : {0, 1}) {
    std::vector<absl::Status> statuses(2);
    const absl::Status run =
        StatusOfRanks(2,
                      [&](World& world) {
                        return statuses[world.rank()] =
                                   ReadIndicesThatDidNotCome(world, GetParam());
                      },
                      {.test = {.adversarial_seed = seed}});
    for (const absl::Status& status : {run, statuses[0], statuses[1]}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << seed;
      const std::string message(status.message());
      EXPECT_THAT(message, HasSubstr("'tokens'")) << seed;
      EXPECT_THAT(message, HasSubstr("'targets'")) << seed;
      EXPECT_THAT(message, HasSubstr("'tp'")) << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PoisonedOpsTest, ::testing::ValuesIn(kIndexOps),
                         [](const ::testing::TestParamInfo<IndexOp>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace crosshatch
