// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/split_saved.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 13;
constexpr int64_t kWidth = 8;

// A product with a sharded output, which is gathered again, so that input and
// output are replicated.
class Layer final : public Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Tanh(Add(inputs[0], Gathered(up_.Forward(inputs[0]))))};
  }

 private:
  static Tensor Gathered(const Tensor& t) {
    return Redistribute(t, Layout::Replicated(LayoutOf(t).mesh(), t.ndim()));
  }

  Linear& up_ = Make<Linear>("up", kWidth, kWidth);
};

class Net final : public Module {
 public:
  Net() {
    int64_t salt = 0;
    for (Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
    }
  }
  std::vector<Module*> layers() { return {&first_, &second_}; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {second_.Forward(first_.Forward(inputs[0]))};
  }

 private:
  Layer& first_ = Make<Layer>("first");
  Layer& second_ = Make<Layer>("second");
};

struct Outcome {
  std::vector<std::vector<float>> values;
  int64_t kept_bytes = 0;  // Between forward and backward.
  int64_t gathers = 0;     // In backward.
};

int64_t Gathers(const DeviceMesh& mesh) {
  int64_t calls = 0;
  for (const auto& communicator : mesh.communicators()) {
    calls += communicator->stats()
                 .by_kind[static_cast<int>(CollectiveKind::kAllGather)]
                 .calls;
  }
  return calls;
}

// Measures a step on rows that depend on `salt`.
absl::StatusOr<Outcome> Measure(const DeviceMesh& mesh, Net& net,
                                int64_t salt = 7) {
  for (Parameter* p : net.Parameters()) {
    CH_RETURN_IF_ERROR(DistributeParameter(
        *p, mesh, Layout::Replicated(mesh.layout(), 2).WithShard(0, 0)));
  }
  Tensor x = DistributeTensor(SmallIntegers({kRows, kWidth}, salt), mesh,
                              Layout::Replicated(mesh.layout(), 2));
  x.set_requires_grad(true);
  Allocator& allocator = RankContext::Current().allocator();
  Outcome outcome;
  const int64_t before = allocator.stats().current_total;
  Tensor sum = Sum(net.Forward(Mul(x, 2.0)));
  outcome.kept_bytes = allocator.stats().current_total - before;
  const int64_t gathers = Gathers(mesh);
  CH_RETURN_IF_ERROR(Backward(sum));
  outcome.gathers = Gathers(mesh) - gathers;
  outcome.values = {FullTensor(sum).ToVector<float>(),
                    FullTensor(x.grad()).ToVector<float>()};
  for (Parameter* p : net.Parameters()) {
    outcome.values.push_back(FullTensor(p->grad()).ToVector<float>());
  }
  return outcome;
}

// 13 rows on three ranks: 5, 5 and 3.
class SplitSavedTest : public ::testing::TestWithParam<int> {
 protected:
  static int64_t RowsHere(const DeviceMesh& mesh) {
    const int64_t chunk = (kRows + mesh.size(0) - 1) / mesh.size(0);
    return std::min(kRows, (*mesh.index(0) + 1) * chunk) -
           std::min(kRows, *mesh.index(0) * chunk);
  }
};

constexpr int64_t kRowBytes = kWidth * static_cast<int64_t>(sizeof(float));

