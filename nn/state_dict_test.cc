// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/state_dict.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

TEST(StateDictTest, PartsComeBackByTheirPrefix) {
  StateDict model;
  ASSERT_TRUE(model.Add("weight", int64_t{3}).ok());
  StateDict all;
  ASSERT_TRUE(all.AddAll("model", model).ok());
  // Neither belongs to the part "model".
  ASSERT_TRUE(all.Add("model", 0.5).ok());
  ASSERT_TRUE(all.Add("model2.weight", std::string("x")).ok());

  const StateDict part = all.Part("model");
  EXPECT_EQ(part.size(), 1);
  EXPECT_EQ(part.Get<int64_t>("weight").value(), 3);
}

TEST(StateDictTest, NamesAreThereOnce) {
  StateDict state;
  ASSERT_TRUE(state.Add("a", 1.0).ok());
  EXPECT_EQ(state.Add("a", 2.0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(state.Get<double>("a").value(), 1.0);
  EXPECT_EQ(state.Add("", 2.0).code(), absl::StatusCode::kInvalidArgument);
}

TEST(StateDictTest, NamesTheTypeOfAnEntry) {
  StateDict state;
  ASSERT_TRUE(state.Add("step", int64_t{7}).ok());
  EXPECT_EQ(state.Get<int64_t>("steps").status(),
            absl::NotFoundError("the state has no entry \"steps\""));
  EXPECT_EQ(state.Get<Tensor>("step").status(),
            absl::InvalidArgumentError("the entry \"step\" of the state is an "
                                       "integer, not a tensor"));
}

}  // namespace
}  // namespace crosshatch::nn
