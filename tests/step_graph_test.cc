// SPDX-License-Identifier: Apache-2.0

/// \file
/// Steps replayed as CUDA graphs, compared with steps that run.

#include "crosshatch/tensor/step_graph.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/nccl/run_nccl_testutil.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/dropout.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/sgd.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/ops/dropout.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;
using Mode = StepGraphOptions::Mode;
using emulation::CountsOfRuntime;

constexpr int kSteps = 7;
constexpr int64_t kVocab = 11;

// A Llama whose logits pass a dropout, its optimizer, and steps on data that
// depend on the step.
class Training : public nn::Module {
 public:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return dropout_.Call(llama_.Call(TensorList(inputs.begin(), inputs.end())));
  }

  absl::Status Shard(const DeviceMesh& mesh) {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    CH_RETURN_IF_ERROR(
        tp::ParallelizeModule(llama_, tp, tp::LlamaPlan(llama_.config())));
    const fsdp::FullyShardOptions options = {.extension =
                                                 DTensorExtensions::Create()};
    for (nn::Module& block : llama_.blocks()) {
      CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
    }
    return fsdp::FullyShard(*this, fsdp, options);
  }
  absl::Status Begin() {
    CH_RETURN_IF_ERROR(Materialize({.seed = 5}));
    optimizer_ = std::make_unique<nn::AdamW>(Parameters(), nn::AdamWOptions{});
    return absl::OkStatus();
  }

  // What changes from step to step.
  void Prepare(int step) {
    nn::SetDropoutStep(*this, 3, static_cast<uint64_t>(step));
    optimizer_->set_lr(1e-2 / (1 + step));
  }
  absl::StatusOr<TensorList> Step(TensorSpan inputs) {
    const Tensor loss = CrossEntropy(Call({inputs[0]})[0], inputs[1]);
    CH_RETURN_IF_ERROR(Backward(loss));
    CH_RETURN_IF_ERROR(optimizer_->Step());
    optimizer_->ZeroGrad();
    return TensorList{loss.Detach()};
  }
  nn::AdamW& optimizer() { return *optimizer_; }

 private:
  nn::Llama& llama_ =
      Make<nn::Llama>("llama", nn::LlamaConfig{.dim = 8,
                                               .layers = 2,
                                               .heads = 2,
                                               .kv_heads = 2,
                                               .head_dim = 4,
                                               .ffn = 6,
                                               .vocab = kVocab});
  nn::Dropout& dropout_ = Make<nn::Dropout>("dropout", 0.25);
  std::unique_ptr<nn::AdamW> optimizer_;
};

TensorList Batch(int step, int64_t rows = 2) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows * 5; ++i) {
    ids.push_back(static_cast<int32_t>((i * 7 + step * 3) % kVocab));
  }
  const Tensor tokens = FromValues<int32_t>({rows, 5}, ids);
  return {tokens, tokens};
}

// All elements of this rank: the loss, then the parameters.
std::vector<float> Bits(const Tensor& loss, Training& training) {
  std::vector<float> bits = LocalTensor(loss).ToVector<float>();
  for (const nn::Parameter* parameter : training.Parameters()) {
    for (const float x : LocalTensor(parameter->data()).ToVector<float>()) {
      bits.push_back(x);
    }
  }
  return bits;
}

absl::StatusOr<std::vector<std::vector<float>>> EagerBits(
    const DeviceMesh* mesh) {
  Training training;
  if (mesh != nullptr) CH_RETURN_IF_ERROR(training.Shard(*mesh));
  CH_RETURN_IF_ERROR(training.Begin());
  std::vector<std::vector<float>> bits;
  for (int step = 0; step < kSteps; ++step) {
    training.Prepare(step);
    CH_ASSIGN_OR_RETURN(const TensorList results, training.Step(Batch(step)));
    bits.push_back(Bits(results[0], training));
  }
  return bits;
}

StepGraphOptions OptionsOf(Mode mode, Communicator* all) {
  StepGraphOptions options = {.mode = mode};
  if (all != nullptr) {
    options.exchange = [all](std::string text) {
      return all->Exchange(text, "graph");
    };
  }
  return options;
}

