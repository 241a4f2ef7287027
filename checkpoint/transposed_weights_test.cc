// SPDX-License-Identifier: Apache-2.0

// Weights that are stored transposed and concatenated, as in GPT-2.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/checkpoint/weights_testutil.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

constexpr int64_t kIn = 5;
constexpr int64_t kQueries = 4;
constexpr int64_t kKeys = 3;

const WeightNames& Names() {
  static const auto* const names =
      new WeightNames{.rules = {{"q.*", "qk.*", 0, /*transposed=*/true},
                                {"k.*", "qk.*", 1, /*transposed=*/true}}};
  return *names;
}

class TwoProjections final : public nn::Module {
 public:
  TwoProjections()
      : q_(kIn, kQueries, {.bias = true}), k_(kIn, kKeys, {.bias = true}) {
    RegisterModule("q", q_);
    RegisterModule("k", k_);
    NamedParameters();
  }
  const char* type_name() const override { return "TwoProjections"; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {q_.Forward(inputs[0]), k_.Forward(inputs[0])};
  }

 private:
  nn::Linear q_;
  nn::Linear k_;
};

absl::Status Spread(TwoProjections& model, const DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      model, tp, {{"q", tp::ColwiseParallel()}, {"k", tp::RowwiseParallel()}}));
  return fsdp::FullyShard(model, fsdp,
                          {.extension = DTensorExtensions::Create()});
}

std::vector<std::vector<float>> ParametersOf(nn::Module& model) {
  std::vector<std::vector<float>> values;
  for (nn::Parameter* p : model.Parameters()) {
    values.push_back(FullTensor(p->data()).ToVector<float>());
  }
  return values;
}

TEST(TransposedWeightsTest, AreWrittenAndReadFromAnyMesh) {
  const std::string dir = ::testing::TempDir() + "/transposed";
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    TwoProjections model;
    CH_RETURN_IF_ERROR(Spread(model, mesh));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
    CH_RETURN_IF_ERROR(SaveWeights(mesh.world(), model, dir, Names(), "{}"));
    const std::vector<std::vector<float>> values = ParametersOf(model);

    CH_ASSIGN_OR_RETURN(const StoredTensors stored, OpenWeights(dir));
    CH_EXPECT_EQ(stored.size(), 2u);
    const StoredTensor& merged = stored.at("qk.weight");
    CH_EXPECT_EQ(merged.info().sizes, Shape({kIn, kQueries + kKeys}));
    const std::vector<float> elements = ValuesOf(merged);
    for (int64_t in = 0; in < kIn; ++in) {
      for (int64_t out = 0; out < kQueries + kKeys; ++out) {
        const bool of_q = out < kQueries;
        // Parameters: q.weight, q.bias, k.weight, k.bias.
        const std::vector<float>& weight = values[of_q ? 0 : 2];
        CH_EXPECT_EQ(
            elements[static_cast<size_t>(in * (kQueries + kKeys) + out)],
            weight[static_cast<size_t>((of_q ? out : out - kQueries) * kIn +
                                       in)])
            << in << ", " << out;
      }
    }

    TwoProjections other;
    CH_RETURN_IF_ERROR(Spread(other, mesh));
    CH_RETURN_IF_ERROR(LoadWeights(other, dir, Names()));
    CH_EXPECT_EQ(ParametersOf(other), values);
    TwoProjections whole;
    CH_RETURN_IF_ERROR(LoadWeights(whole, dir, Names()));
    CH_EXPECT_EQ(ParametersOf(whole), values);
    return mesh.world().context().Synchronize();
  });
}

}  // namespace
}  // namespace crosshatch::checkpoint
