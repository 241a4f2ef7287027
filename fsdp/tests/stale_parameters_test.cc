// SPDX-License-Identifier: Apache-2.0

/// \file
/// Parameters that are written between a forward and its backward: a gradient
/// never mixes old and new values. On plain tensors, a backward stops if a
/// tensor that it saved was changed. Under FSDP the same holds for every writer
/// and policy. Parameters that the backward does not need may be written.

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/odd_models_testutil.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/fsdp/writers_testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/expect.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

// How the model is sharded.
struct Policy {
  std::string name;
  Axes axes;
  std::function<void(FullyShardOptions&)> set = [](FullyShardOptions&) {};
  bool replicated = false;
  bool tied = false;
  bool reshard_after_backward = true;
};

struct Case {
  Writer writer;
  Policy policy;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.policy.name << "_" << c.writer.name;
}

std::vector<Case> Cases() {
  std::vector<Policy> policies;
  policies.push_back({"Plain", {{"fsdp", 2}}});
  // With 6 or 5 rows on 4 ranks, rank 3 has none.
  policies.push_back({"Uneven", {{"fsdp", 4}}});
  policies.push_back({"Kept", {{"fsdp", 2}}, [](FullyShardOptions& o) {
                        o.reshard_after_forward = false;
                      }});
  policies.push_back({"PostForward", {{"fsdp", 4}}, [](FullyShardOptions& o) {
                        o.post_forward_mesh_size = 2;
                      }});
  policies.push_back({"Hsdp", {{"replicate", 2}, {"fsdp", 2}}});
  policies.push_back({"BFloat16", {{"fsdp", 2}}, [](FullyShardOptions& o) {
                        o.mixed_precision.param_dtype = kBFloat16;
                      }});
  policies.push_back({"Offload", {{"fsdp", 2}}, [](FullyShardOptions& o) {
                        o.cpu_offload = true;
                      }});
  policies.push_back(
      {.name = "Replicated", .axes = {{"data", 2}}, .replicated = true});
  policies.push_back({.name = "Tied", .axes = {{"fsdp", 2}}, .tied = true});
  policies.push_back({.name = "KeptAfterBackward",
                      .axes = {{"fsdp", 2}},
                      .reshard_after_backward = false});
  std::vector<Case> cases;
  for (const Policy& policy : policies) {
    for (const Writer& writer : Writers()) {
      // Gathered parameters cannot be summoned.
      if (!policy.reshard_after_backward && writer.name == "Summon") continue;
      cases.push_back({writer, policy});
    }
  }
  return cases;
}

class StaleParametersDeathTest : public ::testing::TestWithParam<Case> {};

// l1 = f(x), l2 = f(x), Backward(l1), a write, Backward(l2).
TEST_P(StaleParametersDeathTest, StopsBeforeItMixesOldAndNew) {
  const auto& [writer, policy] = GetParam();
  const auto train = [&] {
    OnRanks(policy.axes,
            [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
              const auto run = [&](nn::Module& model) -> absl::Status {
                FullyShardOptions options = Summing();
                policy.set(options);
                CH_RETURN_IF_ERROR(policy.replicated
                                       ? Replicate(model, mesh, options)
                                       : FullyShard(model, mesh, options));
                CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
                  s.reshard_after_backward = policy.reshard_after_backward;
                }));
                const auto loss = [&](int64_t salt) {
                  Tensor x = BatchOf(0, 1, salt);
                  x.set_requires_grad(true);
                  return Sum(ToDType(model.Forward(x), kFloat32));
                };
                const Tensor first = loss(1);
                const Tensor second = loss(2);
                CH_RETURN_IF_ERROR(Backward(first));
                CH_RETURN_IF_ERROR(writer.write(mesh.world(), model));
                return Backward(second);
              };
              if (policy.tied) {
                Tied model;
                return run(model);
              }
              TestModel model(1, 5, 6, 3);
              model.FillWithIntegers();
              return run(model);
            });
  };
  EXPECT_DEATH(train(),
               "parameter [a-z0-9.]*weight, .* was changed in place.*run the "
               "backward of a forward before|its shards were changed since");
}

INSTANTIATE_TEST_SUITE_P(All, StaleParametersDeathTest,
                         ::testing::ValuesIn(Cases()),
                         ::testing::PrintToStringParamName());

// The gradients of W and b in y = W x + b need neither of them.
TEST(StaleParametersTest, AllowsWritesToParametersThatBackwardDoesNotNeed) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    OnRanks(
        {{"fsdp", 4}},
        [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
          const auto train = [](nn::Module& model,
                                const Tensor& x) -> absl::Status {
            const Tensor first = Sum(model.Forward(x));
            const Tensor second = Sum(model.Forward(x));
            CH_RETURN_IF_ERROR(Backward(first));
            CH_RETURN_IF_ERROR(WriteLocalParts(model));
            return Backward(second);
          };
          nn::Linear alone(5, 7, {.bias = true});
          nn::Linear linear(5, 7, {.bias = true});
          for (nn::Linear* l : {&alone, &linear}) {
            l->weight()->set_data(SmallIntegers({7, 5}, 1));
            l->bias()->set_data(SmallIntegers({7}, 2));
          }
          const Tensor x = BatchOf(0, 1, 3);
          CH_RETURN_IF_ERROR(train(alone, x));
          FullyShardOptions options;  // Equal gradients.
          CH_RETURN_IF_ERROR(FullyShard(linear, mesh, options));
          CH_RETURN_IF_ERROR(train(linear, x));
          CH_EXPECT_EQ(FullGradients(linear), FullGradients(alone));
          CH_EXPECT_EQ(FullWeights(linear), FullWeights(alone));
          return absl::OkStatus();
        },
        seed);
  }
}

TEST(StaleParametersTest, AllGathersWaitForWritesOfCompute) {
  for (const bool offload : {false, true}) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
      OnRanks(
          {{"fsdp", 2}},
          [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
            TestModel model(2, 5, 7, 3);
            model.FillWithIntegers();
            TestModel alone(2, 5, 7, 3);
            alone.FillWithIntegers();
            FullyShardOptions options = Summing();
            options.prefetch.forward = 0;
            options.cpu_offload = offload;
            CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
            // Runs after the root's own hook.
            for (TestModel* m : {&model, &alone}) {
              m->AddPreHook([m](nn::Module&, TensorList&) {
                for (auto& block : m->blocks()) {
                  WriteLocalParts(*block).IgnoreError();
                }
              });
            }
            const Tensor x = BatchOf(0, 1, 3);
            CH_EXPECT_EQ(model.Forward(x).ToVector<float>(),
                         alone.Forward(x).ToVector<float>());
            return absl::OkStatus();
          },
          seed);
    }
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
