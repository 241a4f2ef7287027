// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch::nn {
namespace {

class Twice final : public Module {
 public:
  Dropout& first() { return first_; }
  Dropout& second() { return second_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {second_.Forward(first_.Forward(inputs[0]))};
  }

 private:
  Dropout& first_ = Make<Dropout>("first", 0.25);
  Dropout& second_ = Make<Dropout>("second", 0.5);
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

// Calls one Dropout `calls` times on all rows, and another one on the positive
// rows, if there are any.
class Repeats final : public Module {
 public:
  explicit Repeats(int calls) : calls_(calls) {}
  Twice& part() { return part_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    for (int i = 0; i < calls_; ++i) x = part_.Forward(x);
    const auto values = inputs[0].ToVector<float>();
    if (std::find(values.begin(), values.end(), 1.0f) == values.end()) {
      return {x};
    }
    const Tensor gate = Maximum(inputs[0], Zeros({}));
    return {x + gate * rare_.Forward(Ones(x.sizes()))};
  }

 private:
  const int calls_;
  Twice& part_ = Make<Twice>("part");
  Dropout& rare_ = Make<Dropout>("rare", 0.5);
};

TEST(Dropout, CutsOfABatchDropAsTheBatchDoes) {
  const int64_t rows = 6;
  std::vector<float> values;
  for (int64_t i = 0; i < rows * 8; ++i) {
    values.push_back(i / 8 == 0 || i / 8 == 3 ? -1.0f : 1.0f);
  }
  const Tensor all = FromValues<float>({rows, 8}, absl::MakeConstSpan(values));
  for (const int calls : {1, 2, 3}) {
    Repeats model(calls);
    SetDropoutStep(model, 1, 2);
    const auto expected = model.Forward(all).ToVector<float>();
    for (int cuts = 0; cuts < 1 << (rows - 1); ++cuts) {
      SetDropoutStep(model, 1, 2);
      std::vector<float> got;
      int64_t begin = 0;
      for (int64_t end = 1; end <= rows; ++end) {
        if (end < rows && (cuts >> (end - 1) & 1) == 0) continue;
        const auto part =
            model.Forward(Slice(all, 0, begin, end)).ToVector<float>();
        got.insert(got.end(), part.begin(), part.end());
        begin = end;
        // Rows of an evaluation in between do not belong to the step's batch.
        model.set_training(false);
        model.Forward(all);
        model.set_training(true);
      }
      EXPECT_EQ(got, expected) << calls << " calls, cuts " << cuts;
    }
  }
}

class Runs final : public Module {
 public:
  explicit Runs(Module& inner) : inner_(inner) {
    RegisterModule("inner", inner);
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {inner_.Forward(inputs[0])};
  }

 private:
  Module& inner_;
};

class Both final : public Module {
 public:
  Both(Module& a, Module& b) : a_(a), b_(b) {
    RegisterModule("a", a);
    RegisterModule("b", b);
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {a_.Forward(inputs[0]), b_.Forward(inputs[0])};
  }

 private:
  Module& a_;
  Module& b_;
};

TEST(Dropout, DropsOtherElementsInEachCall) {
  Dropout dropout(0.5);
  Runs first(dropout);
  Runs second(dropout);
  Both root(first, second);
  SetDropoutStep(root, 1, 2);
  std::vector<std::vector<float>> draws;
  for (int i = 0; i < 2; ++i) {
    for (Module* called :
         std::vector<Module*>{&dropout, &first, &second, &root}) {
      for (const Tensor& drawn : called->Call({Ones({4, 32})})) {
        draws.push_back(drawn.ToVector<float>());
      }
    }
  }
  for (size_t i = 0; i < draws.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(draws[i], draws[j]) << i << j;
  }
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
    // The dropout of a weight is the same in each forward of a step.
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

TEST(DropoutDeathTest, RequiresAStep) {
  Twice model;
  EXPECT_DEATH(model.Forward(Ones({4})), "Dropout \"first\" does not know");
  // An unregistered Dropout would not get the calls on its owner.
  Dropout unregistered(0.5);
  EXPECT_DEATH(unregistered.Forward(Ones({4})),
               "call SetDropoutStep .*if this module is part of another");
  EXPECT_DEATH(Dropout(2), "Dropout with p = 2");
}

}  // namespace
}  // namespace crosshatch::nn
