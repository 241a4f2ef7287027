// SPDX-License-Identifier: Apache-2.0

// The norm of gradients on different meshes and in different numbers per rank,
// as in pipeline stages, compared with a plain sum.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/nn/optim/gradients.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct StageCase {
  std::vector<int> ranks;
  std::vector<int64_t> sizes;  // Sizes of its vectors.
  bool plain = false;          // Whether they are plain tensors.
};

// Returns uneven stages of uneven vectors. One has a single rank, one has no
// parameters.
std::vector<StageCase> Stages() {
  return {{.ranks = {0, 3}, .sizes = {5, 1}},
          {.ranks = {4, 1, 2}, .sizes = {7, 2, 4}},
          {.ranks = {5}, .sizes = {3}, .plain = true},
          {.ranks = {6}, .sizes = {}, .plain = true}};
}

double Element(size_t stage, size_t v, int64_t i) {
  return 0.25 * static_cast<double>(static_cast<int64_t>(stage * 101 + v * 29) +
                                    i * 37 % 19) -
         2;
}

double SlowNorm(double type) {
  double sum = 0;
  const std::vector<StageCase> stages = Stages();
  for (size_t s = 0; s < stages.size(); ++s) {
    for (size_t v = 0; v < stages[s].sizes.size(); ++v) {
      for (int64_t i = 0; i < stages[s].sizes[v]; ++i) {
        const double size = std::abs(Element(s, v, i));
        sum =
            std::isinf(type) ? std::max(sum, size) : sum + std::pow(size, type);
      }
    }
  }
  return std::isinf(type) ? sum : std::pow(sum, 1 / type);
}

// Returns the parameters of this rank's stage, with gradients.
absl::StatusOr<std::vector<std::unique_ptr<Parameter>>> ParametersOf(
    World& world) {
  std::vector<std::unique_ptr<Parameter>> parameters;
  const std::vector<StageCase> stages = Stages();
  for (size_t s = 0; s < stages.size(); ++s) {
    const std::vector<int>& ranks = stages[s].ranks;
    if (std::find(ranks.begin(), ranks.end(), world.rank()) == ranks.end()) {
      continue;
    }
    CH_ASSIGN_OR_RETURN(World* const stage, world.Subset(ranks));
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(*stage, {{"fsdp", stage->size()}}));
    for (size_t v = 0; v < stages[s].sizes.size(); ++v) {
      const int64_t size = stages[s].sizes[v];
      std::vector<double> values;
      for (int64_t i = 0; i < size; ++i) values.push_back(Element(s, v, i));
      Tensor grad = FromValues<double>({size}, values);
      if (!stages[s].plain) {
        const Layout whole = Layout::Replicated(mesh.layout(), 1);
        // The last vector is replicated.
        const bool split = v + 1 < stages[s].sizes.size();
        grad =
            DistributeTensor(grad, mesh, split ? whole.WithShard(0, 0) : whole);
      }
      parameters.push_back(
          std::make_unique<Parameter>(Shape{size}, kFloat64, Initializer{}));
      parameters.back()->set_data(grad.Detach());
      parameters.back()->set_grad(grad);
    }
  }
  return parameters;
}

std::vector<Parameter*> Pointers(
    const std::vector<std::unique_ptr<Parameter>>& owned) {
  std::vector<Parameter*> parameters;
  for (const auto& parameter : owned) parameters.push_back(parameter.get());
  return parameters;
}

TEST(ClipGradStages, TheNormIsThatOfAllStagesOnEveryRank) {
  RunRanks(7, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh all,
                        InitDeviceMesh(world, {{"all", 7}}));
    CH_ASSIGN_OR_RETURN(const auto owned, ParametersOf(world));
    for (const double type : {1.0, 2.0, 3.0, kInfinity}) {
      CH_ASSIGN_OR_RETURN(const double norm,
                          GradNorm(Pointers(owned), type, all));
      const double expected = SlowNorm(type);
      CH_EXPECT_LE(std::abs(norm - expected), 1e-13 * expected) << type;
    }
    const double expected = SlowNorm(2);
    CH_ASSIGN_OR_RETURN(
        const float before,
        ClipGradNorm(Pointers(owned), expected / 4, {.over = all}));
    CH_EXPECT_EQ(before, static_cast<float>(expected));
    CH_ASSIGN_OR_RETURN(const double after, GradNorm(Pointers(owned), 2, all));
    CH_EXPECT_LE(std::abs(after - expected / 4), 1e-6 * expected);
    return absl::OkStatus();
  });
}

