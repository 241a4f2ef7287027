// SPDX-License-Identifier: Apache-2.0

/// \file
/// Common mistakes of users. Each message names the mistake and its fix, and
/// docs/errors.md lists it with the same words.

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/dropout.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A projection, a norm that a plan may omit, and dropout.
class Block final : public nn::Module {
 public:
  explicit Block(double p) : drop_(Make<nn::Dropout>("drop", p)) {}
  nn::Module& up() { return up_; }
  nn::Module& norm() { return norm_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {drop_.Forward(norm_.Forward(up_.Forward(inputs[0])))};
  }

 private:
  nn::Linear& up_ = Make<nn::Linear>("up", 6, 6);
  nn::RmsNorm& norm_ = Make<nn::RmsNorm>("norm", 6, 1e-5);
  nn::Dropout& drop_;
};

class Net final : public nn::Module {
 public:
  explicit Net(double p = 0) : block_(Make<Block>("layers.0", p)) {}
  Block& block() { return block_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {block_.Forward(inputs[0])};
  }

 private:
  Block& block_;
};

// Contains a module without registering it.
class Forgetful final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {up_.Forward(inputs[0])};
  }

 private:
  nn::Linear up_{6, 6};
};

class Words final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {table_.Forward(inputs[0])};
  }

 private:
  nn::Embedding& table_ = Make<nn::Embedding>("table", 5, 3);
};

// Returns its first input and another tensor.
class Pair final : public nn::Module {
 public:
  explicit Pair(size_t other) : other_(other) {}

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {inputs[0], inputs[other_]};
  }

 private:
  const size_t other_;
};

Tensor Input() { return Ones({2, 6}); }

// A program with a mistake, for one of `ranks` ranks.
struct Mistake {
  std::string name;
  int ranks;
  std::function<absl::Status(const DeviceMesh& mesh)> make;
  /// Part of the message and of docs/errors.md.
  std::string says;
  /// Whether it ends the process.
  bool dies = false;
  /// Also part of the message.
  std::string also_says = "";
};

absl::Status ShardTheRootFirst(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net, mesh));
  return fsdp::FullyShard(net.block(), mesh);
}

absl::Status ShardBeforeTensorParallelism(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net, mesh));
  return tp::ParallelizeModule(net, mesh,
                               {{"layers.*.up", tp::ColwiseParallel()}});
}

absl::Status LeaveANormOutOfThePlan(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      net, mesh, {{"layers.*.up", tp::ColwiseParallel()}}));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  net.Forward(Input());
  return absl::OkStatus();
}

absl::Status MatchAModuleTwice(const DeviceMesh& mesh) {
  Net net;
  return tp::ParallelizeModule(net, mesh,
                               {{"layers.*.up", tp::ColwiseParallel()},
                                {"**.up", tp::RowwiseParallel()}});
}

absl::Status TakeAPlainTensorOtherwise(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      net, mesh,
      {{"layers.*.up", tp::ColwiseParallel({.use_local_output = true})},
       {"layers.*.norm", tp::SequenceParallel(0)}}));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  net.Forward(Input());
  return absl::OkStatus();
}

absl::Status RunWithoutMaterialize(const DeviceMesh&) {
  Net net;
  net.Forward(Input());
  return absl::OkStatus();
}

absl::Status RunAModuleThatIsNotRegistered(const DeviceMesh&) {
  Forgetful model;
  CH_RETURN_IF_ERROR(model.Materialize({}));
  model.Forward(Input());
  return absl::OkStatus();
}

// The plan does not match it either.
absl::Status LeaveAModuleUnregisteredUnderTp(const DeviceMesh& mesh) {
  nn::Linear down(6, 6);
  Forgetful model;
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(down, mesh, {{"", tp::RowwiseParallel()}}));
  CH_RETURN_IF_ERROR(down.Materialize({}));
  CH_RETURN_IF_ERROR(model.Materialize({}));
  model.Forward(down.Forward(Ones({2, 3})));
  return absl::OkStatus();
}

absl::Status ReadTheValuesOfAllRanks(const DeviceMesh& mesh) {
  DistributeTensor(Input(), mesh, {Shard(0)}).ToVector<float>();
  return absl::OkStatus();
}

absl::Status ReadAGatheredParameterOutsideOfForward(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net, mesh));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  net.Parameters()[0]->Get().ToVector<float>();
  return absl::OkStatus();
}

