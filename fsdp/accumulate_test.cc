// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/accumulate.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/expect.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::HasSubstr;

/// Returns the gradients of three batches, accumulated by one rank.
Weights Expected() {
  Weights expected;
  OnRanks({{"fsdp", 1}}, [&](const DeviceMesh&, LineSink&) -> absl::Status {
    TestModel model(2, 5, 7, 3);
    model.FillWithIntegers();
    // [accumulate]
    CH_RETURN_IF_ERROR(AccumulateGradients(model, 3, [&](int64_t i) {
      return Backward(Sum(model.Forward(BatchOf(0, 1, i))));
    }));
    // [/accumulate]
    expected = FullGradients(model);
    return absl::OkStatus();
  });
  return expected;
}

int64_t Reductions(const DeviceMesh& mesh) {
  int64_t calls = 0;
  for (const auto& comm : mesh.communicators()) {
    calls += comm->stats()
                 .by_kind[static_cast<int>(CollectiveKind::kReduceScatter)]
                 .calls;
  }
  return calls;
}

TEST(AccumulateGradientsTest, AddsUpAndReducesOnceOrEachTime) {
  const Weights expected = Expected();
  for (const Axes& axes :
       {Axes{{"fsdp", 3}}, Axes{{"replicate", 2}, {"fsdp", 2}}}) {
    for (const AccumulateBy by :
         {AccumulateBy::kUnsharded, AccumulateBy::kShards}) {
      OnRanks(axes, [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        TestModel model(2, 5, 7, 3);
        model.FillWithIntegers();
        CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
        CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
        const Job job{model, mesh, root, log};
        for (int round = 0; round < 2; ++round) {
          const int64_t before = Reductions(mesh);
          CH_RETURN_IF_ERROR(AccumulateGradients(
              model, 3, [&](int64_t i) { return Backward(job.Loss(i)); }, by));
          CH_EXPECT_EQ(FullGradients(model), expected);
          CH_EXPECT_EQ(Reductions(mesh) - before,
                       by == AccumulateBy::kShards ? 9 : 3);
          for (nn::Parameter* p : model.Parameters()) p->set_grad(Tensor());
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(AccumulateGradientsTest, LeavesNothingSwitchedOff) {
  OnRanks(
      {{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        TestModel model(2, 5, 7, 3);
        model.FillWithIntegers();
        CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
        CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
        const Job job{model, mesh, root, log};
        const absl::Status status =
            AccumulateGradients(model, 3, [&](int64_t i) -> absl::Status {
              if (i == 1) return absl::DataLossError("no more data");
              return Backward(job.Loss(0));
            });
        CH_EXPECT_TRUE(absl::IsDataLoss(status));
        // Pending gradients are not part of the model's state.
        CH_EXPECT_THAT(
            std::string(nn::ModuleState(model).State().status().message()),
            HasSubstr("has gradients that are not reduced yet"));
        root.ResetIteration();
        CH_RETURN_IF_ERROR(Backward(job.Loss(0)));
        CH_EXPECT_TRUE(model.Parameters()[0]->grad().defined());

        CH_EXPECT_TRUE(absl::IsInvalidArgument(AccumulateGradients(
            model, 0, [](int64_t) { return absl::OkStatus(); })));
        CH_RETURN_IF_ERROR(Configure(
            model, [&](Settings& s) { s.requires_gradient_sync = false; }));
        CH_EXPECT_THAT(
            std::string(AccumulateGradients(
                            model, 1, [](int64_t) { return absl::OkStatus(); })
                            .message()),
            HasSubstr("requires_gradient_sync = false"));
        return absl::OkStatus();
      });
}

}  // namespace
}  // namespace crosshatch::fsdp