TEST(ClipGradStages, ANonFiniteGradientIsAnErrorOnEveryStage) {
  RunRanks(7, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh all,
                        InitDeviceMesh(world, {{"all", 7}}));
    CH_ASSIGN_OR_RETURN(const auto owned, ParametersOf(world));
    if (world.rank() == 5) {
      owned[0]->set_grad(FromValues<double>({3}, {1, std::nan(""), 2}));
    }
    for (const double type : {2.0, kInfinity}) {
      const absl::Status status =
          ClipGradNorm(Pointers(owned), 1, {.norm_type = type, .over = all})
              .status();
      CH_EXPECT_TRUE(absl::IsInvalidArgument(status));
      CH_EXPECT_THAT(std::string(status.message()), HasSubstr("nan"));
    }
    return absl::OkStatus();
  });
}

TEST(ClipGradStages, ReportsOverlappingSetsOfRanks) {
  RunRanks(3, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh all,
                        InitDeviceMesh(world, {{"all", 3}}));
    CH_ASSIGN_OR_RETURN(const DeviceMesh two,
                        InitDeviceMesh(world, {{"two", 2}}));
    // Ranks 0 and 1 have a vector on their mesh, rank 2 one on another mesh,
    // which includes rank 1.
    CH_ASSIGN_OR_RETURN(const DeviceMesh last,
                        InitDeviceMesh(world, {{"last", 2}}, {1, 2}));
    const DeviceMesh& mesh = world.rank() < 2 ? two : last;
    const absl::Status status =
        JoinNorms(all, {mesh}, /*norm=*/1, /*norm_type=*/2).status();
    CH_EXPECT_TRUE(absl::IsFailedPrecondition(status));
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("rank 0 has parameters on ranks 0,1, and rank 2 "
                             "on ranks 1,2"));
    return absl::OkStatus();
  });
}

std::unique_ptr<Parameter> OnMeshWhole(const DeviceMesh& mesh,
                                       const std::vector<double>& grad) {
  const auto size = static_cast<int64_t>(grad.size());
  const Layout whole = Layout::Replicated(mesh.layout(), 1);
  auto parameter =
      std::make_unique<Parameter>(Shape{size}, kFloat64, Initializer{});
  parameter->set_data(FromLocal(Zeros({size}, kFloat64), mesh, whole, whole));
  parameter->set_grad(
      FromLocal(FromValues<double>({size}, grad), mesh, whole, whole));
  return parameter;
}

TEST(ClipGradStages, ReportsParametersOfAllStagesMixedWithThoseOfOne) {
  RunRanks(2, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh all,
                        InitDeviceMesh(world, {{"all", 2}}));
    CH_ASSIGN_OR_RETURN(World* const stage, world.Subset({world.rank()}));
    CH_ASSIGN_OR_RETURN(const DeviceMesh own,
                        InitDeviceMesh(*stage, {{"fsdp", 1}}));
    const auto shared = OnMeshWhole(all, {1});
    const auto mine = OnMeshWhole(own, {world.rank() == 0 ? 2.0 : 100.0});
    const absl::Status status =
        GradNorm(std::vector{shared.get(), mine.get()}, 2, all).status();
    CH_EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("ranks 0 and 1 both have parameters on ranks"));
    return absl::OkStatus();
  });
}

TEST(ClipGradStages, EveryStageReportsAnErrorOfOne) {
  RunRanks(4, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh all,
                        InitDeviceMesh(world, {{"all", 4}}));
    CH_ASSIGN_OR_RETURN(
        World* const stage,
        world.Subset(world.rank() < 2 ? std::vector<int>{0, 1}
                                      : std::vector<int>{2, 3}));
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(*stage, {{"fsdp", 2}}));
    const auto p = OnMeshWhole(mesh, {world.rank() == 1 ? std::nan("") : 1, 2});
    // The second call must not wait for the rank that left.
    for (int i = 0; i < 2; ++i) {
      const absl::Status status =
          GradNorm(std::vector{p.get()}, 2, all).status();
      CH_EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      CH_EXPECT_THAT(std::string(status.message()),
                     HasSubstr("ranks differ in a gradient"));
      CH_EXPECT_THAT(std::string(status.message()),
                     HasSubstr(world.rank() == 1 ? "an unnamed parameter holds"
                                                 : "another rank holds"));
      CH_EXPECT_EQ(absl::StrContains(status.message(), "on rank 0: "),
                   world.rank() >= 2);
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::nn