absl::Status SplitHeadsThatDoNotDivide(const DeviceMesh& mesh) {
  nn::Linear heads(6, 6);
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(heads, mesh, {{"", tp::ColwiseParallel()}}));
  CH_RETURN_IF_ERROR(heads.Materialize({}));
  // Three heads of width 2 on two ranks.
  View(heads.Forward(Input()), {2, 3, 2});
  return absl::OkStatus();
}

absl::Status GiveTargetsOfOtherSizes(const DeviceMesh& mesh) {
  const Tensor logits = DistributeTensor(
      Ones({4, 6}), mesh, Layout::Replicated(mesh.layout(), 2).WithShard(0, 1));
  CrossEntropy(logits, FromValues<int64_t>({3}, {0, 1, 2}));
  return absl::OkStatus();
}

absl::Status LookUpAnIdOutOfRange(const DeviceMesh&) {
  Words words;
  CH_RETURN_IF_ERROR(words.Materialize({}));
  words.Forward(FromValues<int32_t>({2}, {1, 7}));
  return absl::OkStatus();
}

absl::Status GiveIdsToALinear(const DeviceMesh&) {
  Net net;
  CH_RETURN_IF_ERROR(net.Materialize({}));
  net.Forward(Zeros({2, 6}, kInt32));
  return absl::OkStatus();
}

absl::Status AskForAnItemOnOneRank(const DeviceMesh& mesh) {
  const Tensor sum = Sum(DistributeTensor(
      Input(), mesh, Layout::Replicated(mesh.layout(), 2).WithShard(0, 0)));
  if (*mesh.index(0) != 0) return absl::OkStatus();
  return Item(sum).status();
}

absl::Status DifferentiateTwice(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net, mesh));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  return Backward(Sum(net.Forward(Input())), {.create_graph = true});
}

absl::Status StepWithoutAGradient(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net, mesh));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  nn::AdamW optimizer(net.Parameters(), {});
  return optimizer.Step();
}

absl::Status ForgetToReduce(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net, mesh));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  CH_RETURN_IF_ERROR(fsdp::Configure(
      net, [&](fsdp::Settings& s) { s.requires_gradient_sync = false; }));
  CH_RETURN_IF_ERROR(Backward(Sum(net.Forward(Input()))));
  CH_EXPECT_THAT(
      std::string(nn::ClipGradNorm(net.Parameters(), 1).status().message()),
      HasSubstr("was not reduced"));
  nn::AdamW optimizer(net.Parameters(), {});
  return optimizer.Step();
}

absl::Status MaterializeFromAnotherSeed(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net, mesh));
  return net.Materialize({.seed = *mesh.index(0) == 0 ? 7u : 8u});
}

absl::Status DropFromAnotherSeed(const DeviceMesh& mesh) {
  Net net(/*p=*/0.5);
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net, mesh));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  nn::SetDropoutStep(net, /*seed=*/*mesh.index(0) == 0 ? 7u : 8u, /*step=*/0);
  return Backward(Sum(net.Forward(Input())));
}

absl::Status DropOutsideOfTheShardedModules(const DeviceMesh& mesh) {
  Net net(/*p=*/0.5);
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net.block().norm(), mesh));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  nn::SetDropoutStep(net, /*seed=*/7, /*step=*/0);
  net.Forward(Input());
  return absl::OkStatus();
}

// Shards the projection but not the norm.
absl::Status LeaveTheRestUnsharded(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(fsdp::FullyShard(net.block().up(), mesh));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  return Backward(Sum(net.Forward(Input())));
}

absl::Status AddAnUndefinedTensor(const DeviceMesh&) {
  Add(Input(), Tensor());
  return absl::OkStatus();
}

absl::Status AskAnUndefinedTensor(const DeviceMesh&) {
  (void)Tensor().sizes();
  return absl::OkStatus();
}

absl::Status DropFromAnotherSeedUnderTp(const DeviceMesh& mesh) {
  Net net(/*p=*/0.5);
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      net, mesh, {{"layers.*.up", tp::ColwiseParallel()}}));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  nn::SetDropoutStep(net, /*seed=*/7, /*step=*/*mesh.index(0) == 0 ? 3u : 4u);
  return RankContext::Current().Synchronize();
}

