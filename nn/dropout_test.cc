// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/dropout.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/view.h"
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

// Rows that come in two forwards of a step are those of one.
TEST(Dropout, CountsTheRowsOfAStep) {
  Twice model;
  SetDropoutStep(model, 1, 2);
  const std::vector<float> expected =
      model.Forward(Ones({5, 7})).ToVector<float>();
  SetDropoutStep(model, 1, 2);
  std::vector<float> got;
  for (const int64_t rows : {3, 0, 2}) {
    const auto part = model.Forward(Ones({rows, 7})).ToVector<float>();
    got.insert(got.end(), part.begin(), part.end());
  }
  EXPECT_EQ(got, expected);
}

TEST(Dropout, TakesTheBatchAlongAnyDim) {
  Dropout first(0.5);
  Dropout last(0.5, -1);
  Dropout of_no_batch(0.5, std::nullopt);
  for (Dropout* dropout : {&first, &last, &of_no_batch}) {
    SetDropoutStep(*dropout, 1, 2);
  }
  const Tensor whole = first.Forward(Ones({8, 16}));
  for (const int64_t begin : {0, 4}) {
    const Tensor part = last.Forward(Ones({16, 4}));
    EXPECT_EQ(Transpose(part, 0, 1).ToVector<float>(),
              Slice(whole, 0, begin, begin + 4).ToVector<float>());
    // A weight's: the same in each forward of a step.
    EXPECT_EQ(of_no_batch.Forward(Ones({4, 16})).ToVector<float>(),
              Slice(whole, 0, 0, 4).ToVector<float>());
  }
}

TEST(Dropout, IsTheSameOnEveryMesh) {
  Twice one_device;
  SetDropoutStep(one_device, 1, 2);
  const std::vector<float> expected =
      one_device.Forward(Ones({5, 7})).ToVector<float>();
  OnMesh({{"a", 2}, {"b", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    Twice model;
    const Layout whole = Layout::Replicated(mesh.layout(), 2);
    for (const Layout& layout :
         {whole, whole.WithShard(0, 0), whole.WithShard(1, 0).WithShard(0, 0),
          whole.WithShard(0, 1).WithShard(1, 0)}) {
      SetDropoutStep(model, 1, 2);
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
  // Of no module: a call on the one that has it as a member misses it.
  Dropout unregistered(0.5);
  EXPECT_DEATH(unregistered.Forward(Ones({4})),
               "call SetDropoutStep .*register this module");
  EXPECT_DEATH(Dropout(2), "Dropout with p = 2");
}

}  // namespace
}  // namespace crosshatch::nn
