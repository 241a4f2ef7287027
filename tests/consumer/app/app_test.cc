// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"
#include "mesh/device_mesh.h"
#include "nlohmann/json.hpp"

namespace consumer {
namespace {

TEST(AppTest, OwnRepositoryWins) {
#ifdef CONSUMER_OWN_JSON
  SUCCEED();
#else
  FAIL() << "@nlohmann_json is not the one of this project";
#endif
}

TEST(AppTest, OwnMeshPackageDoesNotCollide) {
  EXPECT_EQ(DeviceMesh{12}.triangles, 12);
}

namespace ch = crosshatch;

// Uses both meanings of "mesh" in one file.
TEST(AppTest, TrainsAStepOnTwoAxes) {
  const absl::Status status =
      ch::RunLocal(4, [](ch::World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(
            ch::DeviceMesh mesh,
            ch::InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}}));
        CH_ASSIGN_OR_RETURN(ch::DeviceMesh fsdp, mesh.Slice("fsdp"));
        CH_ASSIGN_OR_RETURN(ch::DeviceMesh tp, mesh.Slice("tp"));
        ch::nn::Linear model(3, 5);
        CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(
            model, tp, {{"", ch::tp::ColwiseParallel()}}));
        CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(
            model, fsdp, {.extension = ch::DTensorExtensions::Create()}));
        CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
        CH_RETURN_IF_ERROR(
            ch::Backward(ch::Sum(model.Forward(ch::Ones({2, 3})))));
        // The mean of two rows of ones on each of two ranks.
        for (float g :
             ch::FullTensor(model.Parameters()[0]->grad()).ToVector<float>()) {
          EXPECT_EQ(g, 2.0f);
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace consumer
