// SPDX-License-Identifier: Apache-2.0

/// \file
/// Invariants of an iteration under every combination of settings, and what is
/// left of it after a reset.

#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/expect.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

// Tracks the state of each group by the lines that one rank logs.
class Invariants {
 public:
  void Check(const std::vector<std::string>& lines, bool backward_ended) {
    for (const std::string& line : lines) {
      const auto [what, group] =
          std::pair<std::string, std::string>(absl::StrSplit(line, ' '));
      std::string& state = states_[group];
      if (state.empty()) state = "sharded";
      if (what == "unshard") {
        CH_EXPECT_EQ(state, "sharded") << line;
        state = "unsharding";
      } else if (what == "wait") {
        CH_EXPECT_EQ(state, "unsharding") << line;
        state = "unsharded";
      } else if (what == "reshard") {
        CH_EXPECT_EQ(state, "unsharded") << line;
        state = "sharded";
      } else {
        CH_EXPECT_EQ(what, "reduce_scatter");
        ++reductions_[group];
      }
    }
    if (!backward_ended) return;
    for (const auto& [group, state] : states_) CH_EXPECT_EQ(state, "sharded");
  }
  // Returns how often each group was reduced since the last call.
  std::map<std::string, int> TakeReductions() {
    return std::exchange(reductions_, {});
  }

 private:
  std::map<std::string, std::string> states_;
  std::map<std::string, int> reductions_;
};

TEST(IterationTest, KeepsItsInvariantsWithEverySetting) {
  const std::map<std::string, int> once = {
      {"blocks.0", 1}, {"blocks.1", 1}, {"head", 1}};
  OnRanks({{"fsdp", 2}},
          [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
            Weights expected;
            for (int bits = 0; bits < 128; ++bits) {
              const auto bit = [bits](int i) { return (bits >> i & 1) != 0; };
              const bool manual = bit(0), keeps = bit(1);
              TestModel model(2, 5, 7, 3, /*repeats=*/bit(6) ? 2 : 1);
              model.FillWithIntegers();
              CH_RETURN_IF_ERROR(ShardAll(model, mesh, {}));
              CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
              CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
                s.manual_finalization = manual;
                s.reshard_after_backward = !keeps;
                s.reduce_unused_params = bit(2);
                s.reshard_after_forward = bit(3);
                s.is_last_backward = !bit(5);
              }));
              Job job{model, mesh, root, log};
              Invariants invariants;
              // The backwards of two forwards run after both, or each after its
              // own forward.
              Tensor first = job.Loss(0);
              Tensor second;
              if (bit(4)) second = job.Loss(1);
              CH_RETURN_IF_ERROR(Backward(first));
              invariants.Check(log.Take(), /*backward_ended=*/false);
              CH_EXPECT_TRUE(invariants.TakeReductions() ==
                             (manual ? std::map<std::string, int>() : once))
                  << bits;
              CH_RETURN_IF_ERROR(Configure(model, [](Settings& s) {
                s.is_last_backward = s.reshard_after_backward = true;
              }));
              if (!second.defined()) second = job.Loss(1);
              CH_RETURN_IF_ERROR(Backward(second));
              invariants.Check(log.Take(), /*backward_ended=*/true);
              if (manual) {
                CH_EXPECT_TRUE(invariants.TakeReductions().empty()) << bits;
                root.FinalizeBackward().Wait();
                invariants.Check(log.Take(), /*backward_ended=*/true);
              }
              CH_EXPECT_TRUE(invariants.TakeReductions() == once) << bits;
              const Weights gradients = FullGradients(model);
              if (bits == 0) expected = gradients;
              if (!bit(6)) CH_EXPECT_TRUE(gradients == expected) << bits;
            }
            return absl::OkStatus();
          });
}

