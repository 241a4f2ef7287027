// SPDX-License-Identifier: Apache-2.0

// The norm of gradients on a slice of a mesh whose other slices hold replicas
// or other tensors, compared with a plain sum.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kSlices = 2;
constexpr int kRanksOfASlice = 2;

// The contents of the slices for one parameter.
enum class Kind {
  kCopy,
  kOther,
  // Other tensors; the last rank has no gradient.
  kOtherButOnTheLastRank,
  // A gradient on the first slice only.
  kOnFirstSlice,
  // Replicas with equal elements, so that shards of a slice are equal too.
  kAlike,
  kZeros,
  kWithoutGradient,
};
constexpr Kind kKinds[] = {
    Kind::kCopy,           Kind::kOther, Kind::kOtherButOnTheLastRank,
    Kind::kOnFirstSlice,   Kind::kAlike, Kind::kZeros,
    Kind::kWithoutGradient};

bool HasGrad(Kind kind, int slice, int rank_of_slice) {
  switch (kind) {
    case Kind::kWithoutGradient:
      return false;
    case Kind::kOnFirstSlice:
      return slice == 0;
    case Kind::kOtherButOnTheLastRank:
      return slice != kSlices - 1 || rank_of_slice != kRanksOfASlice - 1;
    default:
      return true;
  }
}

// Returns element i of a slice's p-th gradient. Elements have both signs and
// are distinct.
double Element(Kind kind, int slice, int p, int64_t i) {
  if (kind == Kind::kZeros) return 0;
  if (kind == Kind::kAlike) return -1.5;
  const bool differs =
      kind == Kind::kOther || kind == Kind::kOtherButOnTheLastRank;
  const int64_t tensor = 2 * p + (differs ? slice : 0);
  const double size = 0.25 + static_cast<double>((tensor * 7 + i) * 53 % 997);
  return (i + tensor) % 2 == 0 ? size / 256 : -size / 256;
}

// The half-open range of a vector that a rank of a slice holds.
struct Range {
  int64_t begin;
  int64_t end;
};
Range ShardOf(int64_t numel, int rank_of_slice) {
  const int64_t width = (numel + kRanksOfASlice - 1) / kRanksOfASlice;
  return {std::min(numel, rank_of_slice * width),
          std::min(numel, (rank_of_slice + 1) * width)};
}

// Returns the norm over each distinct tensor's elements.
double SlowNorm(const std::vector<Kind>& kinds, int64_t numel, double type) {
  double sum = 0;
  double largest = 0;
  for (size_t p = 0; p < kinds.size(); ++p) {
    const bool once = kinds[p] == Kind::kCopy || kinds[p] == Kind::kAlike ||
                      kinds[p] == Kind::kOnFirstSlice;
    for (int slice = 0; slice < (once ? 1 : kSlices); ++slice) {
      for (int rank = 0; rank < kRanksOfASlice; ++rank) {
        if (!HasGrad(kinds[p], slice, rank)) continue;
        const Range shard = ShardOf(numel, rank);
        for (int64_t i = shard.begin; i < shard.end; ++i) {
          const double size =
              std::abs(Element(kinds[p], slice, static_cast<int>(p), i));
          largest = std::max(largest, size);
          if (!std::isinf(type)) sum += std::pow(size, type);
        }
      }
    }
  }
  return std::isinf(type) ? largest : std::pow(sum, 1 / type);
}

// Returns a sharded vector of zeros on `mesh`, without a gradient.
std::unique_ptr<Parameter> VectorOn(const DeviceMesh& mesh, int64_t numel) {
  auto parameter =
      std::make_unique<Parameter>(Shape{numel}, kFloat64, Initializer{});
  const Range shard = ShardOf(numel, mesh.coordinate()->at(0));
  parameter->set_data(MakeDTensor(
      Zeros({shard.end - shard.begin}, kFloat64), mesh,
      Layout::Replicated(mesh.layout(), 1).WithShard(0, 0), Shape{numel}));
  return parameter;
}

using Parameters = std::vector<std::unique_ptr<Parameter>>;

// Returns parameters on the slices "tp" whose gradients are neighbours in one
// storage, as in an FSDP group.
Parameters OnSlices(const DeviceMesh& tp, int slice,
                    const std::vector<Kind>& kinds, int64_t numel) {
  const int rank = tp.coordinate()->at(0);
  const Range shard = ShardOf(numel, rank);
  std::vector<double> values;
  for (size_t p = 0; p < kinds.size(); ++p) {
    for (int64_t i = shard.begin; i < shard.end; ++i) {
      values.push_back(Element(kinds[p], slice, static_cast<int>(p), i));
    }
  }
  const Tensor flat = FromValues<double>({static_cast<int64_t>(values.size())},
                                         absl::MakeConstSpan(values));
  Parameters parameters;
  const int64_t width = shard.end - shard.begin;
  for (size_t p = 0; p < kinds.size(); ++p) {
    parameters.push_back(VectorOn(tp, numel));
    if (!HasGrad(kinds[p], slice, rank)) continue;
    const Tensor local =
        MakeView(flat.storage(), static_cast<int64_t>(p) * width, {width}, {1},
                 kFloat64);
    parameters.back()->set_grad(
        MakeDTensor(local, tp, LayoutOf(parameters.back()->data()), {numel}));
  }
  return parameters;
}

std::vector<Parameter*> Pointers(const Parameters& parameters) {
  std::vector<Parameter*> pointers;
  for (const auto& parameter : parameters) pointers.push_back(parameter.get());
  return pointers;
}

