// SPDX-License-Identifier: Apache-2.0

/// \file
/// Groups of AdamW, and a learning rate that follows a schedule. What is
/// between the lines [name] and [/name] is printed in docs/training.md.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/optim_testutil.h"
#include "crosshatch/nn/optim/schedule.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;

TEST(AdamWGroupsTest, GroupsHaveOptionsOfTheirOwn) {
  const Tensor flat = FromVector(Shape{10}, Values(10, 1));
  const Tensor flat_grad = FromVector(Shape{10}, Values(10, 2));
  const char* const names[] = {"up.bias", "up.weight", "norm.weight",
                               "norm.bias", "head.weight"};
  std::vector<AdamWOptions> expected(5, kOptions);
  expected[0].weight_decay = expected[3].weight_decay = 0;
  expected[2].lr *= 0.5;
  expected[2].beta1 = 0.5;
  expected[2].beta2 = 0.75;
  expected[2].eps = 1e-3;
  std::vector<std::unique_ptr<Parameter>> together;
  std::vector<Parameter*> list;
  for (int i = 0; i < 5; ++i) {
    const auto part = [&](const Tensor& all) {
      return MakeView(all.storage(), 2 * i, {2}, {1}, kFloat32);
    };
    together.push_back(MakeParameter(names[i], part(flat)));
    together.back()->set_grad(part(flat_grad));
    list.push_back(together.back().get());
  }
  std::vector<std::vector<float>> values;
  for (int i = 0; i < 5; ++i) {
    const auto alone =
        MakeParameter("alone", Clone(together[i]->data().Detach()));
    alone->set_grad(Clone(together[i]->grad()));
    AdamW optimizer({alone.get()}, expected[i]);
    ASSERT_TRUE(optimizer.Step().ok());
    optimizer.set_lr(2 * expected[i].lr);
    ASSERT_TRUE(optimizer.Step().ok());
    values.push_back(alone->data().ToVector<float>());
  }
  AdamW optimizer(list, kOptions,
                  {{.has = NameMatches("**.bias"), .weight_decay = 0},
                   {.has = NameMatches("norm.*"),
                    .lr_scale = 0.5,
                    .beta1 = 0.5,
                    .beta2 = 0.75,
                    .eps = 1e-3}});
  ASSERT_TRUE(optimizer.Step().ok());
  optimizer.set_lr(2 * kOptions.lr);  // Of all of them.
  ASSERT_TRUE(optimizer.Step().ok());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(together[i]->data().ToVector<float>(), values[i]) << names[i];
    // The groups share one storage.
    EXPECT_EQ(optimizer.state(i).exp_avg.storage(),
              optimizer.state(0).exp_avg.storage());
  }
  EXPECT_EQ(optimizer.OptionsOf(2)->lr, kOptions.lr);
}

TEST(AdamWGroupsTest, LeavesDecayOffVectors) {
  const auto matrix = MakeParameter("w", Ones({2, 2}));
  const auto vector = MakeParameter("b", Ones({4}));
  AdamW optimizer({matrix.get(), vector.get()}, kOptions, {NoDecayOfVectors()});
  EXPECT_EQ(*optimizer.OptionsOf(0), kOptions);
  EXPECT_EQ(optimizer.OptionsOf(1)->weight_decay, 0);
}

TEST(AdamWGroupsTest, FollowsASchedule) {
  const auto embed = MakeParameter("embed.weight", Ones({4, 2}));
  const auto head = MakeParameter("lm.head.weight", Ones({4, 2}));
  const auto norm = MakeParameter("norm.weight", Ones({2}));
  const std::vector<Parameter*> parameters = {embed.get(), head.get(),
                                              norm.get()};
  // [groups]
  AdamW optimizer(parameters, {.lr = 3e-4, .weight_decay = 0.1},
                  {{.has = NameMatches("embed.weight"), .weight_decay = 0},
                   {.has = NameMatches("**.head.*"), .lr_scale = 0.5},
                   NoDecayOfVectors()});  // norms and biases
  // [/groups]
  const int64_t step = 4;
  // [schedule]
  const Schedule rates = {.shape = Schedule::Shape::kCosine,
                          .peak = 3e-4,
                          .warmup = 10,
                          .steps = 100};
  optimizer.set_lr(rates.At(step));
  // [/schedule]
  EXPECT_EQ(*optimizer.OptionsOf(0),
            (AdamWOptions{.lr = rates.At(4), .weight_decay = 0}));
  EXPECT_EQ(*optimizer.OptionsOf(1),
            (AdamWOptions{.lr = rates.At(4) * 0.5, .weight_decay = 0.1}));
  EXPECT_EQ(*optimizer.OptionsOf(2),
            (AdamWOptions{.lr = rates.At(4), .weight_decay = 0}));
  EXPECT_LT(rates.At(4), 3e-4);
}

TEST(AdamWGroupsTest, NamesAGroupThatMakesNoUpdate) {
  const auto parameter = MakeParameter("w", Ones({2}));
  parameter->set_grad(Ones({2}));
  const auto message = [&](std::vector<AdamWGroup> groups) {
    return std::string(
        AdamW({parameter.get()}, kOptions, std::move(groups)).Step().message());
  };
  EXPECT_EQ(message({{.has = NameMatches("**.bais")}}),
            "AdamW: group 0 of 1, of the name pattern \"**.bais\", has none of "
            "the 1 parameters, such as w");
  EXPECT_EQ(
      message({{.has = NameMatches("w")}, {.has = NameMatches("**")}}),
      "AdamW: group 1 of 2, of the name pattern \"**\", has none of the 1 "
      "parameters; the groups before it have them all");
  EXPECT_EQ(message({{.has = [](const Parameter&) { return false; }}}),
            "AdamW: group 0 of 1, of a predicate, has none of the 1 "
            "parameters, such as w");
  EXPECT_THAT(message({{.has = NameMatches("w"), .beta2 = 1}}),
              HasSubstr("AdamW: group 0's beta2 is at least 0 and below 1"));
  EXPECT_EQ(parameter->data().ToVector<float>()[0], 1.0f);
}

}  // namespace
}  // namespace crosshatch::nn
