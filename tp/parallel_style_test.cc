// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallel_style.h"

#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

// Its output is its input, twice as large.
class Twice final : public nn::Module {
 public:
  const char* type_name() const override { return "Twice"; }

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

// What a rank sees of one style on one mesh.
struct Seen {
  bool distributed = false;
  std::vector<float> local;     // The output as this rank has it.
  std::vector<float> wanted;    // Its part of the whole output.
  std::vector<float> gradient;  // Of the input, for a sum of the whole output.
};

absl::StatusOr<Seen> SeenWith(World& world,
                              const PrepareOutputOptions& options) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, {{"tp", world.size()}}));
  Twice twice;
  CH_RETURN_IF_ERROR(
      ParallelizeModule(twice, mesh, {{"", PrepareModuleOutput(options)}}));
  const auto part = [&](float factor,
                        const Placement& placement) -> absl::StatusOr<Tensor> {
    CH_ASSIGN_OR_RETURN(
        const Layout layout,
        Layout::FromPlacements(mesh.layout(), 2, {&placement, 1}));
    return LocalTensor(DistributeTensor(
        FromValues<float>({kRows, kCols}, Values(factor)), mesh, layout));
  };
  CH_ASSIGN_OR_RETURN(const Tensor wanted, part(2, options.desired));
  // A rank's part of the input, where the plain output is a shard.
  CH_ASSIGN_OR_RETURN(const Tensor given, part(1, options.output));
  const Tensor input = Clone(given).set_requires_grad(true);

  const Tensor output = twice.Forward(input);
  Seen seen;
  seen.distributed = output.is_distributed();
  const Tensor local = seen.distributed ? LocalTensor(output) : output;
  seen.local = local.ToVector<float>();
  seen.wanted = wanted.ToVector<float>();
  CH_RETURN_IF_ERROR(Backward(Sum(output)));
  seen.gradient = input.grad().ToVector<float>();
  return seen;
}

TEST(PrepareModuleOutputTest, BringsTheFirstOutputIntoALayout) {
  for (const int ranks : {1, 2, 3}) {
    for (const Placement& output : {Replicate(), Shard(0), Shard(1)}) {
      for (const Placement& desired : {Replicate(), Shard(0), Shard(1)}) {
        for (const bool local : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << ranks << " ranks, " << output.ToString() << " to "
                       << desired.ToString() << (local ? ", local" : ""));
          std::vector<Seen> seen(static_cast<size_t>(ranks));
          const absl::Status status =
              StatusOfRanks(ranks, [&](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(
                    seen[static_cast<size_t>(world.rank())],
                    SeenWith(world, {.output = output,
                                     .desired = desired,
                                     .use_local_output = local}));
                return world.context().Synchronize();
              });
          ASSERT_TRUE(status.ok()) << status;
          for (const Seen& rank : seen) {
            EXPECT_EQ(rank.distributed, !local);
            EXPECT_EQ(rank.local, rank.wanted);
            if (!local) {
              EXPECT_EQ(rank.gradient,
                        std::vector<float>(rank.gradient.size(), 2.0f));
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace crosshatch::tp
