// SPDX-License-Identifier: Apache-2.0

/// \file
/// Checkpoints of an nn::Stateful, which creates its state on request.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::ElementsAre;

/// Fails in a given method on one rank.
class Counter final : public nn::Stateful {
 public:
  absl::StatusOr<nn::StateDict> State() override {
    if (fails_ == "state") return absl::FailedPreconditionError("not now");
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("count", count_));
    CH_RETURN_IF_ERROR(state.Add("values", values_));
    return state;
  }
  absl::StatusOr<nn::StateDict> StateToFill(
      const std::vector<std::string>& saved) override {
    CH_EXPECT_THAT(saved, ElementsAre("count", "values"));
    if (fails_ == "fill") return absl::FailedPreconditionError("not now");
    return State();
  }
  absl::Status Restore(const nn::StateDict& state) override {
    if (fails_ == "restore") return absl::FailedPreconditionError("not now");
    CH_ASSIGN_OR_RETURN(count_, state.Get<int64_t>("count"));
    return absl::OkStatus();
  }

  std::string fails_;
  int64_t count_ = 0;
  Tensor values_ = Zeros({3}, kFloat32);
};

TEST(CheckpointTest, KeepsAStatefulAndGathersItsErrors) {
  const std::string dir = FreshDir("stateful");
  RunRanks(2, [&](World& world) -> absl::Status {
    Counter counter;
    counter.count_ = 7;
    counter.values_ = FromValues<float>({3}, {1, 2, 3});
    CH_RETURN_IF_ERROR(SaveCheckpoint(world, counter, dir));
    Counter other;
    CH_RETURN_IF_ERROR(LoadCheckpoint(world, other, dir));
    CH_EXPECT_EQ(other.count_, 7);
    CH_EXPECT_EQ(other.values_.ToVector<float>(),
                 (std::vector<float>{1, 2, 3}));
    for (const char* place : {"state", "fill", "restore"}) {
      if (world.rank() == 1) other.fails_ = place;
      const absl::Status status =
          other.fails_ == "state" || std::string(place) == "state"
              ? SaveCheckpoint(world, other, dir, {.overwrite = true})
              : LoadCheckpoint(world, other, dir);
      CH_EXPECT_EQ(status, absl::FailedPreconditionError("on rank 1: not now"))
          << place;
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::checkpoint
