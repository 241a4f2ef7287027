// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/custom_comm.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

absl::Status Use(const CustomComm& custom, nn::Module& model) {
  return Configure(model, [&](Settings& s) {
    s.custom_comm = std::make_shared<const CustomComm>(custom);
  });
}

// Returns rank 0's gradients on a mesh, after `customize` on each rank.
template <typename Customize>
std::vector<std::vector<float>> Gradients(std::vector<MeshAxis> axes,
                                          Customize customize,
                                          uint64_t adversarial_seed = 0) {
  std::vector<std::vector<float>> gradients;
  const auto body = [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    TestModel model(2, 5, 7, 3);
    model.FillWithIntegers();
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    FullyShardOptions options;
    options.reduction.divide_factor = 1;
    for (auto& block : model.blocks()) {
      CH_RETURN_IF_ERROR(FullyShard(*block, fsdp, options));
    }
    CH_RETURN_IF_ERROR(FullyShard(model, fsdp, options));
    CH_RETURN_IF_ERROR(customize(world, mesh, model));
    const Tensor x = SmallIntegers({4, 5}, world.rank());
    CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(x))));
    NoGrad no_grad;
    for (nn::Parameter* p : model.Parameters()) {
      const std::vector<float> full = FullTensor(p->grad()).ToVector<float>();
      if (world.rank() == 0) gradients.push_back(full);
    }
    return world.context().Synchronize();
  };
  OnMesh(axes, body, {.test = {.adversarial_seed = adversarial_seed}});
  return gradients;
}

absl::Status Nothing(World&, const DeviceMesh&, nn::Module&) {
  return absl::OkStatus();
}

TEST(CustomCommTest, ReplacesAllGathersAndReductions) {
  std::map<std::string, int> gathers;
  std::map<std::string, int> reductions;
  const auto custom = [&](World& world, const DeviceMesh&, nn::Module& model) {
    const auto counting = [&world](std::map<std::string, int>& counts) {
      return [&world, &counts](Communicator& communicator,
                               Collective collective, Stream& stream) {
        if (world.rank() == 0) ++counts[collective.label];
        return communicator.Issue(std::move(collective), stream);
      };
    };
    return Use({.all_gather = counting(gathers),
                .reduce_scatter = counting(reductions)},
               model);
  };
  EXPECT_EQ(Gradients({{"fsdp", 3}}, custom),
            Gradients({{"fsdp", 3}}, Nothing));
  EXPECT_THAT(gathers, ElementsAre(Pair("blocks.0", 2), Pair("blocks.1", 2),
                                   Pair("head", 1)));
  EXPECT_THAT(reductions, ElementsAre(Pair("blocks.0", 1), Pair("blocks.1", 1),
                                      Pair("head", 1)));
}

// The hook reduces over replicas outside FullyShard's mesh.
TEST(CustomCommTest, AHookReducesFurther) {
  const std::vector<std::vector<float>> whole =
      Gradients({{"fsdp", 4}}, Nothing);
  for (const bool own_stream : {false, true}) {
    const auto hook = [&](World& world, const DeviceMesh& mesh,
                          nn::Module& model) -> absl::Status {
      Stream& stream = world.context().SideStream(
          own_stream ? "hook" : "fsdp_reduce_scatter");
      CH_ASSIGN_OR_RETURN(Communicator * replicas,
                          mesh.communicator(0, stream.name()));
      return Use({.all_reduce_hook =
                      [replicas, &world](const Tensor& reduced) {
                        CH_EXPECT_OK(AllReduce(
                            *replicas, reduced.raw_data(), reduced.numel(),
                            reduced.dtype(), ReduceOp::kSum,
                            world.context().current_stream(), "hook"));
                      },
                  .hook_stream = own_stream ? &stream : nullptr},
                 model);
    };
    for (const uint64_t seed : {0, 1, 2}) {
      EXPECT_EQ(Gradients({{"replicate", 2}, {"fsdp", 2}}, hook, seed), whole)
          << "seed " << seed;
    }
  }
}