absl::Status LookUp(const DeviceMesh& mesh, const std::vector<int32_t>& ids) {
  Words words;
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(words, mesh, {{"table", tp::ColwiseParallel()}}));
  CH_RETURN_IF_ERROR(words.Materialize({}));
  return Backward(Sum(words.Forward(
      FromValues<int32_t>({static_cast<int64_t>(ids.size())}, ids))));
}

absl::Status GiveOtherIds(const DeviceMesh& mesh) {
  return LookUp(mesh, {0, *mesh.index(0) == 0 ? 1 : 2});
}

// Splits an odd batch over ranks that share rows.
absl::Status ReadRowsOfTheWholeMesh(const DeviceMesh& mesh) {
  return LookUp(mesh, std::vector<int32_t>(
                          static_cast<size_t>(RowsOf(mesh, 3).size()), 1));
}

// The plan does not contain the table.
absl::Status GiveOtherIdsToAPlainTable(const DeviceMesh& mesh) {
  Words words;
  nn::Linear up(3, 6);
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(up, mesh, {{"", tp::ColwiseParallel()}}));
  CH_RETURN_IF_ERROR(words.Materialize({}));
  CH_RETURN_IF_ERROR(up.Materialize({}));
  const int32_t id = *mesh.index(0) == 0 ? 1 : 2;
  return Backward(
      Sum(up.Forward(words.Forward(FromValues<int32_t>({2}, {0, id})))));
}

absl::Status DropOnOneRankUnderTp(const DeviceMesh& mesh) {
  Net net(/*p=*/0.5);
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(net, mesh, {{"layers.*.up", tp::ColwiseParallel()}},
                            {.replicate_rest = true}));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  nn::SetDropoutStep(net, /*seed=*/7, /*step=*/0);
  net.set_training(*mesh.index(0) == 0);
  return Backward(Sum(net.Forward(Input())));
}

absl::Status GiveOtherTargets(const DeviceMesh& mesh) {
  Tensor logits = DistributeTensor(
      Ones({2, 6}), mesh, Layout::Replicated(mesh.layout(), 2).WithShard(0, 1));
  logits.set_requires_grad(true);
  const int32_t target = *mesh.index(0) == 0 ? 1 : 2;
  return Backward(CrossEntropy(logits, FromValues<int32_t>({2}, {0, target})));
}

absl::Status WriteToWhatIsHandedOut(const DeviceMesh& mesh) {
  Net net;
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(net, mesh, {{"layers.*.up", tp::ColwiseParallel()}},
                            {.replicate_rest = true}));
  CH_RETURN_IF_ERROR(net.Materialize({}));
  MulInPlace(net.block().norm().Forward(Input()), 2);
  return absl::OkStatus();
}

absl::Status GiveOneInputOfTwo(const DeviceMesh&) {
  Pair(1).Call({Input()});
  return absl::OkStatus();
}

absl::Status TakeOneOutputOfTwo(const DeviceMesh&) {
  Pair(0).Forward(Input());
  return absl::OkStatus();
}

absl::Status KeepTheStateOfAModelThatIsGone(const DeviceMesh&) {
  auto net = std::make_unique<Net>();
  nn::ModuleState state(*net);
  net.reset();
  return state.State().status();
}

absl::Status Throw(const DeviceMesh& mesh) {
  if (*mesh.index(0) == 1) throw std::runtime_error("of the program's own");
  return absl::OkStatus();
}

