// SPDX-License-Identifier: Apache-2.0

/// \file
/// Buffers of sharded modules: they stay whole and keep their dtype on each
/// rank, belong to the state, and are compared between the ranks.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Computes x * weight + table. Counts its forwards in a buffer that is not
/// part of the state.
class Counting final : public nn::Module {
 public:
  const char* type_name() const override { return "Counting"; }

  nn::Parameter& weight_ = MakeParameter("weight", {5}, nn::init::Constant(2));
  nn::Buffer& table_ =
      MakeBuffer("table", {5}, nn::init::ByElement([](const auto& element) {
                   return static_cast<double>(element.index[0]);
                 }));
  nn::Buffer& count_ =
      MakeBuffer("count", {}, {}, kInt64, /*persistent=*/false);

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    {
      const NoGrad no_grad;
      AddInPlace(count_.data(), Full({}, 1, kInt64));
    }
    const Tensor& weight = weight_.Get();
    computes_in_ = weight.dtype();
    return {inputs[0] * weight + ToDType(table_.data(), weight.dtype())};
  }

 public:
  DType computes_in_ = kFloat32;
};

TEST(BuffersTest, StayWholeAndOfTheirDType) {
  OnMesh({{"fsdp", 3}}, [](const DeviceMesh& mesh) -> absl::Status {
    Counting model;
    FullyShardOptions options;
    options.mixed_precision.param_dtype = kBFloat16;
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 1}));
    CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(Ones({1, 5})))));
    CH_EXPECT_EQ(model.computes_in_, kBFloat16);
    CH_EXPECT_TRUE(model.weight_.data().is_distributed());
    CH_EXPECT_FALSE(model.table_.data().is_distributed());
    CH_EXPECT_EQ(model.table_.data().dtype(), kFloat32);
    CH_EXPECT_THAT(model.table_.data().ToVector<float>(),
                   ElementsAre(0, 1, 2, 3, 4));
    CH_EXPECT_THAT(model.count_.data().ToVector<int64_t>(), ElementsAre(1));
    CH_EXPECT_FALSE(model.table_.grad().defined());
    nn::ModuleState state(model);
    CH_ASSIGN_OR_RETURN(const nn::StateDict kept, state.State());
    CH_EXPECT_THAT(nn::NamesOf(kept), ElementsAre("table", "weight"));
    return absl::OkStatus();
  });
}

TEST(BuffersTest, AreComparedAtTheFirstForward) {
  const auto run = [](bool differ) {
    return StatusOfRanks(3, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(world, {{"fsdp", 3}}));
      Counting model;
      CH_RETURN_IF_ERROR(FullyShard(model, mesh));
      CH_RETURN_IF_ERROR(model.Materialize({.seed = 1}));
      CH_RETURN_IF_ERROR(nn::CheckBuffers(model, mesh));
      if (differ && world.rank() == 2) FillInPlace(model.table_.data(), 7);
      CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(Ones({1, 5})))));
      return world.context().Synchronize();
    });
  };
  EXPECT_TRUE(run(false).ok());
  const absl::Status status = run(true);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("buffer table: ranks 0 and 2 replicate a part of [5]"));
}

// Ranks first compare which buffers have memory and then their contents, so no
// rank waits for one without memory.
TEST(BuffersTest, NamesBuffersThatOneRankLacks) {
  const absl::Status status =
      StatusOfRanks(3, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"fsdp", 3}}));
        Counting model;
        if (world.rank() != 1) {
          CH_RETURN_IF_ERROR(model.Materialize({.seed = 1}));
        }
        return nn::CheckBuffers(model, mesh);
      });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("table without memory, count without memory on rank 1"));
}

}  // namespace
}  // namespace crosshatch::fsdp