TEST(IterationTest, AResetDropsGradientsThatReplicasHaveNotSummed) {
  OnRanks({{"replicate", 2}, {"fsdp", 2}},
          [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
            TestModel model(2, 5, 7, 3);
            model.FillWithIntegers();
            CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
            CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
            Job job{model, mesh, root, log};
            const auto all_reduce = [&](bool on) {
              return Configure(
                  model, [&](Settings& s) { s.requires_all_reduce = on; });
            };
            CH_RETURN_IF_ERROR(all_reduce(false));
            CH_RETURN_IF_ERROR(Step(job));
            root.ResetIteration();
            CH_RETURN_IF_ERROR(all_reduce(true));
            const auto first = model.blocks()[0]->Parameters();
            for (nn::Parameter* p : first) {
              CH_EXPECT_EQ(p->gradient_is_pending(), false) << p->name();
              p->set_requires_grad(false);
            }
            CH_RETURN_IF_ERROR(Step(job));
            for (nn::Parameter* p : first) {
              CH_EXPECT_EQ(p->gradient_is_pending(), false) << p->name();
              CH_EXPECT_EQ(p->grad().defined(), false) << p->name();
            }
            return absl::OkStatus();
          });
}

TEST(IterationTest, AResetWaitsForReductions) {
  Weights expected;
  for (const uint64_t seed : {0, 1, 2, 3}) {
    OnRanks(
        {{"fsdp", 2}},
        [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
          TestModel model(2, 5, 7, 3);
          model.FillWithIntegers();
          CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
          CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
          CH_RETURN_IF_ERROR(Configure(
              model, [&](Settings& s) { s.is_last_backward = seed == 0; }));
          Job job{model, mesh, root, log};
          CH_RETURN_IF_ERROR(Step(job));
          root.ResetIteration();
          const Weights gradients = FullGradients(model);
          if (mesh.world().rank() != 0) return absl::OkStatus();
          if (seed > 0) CH_EXPECT_TRUE(gradients == expected) << seed;
          if (seed == 0) expected = gradients;
          return absl::OkStatus();
        },
        seed);
  }
}

TEST(IterationTest, AResetFreesGradientsThatAreNotReduced) {
  for (const bool reduces : {false, true}) {
    OnRanks({{"replicate", 2}, {"fsdp", 2}},
            [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
              const auto bytes = [] {
                return RankContext::Current()
                    .allocator()
                    .stats()
                    .current[static_cast<int>(MemoryClass::kGradient)];
              };
              TestModel model(2, 5, 7, 3);
              model.FillWithIntegers();
              CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
              CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
              CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
                s.requires_gradient_sync = reduces;
                s.requires_all_reduce = false;
              }));
              Job job{model, mesh, root, log};
              CH_RETURN_IF_ERROR(Step(job));
              CH_EXPECT_TRUE(bytes() > 0);
              root.ResetIteration();
              CH_EXPECT_EQ(bytes(), 0);
              return absl::OkStatus();
            });
  }
}

// An exception of the program skips what Backward does at its end.
TEST(IterationTest, AResetFollowsAnExceptionThatLeavesBackward) {
  OnRanks({{"fsdp", 2}},
          [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
            TestModel model(2, 5, 7, 3);
            model.FillWithIntegers();
            CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
            CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
            Job job{model, mesh, root, log};
            const nn::Module* thrower = nullptr;
            const std::vector<nn::NamedModule> modules = model.NamedModules();
            for (const nn::NamedModule& named : modules) {
              named.module->AddPostHook(
                  [&](nn::Module& self, TensorSpan, TensorList& outputs) {
                    if (&self != thrower) return;
                    GradEdge(outputs[0]).node->AddPreHook([] {
                      throw std::runtime_error("of the program's own");
                    });
                  });
            }
            CH_RETURN_IF_ERROR(Step(job));
            const Weights gradients = FullGradients(model);
            const std::vector<std::string> lines = log.Take();
            for (const nn::NamedModule& named : modules) {
              thrower = named.module;
              const Tensor loss = job.Loss(1);
              thrower = nullptr;
              bool thrown = false;
              try {
                CH_RETURN_IF_ERROR(Backward(loss));
              } catch (const std::runtime_error&) {
                thrown = true;
              }
              CH_EXPECT_TRUE(thrown) << named.name;
              root.ResetIteration();
              for (nn::Parameter* p : model.Parameters()) p->set_grad(Tensor());
              log.Take();
              CH_RETURN_IF_ERROR(Step(job));
              CH_EXPECT_EQ(FullGradients(model), gradients) << named.name;
              CH_EXPECT_EQ(log.Take(), lines) << named.name;
            }
            return absl::OkStatus();
          });
}

}  // namespace
}  // namespace crosshatch::fsdp
