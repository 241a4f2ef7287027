// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallel_style.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

// Returns twice its input.
class Twice final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Mul(inputs[0], 2.0)};
  }
};

constexpr int64_t kRows = 5;
constexpr int64_t kCols = 4;

std::vector<float> Values(float factor) {
  std::vector<float> values(static_cast<size_t>(kRows * kCols));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = factor * static_cast<float>(i);
  }
  return values;
}

// Ranks, the layout of the plain output, the desired one, whether as a plain
// tensor.
using Case = std::tuple<int, Placement, Placement, bool>;

class PrepareModuleOutputTest : public testing::TestWithParam<Case> {};

TEST_P(PrepareModuleOutputTest, RedistributesTheFirstOutput) {
  const auto& [ranks, output, desired, local] = GetParam();
  const PrepareOutputOptions options = {
      .output = output, .desired = desired, .use_local_output = local};
  OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
    Twice twice;
    CH_RETURN_IF_ERROR(
        ParallelizeModule(twice, mesh, {{"", PrepareModuleOutput(options)}}));
    const auto part =
        [&](float factor,
            const Placement& placement) -> absl::StatusOr<Tensor> {
      CH_ASSIGN_OR_RETURN(
          const Layout layout,
          Layout::FromPlacements(mesh.layout(), 2, {&placement, 1}));
      return LocalTensor(DistributeTensor(
          FromValues<float>({kRows, kCols}, Values(factor)), mesh, layout));
    };
    // A rank's part of the whole output, and of the input if the plain output
    // is a shard.
    CH_ASSIGN_OR_RETURN(const Tensor wanted, part(2, desired));
    CH_ASSIGN_OR_RETURN(const Tensor given, part(1, output));
    const Tensor input = Clone(given).set_requires_grad(true);

    const Tensor result = twice.Forward(input);
    CH_EXPECT_EQ(result.is_distributed(), !options.use_local_output);
    CH_EXPECT_EQ(LocalTensor(result).ToVector<float>(),
                 wanted.ToVector<float>());
    CH_RETURN_IF_ERROR(Backward(Sum(result)));
    if (!options.use_local_output) {
      const std::vector<float> gradient = input.grad().ToVector<float>();
      CH_EXPECT_EQ(gradient, std::vector<float>(gradient.size(), 2.0f));
    }
    return absl::OkStatus();
  });
}

std::string NameOf(const Placement& placement) {
  return placement == Replicate() ? "replicated"
         : placement == Shard(0)  ? "rows"
                                  : "columns";
}

std::string NameOfCase(const testing::TestParamInfo<Case>& info) {
  const auto& [ranks, output, desired, local] = info.param;
  return absl::StrCat(NameOf(output), "_to_", NameOf(desired), "_on_", ranks,
                      local ? "_local" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Styles, PrepareModuleOutputTest,
    testing::Combine(testing::Values(1, 2, 3),
                     testing::Values(Replicate(), Shard(0), Shard(1)),
                     testing::Values(Replicate(), Shard(0), Shard(1)),
                     testing::Bool()),
    NameOfCase);

}  // namespace
}  // namespace crosshatch::tp