absl::Status ExpectTheBitsOfEagerSteps(const DeviceMesh* mesh,
                                       Communicator* all) {
  CH_ASSIGN_OR_RETURN(const auto expected, EagerBits(mesh));
  Training training;
  if (mesh != nullptr) CH_RETURN_IF_ERROR(training.Shard(*mesh));
  CH_RETURN_IF_ERROR(training.Begin());
  // [graph]
  StepGraph graph(OptionsOf(Mode::kOn, all));
  for (int step = 0; step < kSteps; ++step) {
    training.Prepare(step);
    CH_ASSIGN_OR_RETURN(const TensorList results,
                        graph.Run(Batch(step), [&](TensorSpan inputs) {
                          return training.Step(inputs);
                        }));
    // [/graph]
    // Other work between steps, on memory of its own.
    const Tensor other = Full({999}, 7);
    CH_EXPECT_EQ(Bits(results[0], training),
                 expected[static_cast<size_t>(step)])
        << "step " << step;
    CH_EXPECT_EQ(training.optimizer().StateOf(0).step, step + 1);
    CH_EXPECT_EQ(Sum(other).ToVector<float>()[0], 6993);
  }
  CH_EXPECT_EQ(graph.replays(), kSteps - 3);
  CH_EXPECT_EQ(graph.fallback_reason(), "");
  return absl::OkStatus();
}

// The first call of the runtime determines the devices.
class Devices : public ::testing::Environment {
  void SetUp() override {
    CH_EXPECT_OK(RunNccl(1, [](World&) { return absl::OkStatus(); }));
  }
};
[[maybe_unused]] const auto* const kDevices =
    ::testing::AddGlobalTestEnvironment(new Devices);

// One rank with ordinary and with adversarial streams, which fill leased memory
// with NaN and delay each queue.
class OneRankTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  RankContext context_{
      {.backend = *CudaBackend(0), .adversarial_seed = GetParam()}};
  const RankContextScope scope_{&context_};
};
INSTANTIATE_TEST_SUITE_P(Seeds, OneRankTest, ::testing::Values(0, 1, 2));

TEST_P(OneRankTest, ReplaysHaveTheBitsOfEagerSteps) {
  CH_EXPECT_OK(ExpectTheBitsOfEagerSteps(nullptr, nullptr));
}

TEST(StepGraphTest, ReplaysIssueOneGraph) {
  RankContext context({.backend = *CudaBackend(0)});
  const RankContextScope scope(&context);
  Training training;
  CH_EXPECT_OK(training.Begin());
  StepGraph graph({.mode = Mode::kOn});
  for (int step = 0; step < kSteps; ++step) {
    training.Prepare(step);
    const TensorList batch = Batch(step);
    const emulation::RuntimeCounts before = CountsOfRuntime();
    CH_EXPECT_OK(
        graph
            .Run(batch,
                 [&](TensorSpan inputs) { return training.Step(inputs); })
            .status());
    const emulation::RuntimeCounts after = CountsOfRuntime();
    if (step < 3) continue;
    EXPECT_EQ(after.graph_launches, before.graph_launches + 1);
    EXPECT_EQ(after.kernels, before.kernels + 2) << "copies of the inputs";
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.synchronizations, before.synchronizations);
    EXPECT_EQ(after.host_functions, before.host_functions);
  }
  EXPECT_GT(graph.memory().peak_total, 0);
}

// Runs steps of one rank until the capture.
template <typename F>
std::pair<absl::Status, std::string> AfterTheCapture(Mode mode, F step) {
  StepGraph graph({.mode = mode});
  absl::Status status;
  for (int i = 0; i < 4 && status.ok(); ++i) {
    status = graph.Run({}, step).status();
  }
  return {status, graph.fallback_reason()};
}

