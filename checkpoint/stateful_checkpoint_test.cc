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

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
    if (fails_ == "names") return absl::InvalidArgumentError("lacks a part");
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

TEST(CheckpointTest, ReportsShapesBesidesMissingNames) {
  const std::string dir = FreshDir("shapes");
  RunRanks(1, [&](World& world) -> absl::Status {
    Counter counter;
    CH_RETURN_IF_ERROR(SaveCheckpoint(world, counter, dir));
    counter.values_ = Zeros({4}, kFloat32);
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("values", counter.values_));
    CH_RETURN_IF_ERROR(state.Add("more", int64_t{1}));
    counter.fails_ = "names";
    const std::string shapes =
        "; \"values\" has shape [3], and the state's is [4]";
    CH_EXPECT_THAT(std::string(LoadCheckpoint(world, counter, dir).message()),
                   HasSubstr("lacks a part" + shapes));
    CH_EXPECT_THAT(std::string(LoadCheckpoint(world, state, dir).message()),
                   AllOf(HasSubstr("lacks more"), HasSubstr(shapes)));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::checkpoint
