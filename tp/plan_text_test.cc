// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/plan_text.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::string Refusal(const std::string& text) {
  const absl::StatusOr<ParallelPlan> plan = ParsePlan(text, "a.plan");
  EXPECT_TRUE(absl::IsInvalidArgument(plan.status())) << plan.status();
  return std::string(plan.status().message());
}

TEST(PlanTextTest, HasALineForEachModule) {
  const auto plan = ParsePlan(
      "# A comment.\n"
      "\n"
      "up\tColwiseParallel   output=S(-1)  # and another\r\n"
      "down RowwiseParallel output=S(1) use_local_output\n"
      ". PrepareModuleOutput output=P desired=R",
      "a.plan");
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->size(), 3u);
  EXPECT_EQ((*plan)[0].first, "up");
  EXPECT_EQ(std::string((*plan)[0].second->name()), "ColwiseParallel");
  EXPECT_EQ((*plan)[1].first, "down");
  EXPECT_EQ((*plan)[2].first, "") << "the root";
}

TEST(PlanTextTest, NamesTheWrongLineAndTheFix) {
  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"", "a.plan: holds no plan"},
      {"# nothing\n\n", "a.plan: holds no plan"},
      {"\nup", "a.plan, line 2: \"up\" has no style; a line is PATTERN STYLE"},
      {"up Colwise",
       "line 1: there is no style \"Colwise\"; there are "
       "ColwiseParallel, RowwiseParallel, "},
      {"up ColwiseParallel in=R",
       "ColwiseParallel has no option \"in\"; it "
       "takes: [input=LAYOUT] [output=LAYOUT] "
       "[use_local_output] [unit=COUNT]"},
      {"up ColwiseParallel output=S",
       "\"output=S\" is not output=LAYOUT, with "
       "a layout R, S(dim) or P(op)"},
      {"up ColwiseParallel output=_S(0,2)", "is not output=LAYOUT"},
      {"up ColwiseParallel output", "\"output\" is not output=LAYOUT"},
      {"up ColwiseParallel output=R output=R", "the option output comes twice"},
      {"up ColwiseParallel use_local_output=1", "is not use_local_output"},
      {"up SequenceParallel sequence_dim=x", "is not sequence_dim=DIM"},
      {"up ColwiseParallel unit=0", "\"unit=0\" is not unit=COUNT"},
      {"up PrepareModuleInput input=R", "PrepareModuleInput lacks desired"},
  };
  for (const auto& c : cases) EXPECT_THAT(Refusal(c.text), HasSubstr(c.says));
}

TEST(PlanTextTest, RefusesDimsOutOfRange) {
  const auto status_of = [](const char* text) {
    return std::string(ParsePlan(text, "a.plan", 4).status().message());
  };
  EXPECT_EQ(status_of("up ColwiseParallel output=S(3)"), "");
  EXPECT_EQ(status_of("up ColwiseParallel output=S(-4)"), "");
  EXPECT_THAT(status_of("up ColwiseParallel output=S(4)"),
              HasSubstr("a.plan, line 1: \"output=S(4)\": activations have at "
                        "most 4 dims, 0 to 3 or -1 to -4"));
  EXPECT_THAT(status_of("up SequenceParallel sequence_dim=-5"),
              HasSubstr("at most 4 dims"));
}

TEST(PlanTextTest, OptionsAreThoseOfTheStyles) {
  OnMesh({3}, [](const DeviceMesh& mesh) -> absl::Status {
    nn::Linear linear(5, 7, {.bias = true});
    CH_RETURN_IF_ERROR(linear.Materialize({.seed = 3}));
    const Tensor input = Ones({2, 5});
    const Tensor expected = linear.Forward(input);
    CH_ASSIGN_OR_RETURN(const ParallelPlan plan,
                        ParsePlan(". ColwiseParallel output=S(0)", "a.plan"));
    CH_RETURN_IF_ERROR(ParallelizeModule(linear, mesh, plan));
    const Tensor output = linear.Forward(input);
    CH_EXPECT_EQ(LayoutOf(output).ToString(), "[S(0)]");
    CH_EXPECT_THAT(FullTensor(output).ToVector<float>(),
                   Pointwise(FloatNear(1e-6f), expected.ToVector<float>()));
    return absl::OkStatus();
  });
}

TEST(LlamaPlanTextTest, LaysTheModelOutOnAnyNumberOfRanks) {
  for (const bool qk_norm : {false, true}) {
    const nn::LlamaConfig config = {
        .family = qk_norm ? nn::LlamaFamily::kQwen3 : nn::LlamaFamily::kLlama,
        .dim = 12,
        .layers = 1,
        .heads = 3,
        .kv_heads = 1,
        .ffn = 7,
        .vocab = 11,
        .qk_norm = qk_norm};
    const std::string text = LlamaPlanText(config);
    EXPECT_EQ(text.find("[qk]_norm") != std::string::npos, qk_norm) << text;
    OnMesh({2}, [&](const DeviceMesh& mesh) -> absl::Status {
      nn::Llama model(config);
      CH_ASSIGN_OR_RETURN(const ParallelPlan plan, ParsePlan(text, "Llama's"));
      CH_RETURN_IF_ERROR(ParallelizeModule(model, mesh, plan));
      for (const auto& [name, parameter] : model.NamedParameters()) {
        CH_EXPECT_TRUE(parameter->data().is_distributed()) << name;
      }
      return absl::OkStatus();
    });
  }
}

TEST(PlanStylesTest, ThePageListsThem) {
  std::ifstream file("docs/training.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& style : PlanStyles()) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", style, "\n")));
  }
}

}  // namespace
}  // namespace crosshatch::tp