// Expects that a step is not captured, for a reason, and still runs.
template <typename F>
void ExpectFallback(const std::string& reason, F step) {
  const auto [in_auto, found] = AfterTheCapture(Mode::kAuto, step);
  CH_EXPECT_OK(in_auto);
  EXPECT_THAT(found, HasSubstr(reason));
  const auto [in_on, again] = AfterTheCapture(Mode::kOn, step);
  EXPECT_EQ(in_on.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(in_on.message()),
              HasSubstr(absl::StrCat("the step cannot be replayed as a graph: ",
                                     found)));
  const auto [in_off, none] = AfterTheCapture(Mode::kOff, step);
  CH_EXPECT_OK(in_off);
  EXPECT_EQ(none, "");
}

TEST_P(OneRankTest, AReadByTheHostFallsBack) {
  int runs = 0;
  ExpectFallback("the host reads or writes elements",
                 [&](TensorSpan) -> absl::StatusOr<TensorList> {
                   const Tensor x = Full({3}, ++runs);
                   const Tensor y = Add(x, x);
                   EXPECT_EQ(y.ToVector<float>()[2], 2 * runs);
                   const Tensor z = Mul(y, y);
                   EXPECT_EQ(z.ToVector<float>()[0], 4 * runs * runs);
                   return TensorList{z};
                 });
}

TEST_P(OneRankTest, AStepThatFailsInTheCaptureIsNotReplayed) {
  StepGraph graph({.mode = Mode::kAuto});
  for (int run = 1; run <= 5; ++run) {
    const auto results =
        graph.Run({}, [&](TensorSpan) -> absl::StatusOr<TensorList> {
          const Tensor x = Full({3}, run);
          if (run == 3) return absl::DataLossError("no batch");
          return TensorList{x};
        });
    if (run == 3) {
      EXPECT_EQ(results.status(), absl::DataLossError("no batch"));
      continue;
    }
    ASSERT_TRUE(results.ok()) << results.status();
    ASSERT_EQ(results->size(), 1u) << "run " << run;
    EXPECT_EQ((*results)[0].ToVector<float>()[2], run);
  }
  EXPECT_EQ(graph.replays(), 0);
  EXPECT_EQ(graph.fallback_reason(), "the step failed while it was captured");
}

TEST_P(OneRankTest, AWaitFallsBack) {
  ExpectFallback("the host waits for stream compute",
                 [](TensorSpan) -> absl::StatusOr<TensorList> {
                   const Tensor x = Ones({3});
                   CH_RETURN_IF_ERROR(RankContext::Current().Synchronize());
                   return TensorList{Add(x, x)};
                 });
}

TEST_P(OneRankTest, WhatWouldBeFrozenFallsBack) {
  ExpectFallback("the host reads or writes elements",
                 [](TensorSpan) -> absl::StatusOr<TensorList> {
                   return TensorList{FromValues<float>({2}, {1, 2})};
                 });
  ExpectFallback("a fill with random values",
                 [](TensorSpan) -> absl::StatusOr<TensorList> {
                   const Tensor x = Empty({5});
                   FillNormal(x, 1, "x", 0);
                   return TensorList{x};
                 });
  ExpectFallback("dropout of one step in op dropout",
                 [](TensorSpan) -> absl::StatusOr<TensorList> {
                   return TensorList{Dropout(Ones({5}), 0.5, 1, 2)};
                 });
  int n = 0;
  ExpectFallback("the step creates a stream",
                 [&](TensorSpan) -> absl::StatusOr<TensorList> {
                   RankContext::Current().SideStream(absl::StrCat("s", ++n));
                   return TensorList{};
                 });
  nn::Linear linear(3, 2);
  CH_EXPECT_OK(linear.Materialize({.seed = 1}));
  nn::Sgd sgd(linear.Parameters(), {.lr = 0.1});
  ExpectFallback(
      "Sgd's kernels change from step to step",
      [&](TensorSpan) -> absl::StatusOr<TensorList> {
        CH_RETURN_IF_ERROR(Backward(Sum(linear.Call({Ones({2, 3})})[0])));
        CH_RETURN_IF_ERROR(sgd.Step());
        sgd.ZeroGrad();
        return TensorList{};
      });
}

