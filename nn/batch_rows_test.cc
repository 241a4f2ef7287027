// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/batch_rows.h"

#include <optional>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

TEST(BatchRowsScopeTest, TheInnermostHolds) {
  EXPECT_EQ(BatchRowsScope::Current(), nullptr);
  {
    const BatchRowsScope outer({.first = 1, .here = 2, .total = 5});
    {
      const BatchRowsScope inner({.first = 0, .here = 5, .total = 5});
      EXPECT_EQ(BatchRowsScope::Current()->here, 5);
    }
    EXPECT_EQ(BatchRowsScope::Current()->here, 2);
  }
  EXPECT_EQ(BatchRowsScope::Current(), nullptr);
  EXPECT_DEATH(BatchRowsScope({.first = 3, .here = 3, .total = 5}),
               "3 rows from 3 on of a batch of 5");
}

TEST(RowsOfTest, UsesTheFirstInputWithDims) {
  EXPECT_EQ(RowsOf(Ones({4, 2})), 4);
  EXPECT_EQ(RowsOf(TensorList{Tensor(), Ones({}), Ones({3}), Ones({5})}), 3);
  EXPECT_EQ(RowsOf(TensorList{}), std::nullopt);
}

TEST(IsDistributedOverTest, NeedsSeveralOfTheRanks) {
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    CH_EXPECT_FALSE(IsDistributedOver(Ones({2}), fsdp.layout()));
    CH_EXPECT_FALSE(
        IsDistributedOver(Replicated(Ones({2}), tp), fsdp.layout()));
    CH_EXPECT_TRUE(
        IsDistributedOver(Replicated(Ones({2}), fsdp), fsdp.layout()));
    CH_EXPECT_TRUE(
        IsDistributedOver(Replicated(Ones({2}), mesh), fsdp.layout()));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
