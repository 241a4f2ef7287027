// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/state_dict.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

struct TestRun {
  int64_t step = 0;
  int64_t position = 0;
  double best = 0;
  std::string name;
  BoundValues data{{{"position", &position}}};
  BoundValues user{{{"best", &best}, {"name", &name}, {"step", &step}}};
  CombinedState all{{{"data", &data}, {"user", &user}}};
};

TEST(CombinedStateTest, KeepsAndRestoresAllParts) {
  TestRun run;
  run.step = 7;
  run.position = 1234;
  run.best = 0.25;
  run.name = "a run";
  const absl::StatusOr<StateDict> kept = run.all.State();
  ASSERT_TRUE(kept.ok());
  EXPECT_THAT(NamesOf(*kept), ElementsAre("data.position", "user.best",
                                          "user.name", "user.step"));
  TestRun again;
  const absl::StatusOr<StateDict> to_fill =
      again.all.StateToFill(NamesOf(*kept));
  ASSERT_TRUE(to_fill.ok()) << to_fill.status();
  EXPECT_EQ(NamesOf(*to_fill), NamesOf(*kept));
  ASSERT_TRUE(again.all.Restore(*kept).ok());
  EXPECT_EQ(again.step, 7);
  EXPECT_EQ(again.position, 1234);
  EXPECT_EQ(again.best, 0.25);
  EXPECT_EQ(again.name, "a run");
}

TEST(CombinedStateTest, ReportsMismatchesOfAllParts) {
  TestRun run;
  const absl::Status status =
      run.all.StateToFill({"data.place", "model.w", "user.best", "user.name"})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("\"data\": "));
  EXPECT_THAT(message, HasSubstr("1 missing (position), 1 unexpected (place)"));
  EXPECT_THAT(message, HasSubstr("\"user\": "));
  EXPECT_THAT(message, HasSubstr("1 missing (step)"));
  EXPECT_THAT(message,
              HasSubstr("the checkpoint has a part \"model\" (1 entry) "
                        "that this CombinedState lacks"));
}

TEST(CombinedStateTest, RestoresInPartWhereAllowed) {
  TestRun run;
  StateDifferences differences;
  CombinedState some({{"data", &run.data}, {"user", &run.user}},
                     {.allow_missing = true,
                      .allow_unexpected = true,
                      .differences = &differences});
  const absl::StatusOr<StateDict> to_fill =
      some.StateToFill({"data.position", "model.w"});
  ASSERT_TRUE(to_fill.ok()) << to_fill.status();
  EXPECT_THAT(NamesOf(*to_fill), ElementsAre("data.position"));
  EXPECT_THAT(differences.missing, ElementsAre("user"));
  EXPECT_THAT(differences.unexpected, ElementsAre("model"));
  StateDict kept;
  ASSERT_TRUE(kept.Add("data.position", int64_t{5}).ok());
  run.step = 3;
  ASSERT_TRUE(some.Restore(kept).ok());
  EXPECT_EQ(run.position, 5);
  EXPECT_EQ(run.step, 3);
}

TEST(BoundValuesTest, SetsAllOrNothing) {
  TestRun run;
  StateDict kept;
  ASSERT_TRUE(kept.Add("best", 0.5).ok());
  ASSERT_TRUE(kept.Add("name", std::string("x")).ok());
  ASSERT_TRUE(kept.Add("step", 1.0).ok());
  const absl::Status status = run.user.Restore(kept);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("\"step\" of the state is a number, not an integer"));
  EXPECT_EQ(run.best, 0);
  EXPECT_EQ(run.name, "");
}

TEST(CombinedStateDeathTest, RequiresDistinctNames) {
  TestRun run;
  EXPECT_DEATH(CombinedState({{"a.b", &run.data}}), "\"a.b\"");
  EXPECT_DEATH(CombinedState({{"a", &run.data}, {"a", &run.user}}), "\"a\"");
}

}  // namespace
}  // namespace crosshatch::nn