TEST(StepGraphTest, TheCpuFallsBack) {
  RankContext context({});
  const RankContextScope scope(&context);
  ExpectFallback("streams of the CPU cannot be captured",
                 [](TensorSpan) -> absl::StatusOr<TensorList> {
                   return TensorList{Ones({2})};
                 });
}

TEST_P(OneRankTest, AnotherShapeRunsTheStep) {
  const auto doubled = [](TensorSpan inputs) -> absl::StatusOr<TensorList> {
    return TensorList{Add(inputs[0], inputs[0])};
  };
  const auto run = [&](StepGraph& graph, int64_t size, double value) {
    return graph.Run({Full({size}, value)}, doubled);
  };
  StepGraph graph({.mode = Mode::kAuto});
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ((*run(graph, 3, i))[0].ToVector<float>()[0], 2 * i);
  }
  EXPECT_EQ(graph.replays(), 1);
  EXPECT_EQ((*run(graph, 5, 7))[0].ToVector<float>(),
            std::vector<float>(5, 14));
  EXPECT_THAT(graph.fallback_reason(), HasSubstr("input 0 is f32[5]"));
  EXPECT_EQ((*run(graph, 3, 9))[0].ToVector<float>(),
            std::vector<float>(3, 18));
  EXPECT_EQ(graph.replays(), 2);
  EXPECT_EQ(graph.fallback_reason(), "");
  StepGraph on({.mode = Mode::kOn});
  for (int i = 0; i < 4; ++i) CH_EXPECT_OK(run(on, 3, i).status());
  EXPECT_THAT(std::string(run(on, 0, 1).status().message()),
              HasSubstr("the step cannot be replayed as a graph: input 0 is "
                        "f32[0]"));
}

// Results and memory of a captured step are not reused by other work.
TEST_P(OneRankTest, CapturedMemoryStaysValid) {
  const auto step = [](TensorSpan inputs) -> absl::StatusOr<TensorList> {
    Tensor x = inputs[0];
    for (int i = 0; i < 5; ++i) x = Add(x, inputs[0]);
    return TensorList{x};
  };
  StepGraph graph({.mode = Mode::kOn});
  const void* address = nullptr;
  for (int i = 0; i < 6; ++i) {
    const Tensor result = (*graph.Run({Full({1000}, i)}, step))[0];
    if (i > 2) {
      EXPECT_EQ(result.raw_data(), address);
    }
    address = result.raw_data();
    std::vector<Tensor> others;
    for (int k = 0; k < 20; ++k) others.push_back(Full({1000}, -1));
    EXPECT_EQ(result.ToVector<float>(), std::vector<float>(1000, 6.0f * i));
    for (const Tensor& other : others) {
      EXPECT_EQ(other.ToVector<float>()[999], -1);
    }
  }
}

absl::Status RunOnMesh(World& world, const std::vector<MeshAxis>& axes) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh, InitDeviceMesh(world, axes));
  CH_ASSIGN_OR_RETURN(auto all, world.Group("all", world.AllRanks(), "graph"));
  return ExpectTheBitsOfEagerSteps(&mesh, all.get());
}

class MeshTest : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, MeshTest, ::testing::Values(0, 1));

TEST_P(MeshTest, ReplaysHaveTheBitsOfEagerSteps) {
  constexpr char kSeed[] = "CROSSHATCH_ADVERSARIAL_SEED";
  setenv(kSeed, absl::StrCat(GetParam()).c_str(), 1);
  for (const auto& [fsdp, tp] : {std::pair{2, 2}, {3, 1}, {1, 2}}) {
    SCOPED_TRACE(absl::StrCat("fsdp:", fsdp, ",tp:", tp));
    CH_EXPECT_OK(RunNccl(fsdp * tp, [&, fsdp = fsdp, tp = tp](World& world) {
      return RunOnMesh(world, {{"fsdp", fsdp}, {"tp", tp}});
    }));
  }
  unsetenv(kSeed);
}

}  // namespace
}  // namespace crosshatch
