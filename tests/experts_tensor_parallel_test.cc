// SPDX-License-Identifier: Apache-2.0

/// \file
/// Experts on their own mesh, with tensor parallelism: each rank along "ep" has
/// another expert, which "dp" shards and "tp" splits. The other parameters are
/// sharded over dp and ep together.

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

constexpr int kExperts = 2;
constexpr int kDataRanks = 4;

bool IsExperts(const std::string& name) { return name.find("blocks.1.") == 0; }

// Fills the second block with expert `ep`, and the others equally on all ranks.
void Fill(TestModel& model, int ep) {
  model.FillWithIntegers();
  int64_t salt = 100 * (ep + 1);
  for (nn::Parameter* p : model.Parameters()) {
    if (!IsExperts(p->name())) continue;
    p->set_data(SmallIntegers(p->data().sizes(), ++salt));
  }
}

// Computes five rows on four ranks, each with its rank's expert. Returns the
// gradients of a model with that single expert, by expert.
absl::StatusOr<std::vector<Weights>> OnOneRank() {
  std::vector<Weights> gradients;
  for (int ep = 0; ep < kExperts; ++ep) {
    TestModel model(2, 5, 7, 3);
    Fill(model, ep);
    for (int dp = 0; dp < kDataRanks / kExperts; ++dp) {
      CH_RETURN_IF_ERROR(Backward(
          Sum(model.Forward(BatchOf(dp * kExperts + ep, kDataRanks, 0)))));
    }
    gradients.push_back(FullGradients(model));
  }
  return gradients;
}

// Whether mesh_of selects the experts' mesh; otherwise they are sharded first.
class ExpertsTensorParallelTest : public ::testing::TestWithParam<bool> {};

TEST_P(ExpertsTensorParallelTest, GetTheGradientsOfTheirTokens) {
  const auto expected = OnOneRank();
  ASSERT_TRUE(expected.ok()) << expected.status();
  OnMesh(
      {{"dp", 2}, {"ep", kExperts}, {"tp", 2}},
      [&](const DeviceMesh& mesh) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh experts, mesh.Slice("dp"));
        CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
        const std::vector<std::string> of_data = {"dp", "ep"};
        CH_ASSIGN_OR_RETURN(const DeviceMesh data, mesh.Slice(of_data));
        CH_ASSIGN_OR_RETURN(const DeviceMesh all, data.Flatten(of_data, "all"));
        const int dp = (*mesh.coordinate())[0];
        const int ep = (*mesh.coordinate())[1];
        TestModel model(2, 5, 7, 3);
        Fill(model, ep);
        CH_RETURN_IF_ERROR(
            tp::ParallelizeModule(model, tp,
                                  {{"", tp::PrepareModuleInput({})},
                                   {"blocks.*.up", tp::ColwiseParallel()},
                                   {"blocks.*.down", tp::RowwiseParallel()},
                                   {"head", tp::ColwiseParallel()}}));
        FullyShardOptions options;
        options.extension = DTensorExtensions::Create();
        if (GetParam()) {
          options.mesh_of =
              [&](const nn::Parameter& p) -> std::optional<DeviceMesh> {
            return IsExperts(p.name()) ? std::optional(experts) : std::nullopt;
          };
        } else {
          CH_RETURN_IF_ERROR(FullyShard(*model.blocks()[1], experts, options));
        }
        CH_RETURN_IF_ERROR(FullyShard(model, all, options));
        CH_RETURN_IF_ERROR(Backward(
            Sum(model.Forward(BatchOf(dp * kExperts + ep, kDataRanks, 0)))));

        // Every expert counts once, on every rank.
        const std::vector<nn::Parameter*> parameters = model.Parameters();
        double squares = 0;
        for (size_t i = 0; i < parameters.size(); ++i) {
          const std::vector<float>& first = (*expected)[0][i];
          const std::vector<float>& second = (*expected)[1][i];
          for (size_t k = 0; k < first.size(); ++k) {
            const double a = first[k] / kDataRanks;
            const double b = second[k] / kDataRanks;
            squares += IsExperts(parameters[i]->name()) ? a * a + b * b
                                                        : (a + b) * (a + b);
          }
        }
        CH_ASSIGN_OR_RETURN(const double norm, nn::GradNorm(parameters));
        // Sums of integers over 16, exact except for the root.
        CH_EXPECT_NEAR(norm, std::sqrt(squares), 1e-12 * norm);
        const Weights gradients = FullGradients(model);
        for (size_t i = 0; i < parameters.size(); ++i) {
          const std::string& name = parameters[i]->name();
          Weights sums = {(*expected)[static_cast<size_t>(ep)][i]};
          if (!IsExperts(name)) {
            const std::vector<float>& other =
                (*expected)[static_cast<size_t>(1 - ep)][i];
            for (size_t k = 0; k < other.size(); ++k) sums[0][k] += other[k];
          }
          // FSDP divides by the ranks of the batch.
          for (float& sum : sums[0]) sum /= kDataRanks;
          CH_EXPECT_EQ(gradients[i], sums[0]) << name;
          const DeviceMesh lies_on = MeshOf(parameters[i]->data());
          CH_EXPECT_EQ(
              std::vector<std::string>(lies_on.axis_names().begin(),
                                       lies_on.axis_names().end()),
              (std::vector<std::string>{IsExperts(name) ? "dp" : "all", "tp"}))
              << name;
        }
        return absl::OkStatus();
      });
}

INSTANTIATE_TEST_SUITE_P(Ways, ExpertsTensorParallelTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "by_mesh_of" : "sharded_first";
                         });

}  // namespace
}  // namespace crosshatch::fsdp
