// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/dropout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch::nn {
namespace {

// Two after one another.
class Twice final : public Module {
 public:
  Twice() {
    RegisterModule("first", first_);
    RegisterModule("second", second_);
  }
  const char* type_name() const override { return "Twice"; }
  Dropout& first() { return first_; }
  Dropout& second() { return second_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {second_.Forward(first_.Forward(inputs[0]))};
  }

 private:
  Dropout first_{0.25};
  Dropout second_{0.5};
};

std::vector<float> Draw(Module& module, uint64_t seed, uint64_t step) {
  SetDropoutStep(module, seed, step);
  return module.Forward(Ones({64})).ToVector<float>();
}

TEST(Dropout, FollowsFromSeedNameAndStep) {
  Twice model;
  const std::vector<float> base = Draw(model, 1, 2);
  EXPECT_EQ(Draw(model, 1, 2), base);
  // A forward that is computed again.
  EXPECT_EQ(model.Forward(Ones({64})).ToVector<float>(), base);
  EXPECT_NE(Draw(model, 2, 2), base);
  EXPECT_NE(Draw(model, 1, 3), base);
  // Drops of one are not those of the other.
  Dropout unnamed(0.5);
  EXPECT_NE(Draw(unnamed, 1, 2), Draw(model.second(), 1, 2));
}

TEST(Dropout, IsItsInputOutsideOfTraining) {
  Twice model;
  SetDropoutTraining(model, false);
  EXPECT_FALSE(model.first().training());
  EXPECT_EQ(model.Forward(Ones({64})).ToVector<float>(),
            std::vector<float>(64, 1));
  SetDropoutTraining(model, true);
  EXPECT_NE(Draw(model, 1, 0), std::vector<float>(64, 1));
}

TEST(Dropout, IsTheSameOnEveryMesh) {
  Twice one_device;
  SetDropoutStep(one_device, 1, 2);
  const std::vector<float> expected =
      one_device.Forward(Ones({5, 7})).ToVector<float>();
  OnMesh({{"a", 2}, {"b", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    Twice model;
    SetDropoutStep(model, 1, 2);
    const Layout whole = Layout::Replicated(mesh.layout(), 2);
    for (const Layout& layout :
         {whole, whole.WithShard(0, 0), whole.WithShard(1, 0).WithShard(0, 0),
          whole.WithShard(0, 1).WithShard(1, 0)}) {
      const Tensor x = DistributeTensor(Ones({5, 7}), mesh, layout);
      CH_EXPECT_EQ(FullTensor(model.Forward(x)).ToVector<float>(), expected)
          << layout.ToString();
    }
    return absl::OkStatus();
  });
}

TEST(DropoutDeathTest, AsksForTheStep) {
  Twice model;
  EXPECT_DEATH(model.Forward(Ones({4})), "Dropout \"first\" does not know");
  EXPECT_DEATH(Dropout(2), "Dropout with p = 2");
}

}  // namespace
}  // namespace crosshatch::nn