TEST_P(SplitSavedTest, KeepsShardsOfSavedTensors) {
  OnMesh({{"tp", GetParam()}}, [](const DeviceMesh& mesh) -> absl::Status {
    Net plain;
    CH_ASSIGN_OR_RETURN(const Outcome expected, Measure(mesh, plain));
    Net split;
    for (Module* layer : split.layers()) {
      CH_RETURN_IF_ERROR(SplitSavedActivations(*layer, mesh));
    }
    CH_ASSIGN_OR_RETURN(const Outcome outcome, Measure(mesh, split));
    CH_EXPECT_EQ(outcome.values, expected.values);
    // Three tensors: the input of each product and the result of each layer;
    // both layers save one of them.
    CH_EXPECT_EQ(expected.kept_bytes - outcome.kept_bytes,
                 (3 * kRows - 4 * RowsHere(mesh)) * kRowBytes);
    CH_EXPECT_EQ(outcome.gathers - expected.gathers, 4);
    // A single module keeps it once.
    Net whole;
    CH_RETURN_IF_ERROR(SplitSavedActivations(whole, mesh));
    CH_ASSIGN_OR_RETURN(const Outcome of_whole, Measure(mesh, whole));
    CH_EXPECT_EQ(of_whole.values, expected.values);
    CH_EXPECT_EQ(expected.kept_bytes - of_whole.kept_bytes,
                 3 * (kRows - RowsHere(mesh)) * kRowBytes);
    CH_EXPECT_EQ(of_whole.gathers - expected.gathers, 4);
    return absl::OkStatus();
  });
}

TEST_P(SplitSavedTest, KeepsPartsOfTheInputsOfRecomputedModules) {
  OnMesh({{"tp", GetParam()}}, [](const DeviceMesh& mesh) -> absl::Status {
    Outcome outcomes[2];
    for (const bool splits : {false, true}) {
      Net net;
      ActivationCheckpointOptions options;
      if (splits) options.split_inputs_over = mesh;
      CH_RETURN_IF_ERROR(CheckpointActivationsIf(
          net,
          [](const Module&, const std::string& name) {
            return name == "first" || name == "second";
          },
          options));
      CH_ASSIGN_OR_RETURN(outcomes[splits], Measure(mesh, net));
    }
    CH_EXPECT_EQ(outcomes[1].values, outcomes[0].values);
    CH_EXPECT_EQ(outcomes[0].kept_bytes - outcomes[1].kept_bytes,
                 2 * (kRows - RowsHere(mesh)) * kRowBytes);
    CH_EXPECT_EQ(outcomes[1].gathers - outcomes[0].gathers, 2);
    return absl::OkStatus();
  });
}

TEST(SplitSavedSliceTest, GathersWithinASlice) {
  OnMesh({{"dp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    const int64_t salt = 7 + *mesh.index(0);
    Net plain;
    CH_ASSIGN_OR_RETURN(const Outcome expected, Measure(tp, plain, salt));
    Net split;
    for (Module* layer : split.layers()) {
      CH_RETURN_IF_ERROR(SplitSavedActivations(*layer, tp));
    }
    CH_ASSIGN_OR_RETURN(const Outcome outcome, Measure(tp, split, salt));
    CH_EXPECT_EQ(outcome.values, expected.values);
    CH_EXPECT_LT(outcome.kept_bytes, expected.kept_bytes);
    CH_EXPECT_EQ(outcome.gathers - expected.gathers, 4);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SplitSavedTest, ::testing::Values(2, 3));

TEST(SplitSavedErrorsTest, NameTheModule) {
  OnMesh({{"dp", 1}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    Net net;
    Module& first = *net.layers()[0];
    CH_EXPECT_THAT(std::string(SplitSavedActivations(first, mesh).message()),
                   HasSubstr("not mesh(dp=1, tp=2)"));
    ActivationCheckpointOptions over_both;
    over_both.split_inputs_over = mesh;
    CH_EXPECT_THAT(
        std::string(CheckpointActivations(first, over_both).message()),
        HasSubstr("not mesh(dp=1, tp=2)"));
    CH_RETURN_IF_ERROR(SplitSavedActivations(first, tp));
    CH_EXPECT_THAT(std::string(SplitSavedActivations(first, tp).message()),
                   HasSubstr("first (Layer) has it already"));
    CH_EXPECT_THAT(std::string(CheckpointActivations(first).message()),
                   HasSubstr("ActivationCheckpointOptions::split_inputs_over"));
    Module& second = *net.layers()[1];
    CH_RETURN_IF_ERROR(CheckpointActivations(second));
    CH_EXPECT_THAT(std::string(SplitSavedActivations(second, tp).message()),
                   HasSubstr("second (Layer) is checkpointed"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