std::vector<Mistake> Mistakes() {
  return {
      {"RootBeforeABlock", 2, ShardTheRootFirst,
       "call FullyShard bottom-up: blocks first, then the whole model"},
      {"FsdpBeforeTp", 2, ShardBeforeTensorParallelism,
       "is sharded by FullyShard already"},
      {"NormLeftOut", 2, LeaveANormOutOfThePlan,
       "a parameter that no style of the plan distributes", true},
      {"TwoStyles", 2, MatchAModuleTwice, "a module takes one style"},
      {"PlainTensor", 2, TakeAPlainTensorOtherwise,
       "use one placement in both styles, or DTensors", /*dies=*/true},
      {"NotMaterialized", 1, RunWithoutMaterialize,
       "a parameter that was not materialized", true},
      {"NotRegistered", 1, RunAModuleThatIsNotRegistered,
       "the modules that their parents registered (RegisterModule)", true},
      {"NotRegisteredUnderTp", 2, LeaveAModuleUnregisteredUnderTp,
       "the modules that their parents registered (RegisterModule)", true,
       "op matmul of"},
      {"ValuesOfAllRanks", 2, ReadTheValuesOfAllRanks,
       "FullTensor gathers them on every rank", true, "f32[2, 6]|[S(0)]"},
      {"GatheredOutsideOfForward", 2, ReadAGatheredParameterOutsideOfForward,
       "has it while its module runs", true},
      {"HeadsDoNotDivide", 2, SplitHeadsThatDoNotDivide, "ColwiseOptions::unit",
       true},
      {"OtherTargets", 2, GiveTargetsOfOtherSizes,
       "logits [..., classes] go with targets", true,
       "cross_entropy(f32[4, 6]|"},
      {"IdOutOfRange", 1, LookUpAnIdOutOfRange, "module table (Embedding)",
       true},
      {"IdsIntoLinear", 1, GiveIdsToALinear, "ids go through an Embedding",
       true},
      {"ItemOnOneRank", 2, AskForAnItemOnOneRank,
       "which every rank of the mesh calls"},
      {"GradientsOfGradients", 2, DifferentiateTwice,
       "gradients of gradients (BackwardOptions::create_graph)"},
      {"StepWithoutAGradient", 2, StepWithoutAGradient,
       "has a gradient: call Backward before the step"},
      {"ForgottenReduction", 2, ForgetToReduce, "was not reduced"},
      {"SeedsOfModels", 2, MaterializeFromAnotherSeed,
       "ranks make different models"},
      {"SeedsOfDropout", 2, DropFromAnotherSeed, "draws differently on ranks"},
      {"StepsOfDropoutUnderTp", 2, DropFromAnotherSeedUnderTp,
       "SetDropoutStep received"},
      {"IdsThatDiffer", 2, GiveOtherIds,
       "in module table (Embedding): ranks 0 and 1 replicate a part of [2]"},
      {"RowsOfTheWholeMesh", 2, ReadRowsOfTheWholeMesh,
       "rank 0 has shape [2], rank 1 [1], but they replicate each other"},
      {"IdsOfAPlainTableThatDiffer", 2, GiveOtherIdsToAPlainTable,
       "the plain input in module Linear: ranks 0 and 1 replicate"},
      {"ModesOfDropout", 2, DropOnOneRankUnderTp,
       "whether dropout is on (Module::set_training)"},
      {"TargetsThatDiffer", 2, GiveOtherTargets,
       "are given the same ids, targets and masks"},
      {"RowsNobodyTold", 2, DropOutsideOfTheShardedModules,
       "does not know which rows of the batch it has", true},
      {"RestUnsharded", 2, LeaveTheRestUnsharded,
       "FSDP: layers.0.norm.weight would be trained separately on each rank"},
      {"UndefinedInput", 1, AddAnUndefinedTensor, "is undefined", true},
      {"UndefinedTensor", 1, AskAnUndefinedTensor, "of an undefined tensor",
       true},
      {"WriteInPlace", 2, WriteToWhatIsHandedOut,
       "write to a Clone of it, or in NoGrad", true, "scale_in_place"},
      {"FewerInputs", 1, GiveOneInputOfTwo, "of a list of 1 tensor, in module",
       true, "module Pair; the inputs"},
      {"SeveralOutputs", 1, TakeOneOutputOfTwo,
       "gives 2 outputs, and Forward returns the one", true, "Forward of Pair"},
      {"ModuleGone", 1, KeepTheStateOfAModelThatIsGone,
       "its module Net was destroyed"},
      {"Exception", 2, Throw, "of the program's own"},
  };
}

std::string Page() {
  std::ifstream file("docs/errors.md");
  std::stringstream page;
  page << file.rdbuf();
  return page.str();
}

class ErrorMessagesTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(ErrorMessagesTest, NameTheMistakeAndTheCure) {
  const Mistake& mistake = GetParam();
  const auto run = [&] {
    return StatusOfRanks(mistake.ranks, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(world, {{"x", mistake.ranks}}));
      return mistake.make(mesh);
    });
  };
  if (mistake.dies) {
    EXPECT_DEATH((void)run(),
                 AllOf(HasSubstr(mistake.says), HasSubstr(mistake.also_says)));
  } else {
    EXPECT_THAT(std::string(run().message()), HasSubstr(mistake.says));
  }
}