// Returns all lists of one, two and three kinds.
std::vector<std::vector<Kind>> Mixtures() {
  std::vector<std::vector<Kind>> mixtures;
  for (const Kind a : kKinds) {
    mixtures.push_back({a});
    for (const Kind b : kKinds) {
      mixtures.push_back({a, b});
      for (const Kind c : kKinds) mixtures.push_back({a, b, c});
    }
  }
  return mixtures;
}

TEST(GradNormOnSlicesTest, CountsCopiesOnceAndOthersEachInAnyOrder) {
  OnMesh(
      {{"dp", kSlices}, {"tp", kRanksOfASlice}},
      [](const DeviceMesh& mesh) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
        const int slice = mesh.coordinate()->at(0);
        for (const std::vector<Kind>& kinds : Mixtures()) {
          for (const int64_t numel : {0, 1, 4, 5}) {
            const Parameters parameters = OnSlices(tp, slice, kinds, numel);
            for (const double type : {1.0, 2.0, 3.0, kInfinity}) {
              std::string which = absl::StrCat(numel, " elements, norm ", type);
              for (const Kind kind : kinds) {
                absl::StrAppend(&which, ", ", static_cast<int>(kind));
              }
              const double expected = SlowNorm(kinds, numel, type);
              CH_ASSIGN_OR_RETURN(const double norm,
                                  GradNorm(Pointers(parameters), type));
              // 30 additions, and a power of two roundings each.
              CH_EXPECT_NEAR(norm, expected, expected * 40 * 0x1p-52) << which;
            }
          }
        }
        return absl::OkStatus();
      });
}

// The parameters alternate between the whole mesh, plain tensors and the other
// slices.
TEST(GradNormOnSlicesTest, CombineWithParametersOnTheRootMesh) {
  OnMesh({{"dp", kSlices}, {"tp", kRanksOfASlice}},
         [](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
           CH_ASSIGN_OR_RETURN(const DeviceMesh dp, mesh.Slice("dp"));
           const std::vector<Kind> along_tp = {Kind::kOther, Kind::kCopy};
           const std::vector<Kind> along_dp = {Kind::kCopy, Kind::kOther,
                                               Kind::kCopy};
           const Parameters of_tp =
               OnSlices(tp, mesh.coordinate()->at(0), along_tp, 5);
           const Parameters of_dp =
               OnSlices(dp, mesh.coordinate()->at(1), along_dp, 3);
           Parameter on_all({2}, kFloat64, Initializer{});
           on_all.set_data(MakeDTensor(
               Full({1}, 3, kFloat64), mesh,
               Layout::Replicated(mesh.layout(), 1).WithShard(0, 0), {2}));
           on_all.set_grad(on_all.data().Detach());
           Parameter plain({1}, kFloat64, Initializer{});
           plain.set_data(Full({1}, 2, kFloat64));
           plain.set_grad(plain.data().Detach());
           const double squares = std::pow(SlowNorm(along_tp, 5, 2), 2) +
                                  std::pow(SlowNorm(along_dp, 3, 2), 2) +
                                  2 * 3 * 3 + 2 * 2;
           const std::vector<Parameter*> all = {
               of_dp[0].get(), &on_all,        of_tp[0].get(), of_dp[1].get(),
               &plain,         of_tp[1].get(), of_dp[2].get()};
           CH_ASSIGN_OR_RETURN(const double norm, GradNorm(all));
           CH_EXPECT_NEAR(norm, std::sqrt(squares), norm * 40 * 0x1p-52);
           return absl::OkStatus();
         });
}

TEST(GradNormOnSlicesTest, DetectsAnInfiniteReplicaOfAFinitePart) {
  OnMesh({{"dp", kSlices}, {"tp", kRanksOfASlice}},
         [](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
           const auto parameter = VectorOn(tp, 2);
           for (const int infinite : {0, 1}) {
             const bool here = mesh.coordinate()->at(0) == infinite;
             parameter->set_grad(
                 MakeDTensor(Full({1}, here ? kInfinity : 1.0, kFloat64), tp,
                             LayoutOf(parameter->data()), {2}));
             for (const double type : {1.0, 2.0, 3.0, kInfinity}) {
               CH_ASSIGN_OR_RETURN(const double norm,
                                   GradNorm({parameter.get()}, type));
               CH_EXPECT_EQ(norm, kInfinity) << infinite << ", norm " << type;
             }
           }
           return absl::OkStatus();
         });
}

// With different counts, replicas cannot be matched.
TEST(GradNormOnSlicesTest, RanksWithOtherNumbersOfParametersAreNamed) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  std::vector<absl::Status> statuses(kSlices * kRanksOfASlice);
  const absl::Status job = StatusOfRanks(
      kSlices * kRanksOfASlice, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(
            const DeviceMesh mesh,
            InitDeviceMesh(world, {{"dp", kSlices}, {"tp", kRanksOfASlice}}));
        CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
        const int slice = mesh.coordinate()->at(0);
        const std::vector<Kind> kinds(slice == 0 ? 2 : 3, Kind::kCopy);
        const Parameters parameters = OnSlices(tp, slice, kinds, 3);
        const absl::Status status = GradNorm(Pointers(parameters)).status();
        statuses[static_cast<size_t>(world.rank())] = status;
        return status;
      });
  EXPECT_FALSE(job.ok());
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    for (const char* of_slice :
         {"2 trained parameters on slices; must be equal on all ranks of "
          "mesh(dp=2, tp=2)' on ranks 0, 1",
          "3 trained parameters on slices; must be equal on all ranks of "
          "mesh(dp=2, tp=2)' on ranks 2, 3"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(of_slice));
    }
  }
}

}  // namespace
}  // namespace crosshatch::nn
