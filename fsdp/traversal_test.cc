// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/traversal.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Applies its own weight, then its children one by one.
class Chain final : public nn::Module {
 public:
  explicit Chain(std::vector<std::pair<std::string, nn::Module*>> children) {
    RegisterParameter("weight", weight_);
    for (const auto& [name, child] : children) RegisterModule(name, *child);
  }
  const char* type_name() const override { return "Chain"; }
  const std::shared_ptr<nn::Parameter>& weight() const { return weight_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = Mul(inputs[0], weight_->Get());
    for (const auto& [name, child] : children()) x = child->Forward(x);
    return {x};
  }

 private:
  std::shared_ptr<nn::Parameter> weight_ = std::make_shared<nn::Parameter>(
      Shape{3}, kFloat32, nn::Initializer{nn::Initializer::Kind::kOnes});
};

/// mod(submod1, submod2(subsubmod)).
struct Tree {
  Chain submod1{{}};
  Chain subsubmod{{}};
  Chain submod2{{{"subsubmod", &subsubmod}}};
  Chain mod{{{"submod1", &submod1}, {"submod2", &submod2}}};

  std::string NameOf(const nn::Module* module) const {
    if (module == &mod) return "mod";
    if (module == &submod1) return "submod1";
    return module == &submod2 ? "submod2" : "subsubmod";
  }
  std::vector<std::string> Names(
      const std::vector<nn::NamedModule>& modules) const {
    std::vector<std::string> names;
    for (const nn::NamedModule& named : modules) {
      names.push_back(NameOf(named.module));
    }
    return names;
  }
  std::vector<std::string> Order(TraversalOrder order) {
    return Names(GetModules(mod, order));
  }
};

TEST(TraversalTest, HasThreeOrders) {
  Tree tree;
  EXPECT_THAT(tree.Order(TraversalOrder::kModules),
              ElementsAre("mod", "submod1", "submod2", "subsubmod"));
  EXPECT_THAT(tree.Order(TraversalOrder::kComposing),
              ElementsAre("subsubmod", "submod2", "submod1", "mod"));
  EXPECT_THAT(tree.Order(TraversalOrder::kWrapping),
              ElementsAre("submod1", "subsubmod", "submod2", "mod"));
  EXPECT_EQ(GetModules(tree.mod, TraversalOrder::kWrapping)[1].name,
            "submod2.subsubmod");
}

absl::Status OnTwoRanks(
    const std::function<absl::Status(World&, const DeviceMesh&)>& body,
    EventSink* sink = nullptr) {
  return StatusOfRanks(2,
                       [&](World& world) -> absl::Status {
                         CH_ASSIGN_OR_RETURN(
                             const DeviceMesh mesh,
                             InitDeviceMesh(world, {{"fsdp", 2}}));
                         return body(world, mesh);
                       },
                       {.sinks = {sink, nullptr}});
}

TEST(TraversalTest, PlansAndLogsDoNotShowTheOrderOfCalls) {
  std::vector<std::string> plans;
  std::vector<std::vector<std::string>> logs;
  for (const TraversalOrder order :
       {TraversalOrder::kComposing, TraversalOrder::kWrapping}) {
    LineSink sink(EventKind::kFsdp);
    const absl::Status status = OnTwoRanks(
        [&](World& world, const DeviceMesh& mesh) -> absl::Status {
          Tree tree;
          tree.mod.Parameters();
          for (const nn::NamedModule& named : GetModules(tree.mod, order)) {
            CH_RETURN_IF_ERROR(FullyShard(*named.module, mesh));
          }
          CH_EXPECT_THAT(tree.Names(GetShardedModules(tree.mod)),
                         ElementsAre("mod", "submod1", "submod2", "subsubmod"));
          CH_RETURN_IF_ERROR(tree.mod.Materialize({}));
          CH_RETURN_IF_ERROR(
              Backward(Sum(tree.mod.Forward(SmallIntegers({2, 3}, 1)))));
          if (world.rank() == 0) {
            plans.push_back(DescribePlan(tree.mod));
            logs.push_back(sink.Take());
          }
          return absl::OkStatus();
        },
        &sink);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(plans[0], plans[1]);
  EXPECT_EQ(logs[0], logs[1]);
  EXPECT_FALSE(logs[0].empty());
}

TEST(TraversalTest, SkipsReplicatedModules) {
  const absl::Status status =
      OnTwoRanks([](World&, const DeviceMesh& mesh) -> absl::Status {
        Tree tree;
        CH_RETURN_IF_ERROR(FullyShard(tree.subsubmod, mesh));
        CH_RETURN_IF_ERROR(Replicate(tree.submod2, mesh));
        CH_RETURN_IF_ERROR(FullyShard(tree.mod, mesh));
        CH_EXPECT_THAT(tree.Names(GetShardedModules(tree.mod)),
                       ElementsAre("mod"));
        CH_EXPECT_THAT(tree.Order(TraversalOrder::kComposing),
                       ElementsAre("submod1", "mod"));
        CH_EXPECT_THAT(tree.Order(TraversalOrder::kWrapping),
                       ElementsAre("submod1", "mod"));
        CH_EXPECT_THAT(DescribePlan(tree.mod), Not(HasSubstr("submod2")));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(TraversalTest, ShardsEachModuleThatIsWanted) {
  const absl::Status status =
      OnTwoRanks([](World&, const DeviceMesh& mesh) -> absl::Status {
        Tree tree;
        CH_RETURN_IF_ERROR(
            FullyShardEach(tree.mod, mesh, {}, [&](const nn::Module& module) {
              return &module == &tree.subsubmod || &module == &tree.submod1;
            }));
        CH_EXPECT_THAT(tree.Names(GetShardedModules(tree.mod)),
                       ElementsAre("mod", "submod1", "subsubmod"));
        // The root's group has the weight of submod2.
        CH_EXPECT_THAT(DescribePlan(tree.mod), HasSubstr("submod2.weight"));
        const absl::Status again = FullyShardEach(
            tree.mod, mesh, {}, [](const nn::Module&) { return false; });
        CH_EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(TraversalTest, VisitsParentsFirstWithPrefixes) {
  Tree tree;
  std::vector<std::string> visits;
  ApplyToModules(tree.mod, [&](nn::Module& module, const std::string& prefix) {
    visits.push_back(absl::StrCat(tree.NameOf(&module), " '", prefix, "'"));
  });
  EXPECT_THAT(visits,
              ElementsAre("mod ''", "submod1 'submod1.'", "submod2 'submod2.'",
                          "subsubmod 'submod2.subsubmod.'"));
}

TEST(TraversalTest, NamesTiedParametersOnceOrByAllNames) {
  nn::Linear first(3, 3);
  nn::Linear second(first.weight());
  Chain inner({{"proj", &second}});
  Chain outer({{"first", &first}, {"inner", &inner}, {"again", &first}});
  const auto names = [&](bool all) {
    std::vector<std::vector<std::string>> result;
    for (const ParameterNames& entry : GetParameterNames(outer, all)) {
      result.push_back(entry.names);
    }
    return result;
  };
  EXPECT_THAT(names(false),
              ElementsAre(ElementsAre("weight"), ElementsAre("first.weight"),
                          ElementsAre("inner.weight")));
  EXPECT_THAT(names(true),
              ElementsAre(ElementsAre("weight"),
                          ElementsAre("first.weight", "inner.proj.weight",
                                      "again.weight"),
                          ElementsAre("inner.weight")));
}

}  // namespace
}  // namespace crosshatch::fsdp