TEST_P(ErrorMessagesTest, AreListedInTheDocumentation) {
  EXPECT_THAT(Page(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(All, ErrorMessagesTest,
                         ::testing::ValuesIn(Mistakes()),
                         [](const auto& info) { return info.param.name; });

// Each row of the page's table quotes the message of a mistake in this file, or
// names the test that makes it.
TEST(ErrorsPageTest, EveryRowHasATest) {
  const std::string page = Page();
  std::stringstream rows(page.substr(page.find("## Mistakes that come first")));
  const std::vector<Mistake> mistakes = Mistakes();
  std::string row;
  int checked = 0;
  std::getline(rows, row);
  while (std::getline(rows, row) && row.substr(0, 3) != "## ") {
    if (row.substr(0, 3) != "| `") continue;
    ++checked;
    if (row.find("raised by `//") != std::string::npos) continue;
    const std::string text = row.substr(0, row.find(" | "));
    EXPECT_TRUE(std::any_of(mistakes.begin(), mistakes.end(),
                            [&](const Mistake& mistake) {
                              return text.find("`" + mistake.says) !=
                                     std::string::npos;
                            }))
        << row;
  }
  EXPECT_GE(checked, static_cast<int>(mistakes.size()) - 2);
}

// Checks that a failed check in a forward or backward names the module and the
// op.

MATCHER_P(SaysOnce, text, "") {
  const std::string said = arg;
  const size_t first = said.find("check failed");
  return said.find(text) != std::string::npos && first != std::string::npos &&
         said.find("check failed", first + 1) == std::string::npos;
}

TEST(PlaceDeathTest, OfAForwardIsRankModuleAndOp) {
  const auto run = [] {
    OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
      Net net;
      CH_RETURN_IF_ERROR(tp::ParallelizeModule(
          net, mesh, {{"layers.*.up", tp::ColwiseParallel()}}));
      CH_RETURN_IF_ERROR(net.Materialize({}));
      net.Forward(Ones({2, 7}));
      return absl::OkStatus();
    });
  };
  // Both ranks fail alike, and one of them reports.
  EXPECT_DEATH(run(), SaysOnce(", module layers.0.up (Linear), op matmul of "
                               "f32[2, 7]"));
  EXPECT_DEATH(run(), "at rank [01], module layers.0.up");
}

TEST(PlaceDeathTest, OfABackwardIsTheModuleOfTheForward) {
  const auto run = [] {
    OnMesh({{"fsdp", 2}}, [](const DeviceMesh&) -> absl::Status {
      Net net;
      CH_RETURN_IF_ERROR(net.Materialize({}));
      Tensor x = Input();
      x.set_requires_grad(true);
      const Tensor y = Tanh(x);
      const Tensor loss = Sum(net.Forward(y));
      {
        const NoGrad no_grad;
        MulInPlace(y, 2);
      }
      return Backward(loss);
    });
  };
  EXPECT_DEATH(run(), SaysOnce(", module layers.0.up (Linear), gradient of "));
}

TEST(PlaceDeathTest, OfWorkOnAStreamIsWhereItWasIssued) {
  const auto run = [] {
    (void)StatusOfRanks(1,
                        [](World&) -> absl::Status {
                          Words words;
                          CH_RETURN_IF_ERROR(words.Materialize({}));
                          words.Forward(FromValues<int32_t>({2}, {1, 7}));
                          return RankContext::Current().Synchronize();
                        },
                        {.test = {.adversarial_seed = 3}});
  };
  EXPECT_DEATH(run(), SaysOnce("\n  at rank 0, module table (Embedding), op "
                               "embedding of i32[2] on cpu, f32[5, 3] on cpu"));
}

TEST(PlaceDeathTest, OfAPartOfAKernelIsThatOfTheOp) {
  const auto run = [] {
    (void)StatusOfRanks(1,
                        [](World&) -> absl::Status {
                          std::vector<int32_t> index(40000);
                          index[20000] = 8;
                          Gather(Ones({8}), 0,
                                 FromValues<int32_t>({40000}, index));
                          return absl::OkStatus();
                        },
                        {.threads_per_rank = 3});
  };
  EXPECT_DEATH(run(), SaysOnce("index 8 is out of range: dim 0 has 8 elements\n"
                               "  at rank 0, op gather of f32[8] on cpu, "
                               "i32[40000] on cpu"));
}

}  // namespace
}  // namespace crosshatch