// Optimizers that step within backward, one per parameter, give the result of
// one optimizer that steps after backward, and keep no gradient.
TEST(CustomCommTest, StepsWhereGradientsAreReady) {
  struct Case {
    std::vector<MeshAxis> axes;
    FullyShardOptions options;
  };
  std::vector<Case> cases = {{{{"fsdp", 3}}, {}},
                             {{{"replicate", 2}, {"fsdp", 2}}, {}},
                             {{{"fsdp", 3}}, {}}};
  cases[1].options.cpu_offload = true;
  cases[2].options.mixed_precision.reduce_dtype = kFloat64;
  const uint64_t seeds = FuzzCases("CROSSHATCH_FUZZ_STREAM_SEEDS", 21);
  for (const Case& c : cases) {
    const auto train = [&c](bool within, uint64_t seed) {
      std::vector<std::vector<float>> weights;
      const auto body = [&](const DeviceMesh& mesh) -> absl::Status {
        World& world = mesh.world();
        TestModel model(2, 5, 7, 3);
        model.FillWithIntegers();
        for (auto& block : model.blocks()) {
          CH_RETURN_IF_ERROR(FullyShard(*block, mesh, c.options));
        }
        CH_RETURN_IF_ERROR(FullyShard(model, mesh, c.options));
        nn::AdamW whole(model.Parameters(), {.lr = 0.125});
        std::map<nn::Parameter*, nn::AdamW> each;
        std::vector<std::string> order;
        if (within) {
          for (nn::Parameter* p : model.Parameters()) {
            each.try_emplace(p, std::vector<nn::Parameter*>{p},
                             nn::AdamWOptions{.lr = 0.125});
          }
          const auto step = [&](nn::Parameter& p) {
            order.push_back(p.name());
            CH_EXPECT_OK(each.at(&p).Step());
            p.set_grad(Tensor());
          };
          CH_RETURN_IF_ERROR(Use({.gradient_ready = step}, model));
        }
        for (int step = 0; step < 3; ++step) {
          const Tensor x = SmallIntegers({4, 5}, 5 * step + world.rank());
          CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(x))));
          if (!within) {
            CH_RETURN_IF_ERROR(whole.Step());
            whole.ZeroGrad();
          }
          for (nn::Parameter* p : model.Parameters()) {
            CH_EXPECT_FALSE(p->grad().defined());
          }
        }
        if (within) {
          CH_EXPECT_EQ(order.size(), 3 * each.size());
          CH_EXPECT_EQ(order.front(), "head.weight");
        }
        NoGrad no_grad;
        for (nn::Parameter* p : model.Parameters()) {
          std::vector<float> full = FullTensor(p->data()).ToVector<float>();
          if (world.rank() == 0) weights.push_back(std::move(full));
        }
        return world.context().Synchronize();
      };
      OnMesh(c.axes, body, {.test = {.adversarial_seed = seed}});
      return weights;
    };
    const auto expected = train(false, 0);
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      ASSERT_EQ(train(true, seed), expected) << "seed " << seed;
    }
  }
}

enum class When { kInsteadOfIssuing, kAfterIssuing };
// Whether gathers (not reductions) fail; when; whether on all ranks (not one).
using ErrorCase = std::tuple<bool, When, bool>;

class CustomCommErrorTest : public testing::TestWithParam<ErrorCase> {};

// An error of one rank, before or after it issued the collective, or of all
// ranks reaches every rank with the group's name. Nothing hangs.
TEST_P(CustomCommErrorTest, EveryRankReportsIt) {
  const bool gathers = std::get<0>(GetParam());
  const When when = std::get<1>(GetParam());
  const bool everywhere = std::get<2>(GetParam());
  for (const uint64_t seed : {0, 1, 2}) {
    SCOPED_TRACE(absl::StrCat("adversarial seed ", seed));
    const auto body = [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(world, {{"fsdp", 3}}));
      TestModel model(2, 5, 7, 3);
      model.FillWithIntegers();
      for (auto& block : model.blocks()) {
        CH_RETURN_IF_ERROR(FullyShard(*block, mesh));
      }
      CH_RETURN_IF_ERROR(FullyShard(model, mesh));
      const CustomComm::Issue fails = [&](Communicator& communicator,
                                          Collective collective,
                                          Stream& stream) -> absl::Status {
        const bool mine = everywhere || world.rank() == 1;
        if (!mine || when == When::kAfterIssuing) {
          CH_RETURN_IF_ERROR(communicator.Issue(std::move(collective), stream));
        }
        if (!mine) return absl::OkStatus();
        return absl::UnavailableError("the wire is cut");
      };
      CH_RETURN_IF_ERROR(Use(gathers ? CustomComm{.all_gather = fails}
                                     : CustomComm{.reduce_scatter = fails},
                             *model.blocks()[1]));
      absl::Status status;
      // The second step finds errors that arrive late.
      for (int step = 0; step < 2; ++step) {
        const Tensor x = SmallIntegers({4, 5}, world.rank());
        status.Update(Backward(Sum(model.Forward(x))));
      }
      // Streams report late errors here.
      status.Update(world.context().Synchronize());
      CH_EXPECT_FALSE(status.ok());
      CH_EXPECT_THAT(std::string(status.message()),
                     HasSubstr("the wire is cut"));
      CH_EXPECT_THAT(
          std::string(status.message()),
          HasSubstr(gathers ? "all_gather of the FSDP group blocks.1"
                            : "reduce_scatter of the FSDP group blocks.1"));
      return status;
    };
    const absl::Status status =
        StatusOfRanks(3, body, {.test = {.adversarial_seed = seed}});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
}

std::string NameOfCase(const testing::TestParamInfo<ErrorCase>& info) {
  const auto& [gathers, when, everywhere] = info.param;
  return absl::StrCat(gathers ? "gathers" : "reductions",
                      when == When::kAfterIssuing ? "_after" : "_instead",
                      everywhere ? "_on_all" : "_on_one");
}

INSTANTIATE_TEST_SUITE_P(
    Errors, CustomCommErrorTest,
    testing::Combine(testing::Bool(),
                     testing::Values(When::kInsteadOfIssuing,
                                     When::kAfterIssuing),
                     testing::Bool()),
    NameOfCase);

}  // namespace
}  // namespace crosshatch::fsdp
