// SPDX-License-Identifier: Apache-2.0

/// \file
/// The code of docs/training.md, rows_of_a_rank.md, freezing_and_adapters.md,
/// evaluation_and_generation.md, transformer_block.md and two sections of
/// fsdp.md. It runs on several meshes and is compared with one rank. The pages
/// print the text between [name] and [/name].

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/docs/page_testutil.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/accumulate.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/mesh/mesh_collectives.h"
#include "crosshatch/nn/data_position.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace ch = crosshatch;
namespace nn = crosshatch::nn;

namespace {

constexpr int64_t kLength = 6;
constexpr int64_t kDataSet = 13;  // Rows.
constexpr int kSteps = 3;

struct Batch {
  ch::Tensor tokens;
  ch::Tensor targets;
};

Batch Read(const std::vector<int64_t>& rows) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  for (const int64_t row : rows) {
    for (int64_t i = 0; i < kLength; ++i) {
      const int64_t at = row * kLength + i;
      tokens.push_back(static_cast<int32_t>(at * 7 % 31));
      // Ignores every fourth target of some rows, so that rows have different
      // numbers of targets.
      targets.push_back(row % 3 == 0 && i % 4 == 0
                            ? -100
                            : static_cast<int32_t>((at + 1) * 7 % 31));
    }
  }
  const ch::Shape sizes = {static_cast<int64_t>(rows.size()), kLength};
  return {ch::FromValues<int32_t>(sizes, tokens),
          ch::FromValues<int32_t>(sizes, targets)};
}

nn::LlamaConfig Config() {
  return {.dim = 16, .layers = 2, .heads = 2, .ffn = 24};
}

enum class LossBy { kCrossEntropy, kOwn, kMicroBatches };

// Returns the losses of some steps on a mesh of one axis.
absl::StatusOr<std::vector<double>> Train(const ch::DeviceMesh& mesh,
                                          LossBy by) {
  nn::Llama model(Config());
  // [rows]
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data, mesh.Slice("fsdp"));
  nn::DataPosition position(/*size=*/kDataSet);
  // [/rows]
  for (nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(block, data));
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, data));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    if (by == LossBy::kMicroBatches) {
      // [micro_batches]
      // The divisor of all rows' losses in the step, equal on all ranks.
      const double targets = (5 + 2) * kLength;
      CH_RETURN_IF_ERROR(
          ch::fsdp::AccumulateGradients(model, 2, [&](int64_t i) {
            const Batch batch = Read(position.Next(data, i == 0 ? 5 : 2));
            const ch::Tensor sum = ch::CrossEntropy(
                model.Forward(batch.tokens), batch.targets,
                {.reduction = ch::CrossEntropyOptions::Reduction::kSum});
            return ch::Backward(sum * (data.size() / targets));
          }));
      // [/micro_batches]
    } else if (by == LossBy::kOwn) {
      const Batch batch = Read(position.Next(data, /*rows=*/5));
      // [own_loss]
      const ch::Tensor squares =
          ch::Sum(ch::Square(model.Forward(batch.tokens)));
      const auto rows = static_cast<double>(batch.tokens.size(0));
      const ch::Tensor loss = nn::MeanOverBatch(squares, rows, data);
      // [/own_loss]
      CH_RETURN_IF_ERROR(ch::Backward(loss));
      CH_ASSIGN_OR_RETURN(losses.emplace_back(), nn::MeanOverAxis(loss, data));
    } else {
      // [read]
      const Batch batch = Read(position.Next(data, /*rows=*/5));
      // [/read]
      // [loss]
      const ch::Tensor loss = nn::CrossEntropyLoss(
          model.Forward(batch.tokens), batch.targets, {.mean_over = data});
      CH_RETURN_IF_ERROR(ch::Backward(loss));
      CH_ASSIGN_OR_RETURN(const double mean, nn::MeanOverAxis(loss, data));
      // [/loss]
      losses.push_back(mean);
    }
    CH_ASSIGN_OR_RETURN(losses.emplace_back(),
                        nn::GradNorm(model.Parameters()));
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
  }
  return losses;
}

void ExpectClose(const std::vector<double>& actual,
                 const std::vector<double>& expected, double bound) {
  CH_EXPECT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    CH_EXPECT_NEAR(actual[i], expected[i], bound * std::max(1.0, expected[i]))
        << "number " << i;
  }
}

// Compares losses and gradient norms with one rank. The last meshes leave some
// ranks without rows.
TEST(GuidesTest, LossesAndGradientsAreThoseOfTheWholeBatch) {
  for (const LossBy by :
       {LossBy::kCrossEntropy, LossBy::kOwn, LossBy::kMicroBatches}) {
    std::vector<double> expected;
    ch::OnMesh({{"fsdp", 1}}, [&](const ch::DeviceMesh& mesh) -> absl::Status {
      CH_ASSIGN_OR_RETURN(expected, Train(mesh, by));
      return absl::OkStatus();
    });
    for (const int ranks : {2, 3, 4}) {
      ch::OnMesh({{"fsdp", ranks}},
                 [&](const ch::DeviceMesh& mesh) -> absl::Status {
                   CH_ASSIGN_OR_RETURN(const std::vector<double> actual,
                                       Train(mesh, by));
                   ExpectClose(actual, expected, 2e-5);
                   return absl::OkStatus();
                 });
    }
  }
}

// [adapter]
/// A frozen Linear plus the product of two thin ones (LoRA).
class Adapted final : public nn::Module {
 public:
  Adapted(int64_t in, int64_t out, int64_t rank)
      : base_(Make<nn::Linear>("base", {.in = in, .out = out})),
        down_(Make<nn::Linear>("lora_down", {.in = in, .out = rank})),
        up_(Make<nn::Linear>("lora_up",
                             {.in = rank, .out = out, .stddev = 0})) {}

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    const ch::Tensor& x = inputs[0];
    return {base_.Forward(x) + up_.Forward(down_.Forward(x))};
  }

 private:
  nn::Linear& base_;
  nn::Linear& down_;
  nn::Linear& up_;
};
// [/adapter]

class Tower final : public nn::Module {
 public:
  Tower() {
    for (int i = 0; i < 3; ++i) layers_.Add(6, 6, 2);
  }
  nn::ModuleList<Adapted>& layers() { return layers_; }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    ch::Tensor x = inputs[0];
    for (Adapted& layer : layers_) x = ch::Gelu(layer.Forward(x));
    return {x};
  }

 private:
  nn::ModuleList<Adapted>& layers_ = Make<nn::ModuleList<Adapted>>("layers");
};

absl::StatusOr<std::vector<double>> TrainAdapters(const ch::DeviceMesh& data,
                                                  const std::string& dir) {
  Tower model;
  // [freeze]
  std::vector<nn::Parameter*> trained;
  for (const auto& [name, parameter] : model.NamedParameters()) {
    const bool trains = nn::MatchesName("layers.*.lora_*.weight", name);
    parameter->set_requires_grad(trains);
    if (trains) trained.push_back(parameter);
  }
  // [/freeze]
  for (Adapted& layer : model.layers()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(layer, data));
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, data));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
  nn::AdamW optimizer(trained, {.lr = 3e-2});
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const ch::Interval rows = ch::RowsOf(data, 5);
    const ch::Tensor x = ch::Slice(ch::Reshape(ch::Arange(30), {5, 6}) * 0.1, 0,
                                   rows.begin, rows.end);
    const ch::Tensor loss = nn::MeanOverBatch(
        ch::Sum(ch::Square(model.Forward(x) - x)), rows.size(), data);
    CH_RETURN_IF_ERROR(ch::Backward(loss));
    CH_RETURN_IF_ERROR(nn::ClipGradNorm(trained, 1.0).status());
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    CH_ASSIGN_OR_RETURN(losses.emplace_back(), nn::MeanOverAxis(loss, data));
  }
  // [adapter_state]
  nn::ModuleState whole(model);
  CH_ASSIGN_OR_RETURN(const nn::StateDict all, whole.State());
  nn::StateDict adapters;
  for (const auto& [name, value] : all.entries()) {
    if (!nn::MatchesName("layers.*.lora_*.weight", name)) continue;
    CH_RETURN_IF_ERROR(adapters.Add(name, value));
  }
  CH_RETURN_IF_ERROR(ch::checkpoint::SaveCheckpoint(data.world(), adapters, dir,
                                                    {.overwrite = true}));
  // [/adapter_state]
  for (const auto& [name, value] : adapters.entries()) {
    const ch::NoGrad no_grad;
    ch::ZeroInPlace(ch::LocalTensor(std::get<ch::Tensor>(value)));
  }
  // [adapter_load]
  CH_RETURN_IF_ERROR(
      ch::checkpoint::LoadCheckpoint(data.world(), adapters, dir));
  // [/adapter_load]
  CH_EXPECT_EQ(adapters.size(), 6u);
  double sum = 0;
  for (const auto& [name, value] : adapters.entries()) {
    const ch::NoGrad no_grad;
    for (const float x :
         ch::FullTensor(std::get<ch::Tensor>(value)).ToVector<float>()) {
      sum += std::abs(x);
    }
  }
  losses.push_back(sum);
  return losses;
}

TEST(GuidesTest, AdaptersTrainAloneAndAreSavedAlone) {
  std::vector<double> expected;
  for (const int ranks : {1, 2, 3}) {
    const std::string dir = absl::StrCat(::testing::TempDir(), "/adapters");
    ch::OnMesh({{"fsdp", ranks}},
               [&](const ch::DeviceMesh& mesh) -> absl::Status {
                 CH_ASSIGN_OR_RETURN(const std::vector<double> losses,
                                     TrainAdapters(mesh, dir));
                 CH_EXPECT_LE(losses[kSteps - 1], losses[0]);
                 if (ranks == 1) {
                   expected = losses;
                 } else {
                   ExpectClose(losses, expected, 2e-5);
                 }
                 return absl::OkStatus();
               });
  }
}

struct Judged {
  std::vector<double> numbers;
  std::vector<int32_t> tokens;
};

absl::StatusOr<Judged> EvaluateAndGenerate(const ch::DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data, mesh.Slice("fsdp"));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh tp, mesh.Slice("tp"));
  nn::Llama model(Config());
  CH_RETURN_IF_ERROR(
      ch::tp::ParallelizeModule(model, tp, ch::tp::LlamaPlan(model.config())));
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, data));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 11}));
  Judged judged;
  {
    // [evaluate]
    const ch::NoGrad no_grad;
    model.set_training(false);  // dropout is off
    double loss_sum = 0;
    double targets = 0;
    nn::DataPosition position(kDataSet);
    for (int64_t left = kDataSet; left > 0; left -= 4) {
      const Batch batch = Read(position.Next(data, std::min<int64_t>(left, 4)));
      const ch::Tensor sum = ch::CrossEntropy(
          model.Forward(batch.tokens), batch.targets,
          {.reduction = ch::CrossEntropyOptions::Reduction::kSum});
      CH_ASSIGN_OR_RETURN(const double here, ch::Item(sum));
      loss_sum += here;
      for (const int32_t target : batch.targets.ToVector<int32_t>()) {
        if (target >= 0) ++targets;
      }
    }
    CH_ASSIGN_OR_RETURN(const std::vector<double> sums,
                        ch::SumOverMesh(data, {loss_sum, targets}));
    const double mean = sums[0] / sums[1];
    model.set_training(true);
    // [/evaluate]
    judged.numbers = {mean, sums[1]};
  }
  {
    std::vector<int32_t> tokens = {3, 5};
    // [generate]
    const ch::NoGrad no_grad;
    for (int i = 0; i < 4; ++i) {
      const auto length = static_cast<int64_t>(tokens.size());
      const ch::Tensor logits =
          model.Forward(ch::FromValues<int32_t>({1, length}, tokens));
      // The embedding is split by vocabulary, so one row is gathered.
      const ch::Tensor last =
          ch::FullTensor(ch::Slice(logits, 1, length - 1, length));
      tokens.push_back(
          static_cast<int32_t>(ch::ArgMax(last, 2).ToVector<int64_t>()[0]));
    }
    // [/generate]
    judged.tokens = tokens;
  }
  return judged;
}

TEST(GuidesTest, EvaluationAndGenerationAreThoseOfOneRank) {
  Judged expected;
  for (const auto& [fsdp, tp] :
       {std::pair{1, 1}, std::pair{3, 1}, std::pair{1, 2}, std::pair{2, 2}}) {
    ch::OnMesh(
        {{"fsdp", fsdp}, {"tp", tp}},
        [&, ranks = fsdp * tp](const ch::DeviceMesh& mesh) -> absl::Status {
          CH_ASSIGN_OR_RETURN(const Judged judged, EvaluateAndGenerate(mesh));
          if (ranks == 1) {
            expected = judged;
          } else {
            ExpectClose(judged.numbers, expected.numbers, 1e-5);
            CH_EXPECT_EQ(judged.tokens, expected.tokens);
          }
          return absl::OkStatus();
        });
  }
}

absl::StatusOr<std::vector<double>> TrainReplicated(ch::World& world,
                                                    int replicas, bool mixed,
                                                    bool ragged = false) {
  nn::Llama model(Config());
  // [hsdp]
  CH_ASSIGN_OR_RETURN(
      const ch::DeviceMesh mesh,
      ch::InitDeviceMesh(
          world, {{"replicate", replicas}, {"fsdp", world.size() / replicas}}));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data,
                      mesh.Slice({"replicate", "fsdp"}));
  ch::fsdp::FullyShardOptions options;
  // [/hsdp]
  if (mixed) {
    // [mixed_precision]
    options.mixed_precision = {
        .param_dtype = ch::kBFloat16,
        .param_dtype_override =
            [](const nn::Parameter& parameter) -> std::optional<ch::DType> {
          if (parameter.data().ndim() == 1) return ch::kFloat32;  // norms
          return std::nullopt;
        },
        .reduce_dtype = ch::kFloat32,
        .output_dtype = ch::kFloat32,
    };
    // [/mixed_precision]
  }
  if (ragged) {
    // [ragged]
    // Scales for blocks of 8 rows are computed on one rank.
    options.ragged_shard = {
        .rows_per_block = [](const nn::Parameter& parameter) -> int64_t {
          return parameter.data().ndim() == 2 ? 8 : 1;
        }};
    // [/ragged]
  }
  // [hsdp_shard]
  for (nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(block, data, options));
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, data, options));
  // [/hsdp_shard]
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
  nn::DataPosition position(kDataSet);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = Read(position.Next(data, 5));
    const ch::Tensor loss = nn::CrossEntropyLoss(
        model.Forward(batch.tokens), batch.targets, {.mean_over = data});
    CH_RETURN_IF_ERROR(ch::Backward(loss));
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    CH_ASSIGN_OR_RETURN(losses.emplace_back(), nn::MeanOverAxis(loss, data));
  }
  return losses;
}

TEST(GuidesTest, HsdpAndMixedPrecisionTrainAsOneRankDoes) {
  std::vector<double> expected;
  ch::RunRanks(1, [&](ch::World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(expected, TrainReplicated(world, 1, /*mixed=*/false));
    return absl::OkStatus();
  });
  for (const bool mixed : {false, true}) {
    ch::RunRanks(4, [&](ch::World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const std::vector<double> losses,
                          TrainReplicated(world, 2, mixed));
      // A bfloat16 has 8 bits of precision.
      ExpectClose(losses, expected, mixed ? 2e-2 : 2e-5);
      return absl::OkStatus();
    });
  }
}

TEST(GuidesTest, RaggedGroupsTrainAsOneRankDoes) {
  std::vector<double> expected;
  ch::RunRanks(1, [&](ch::World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(expected, TrainReplicated(world, 1, /*mixed=*/false));
    return absl::OkStatus();
  });
  for (const int replicas : {1, 2}) {
    ch::RunRanks(4, [&](ch::World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const std::vector<double> losses,
                          TrainReplicated(world, replicas, /*mixed=*/false,
                                          /*ragged=*/true));
      ExpectClose(losses, expected, 2e-5);
      return absl::OkStatus();
    });
  }
}

// Prints the layout of `t` without units: "plain", "R", "S(1)", "P(sum)".
std::string LayoutText(const ch::Tensor& t) {
  if (!t.is_distributed()) return "plain";
  std::string text = ch::LayoutOf(t).ToString();
  text = text.substr(1, text.size() - 2);
  return text.substr(0, text.find('/'));
}

// Returns the layouts between the modules of a Llama block, by the edges of the
// drawing.
absl::StatusOr<std::vector<std::string>> LayoutsInBlock(ch::World& world,
                                                        int fsdp_ranks,
                                                        bool sequence,
                                                        bool splits) {
  CH_ASSIGN_OR_RETURN(
      const ch::DeviceMesh mesh,
      ch::InitDeviceMesh(
          world, {{"fsdp", fsdp_ranks}, {"tp", world.size() / fsdp_ranks}}));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data, mesh.Slice("fsdp"));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh tp, mesh.Slice("tp"));
  nn::Llama model(Config());
  if (splits && sequence) {
    CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(
        model, tp, ch::tp::LlamaPlan(model.config())));
  } else if (splits) {
    // [tp_alone]
    const int64_t head_dim = model.config().head_dim;  // heads stay whole
    const ch::tp::Style colwise = ch::tp::ColwiseParallel();
    CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(
        model, tp,
        {{"layers.*.self_attn.[qkv]_proj",
          ch::tp::ColwiseParallel({.unit = head_dim})},
         {"layers.*.self_attn.o_proj",
          ch::tp::RowwiseParallel(
              {.use_local_output = true, .unit = head_dim})},
         {"layers.*.mlp.gate_proj", colwise},
         {"layers.*.mlp.up_proj", colwise},
         {"layers.*.mlp.down_proj",
          ch::tp::RowwiseParallel({.use_local_output = true})}}));
    // [/tp_alone]
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, data));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
  std::vector<std::string> edges(9);
  const auto watch = [&](nn::Module& module, size_t in, size_t product,
                         size_t out) {
    if (in != 0) {
      module.AddPreHook(
          [&edges, in](nn::Module&, ch::TensorList& inputs) {
            edges[in] = LayoutText(inputs[0]);
          },
          /*first=*/true);
    }
    const auto see = [&edges](size_t edge) {
      return
          [&edges, edge](nn::Module&, ch::TensorSpan, ch::TensorList& outputs) {
            edges[edge] = LayoutText(outputs[0]);
          };
    };
    if (product != 0) module.AddPostHook(see(product), /*first=*/true);
    if (out != 0) module.AddPostHook(see(out));
  };
  for (const auto& [name, module] : model.NamedModules()) {
    if (name == "layers.1.input_layernorm") watch(*module, 1, 0, 2);
    if (name == "layers.1.self_attn.q_proj") watch(*module, 0, 0, 3);
    if (name == "layers.1.self_attn.o_proj") watch(*module, 0, 4, 5);
    if (name == "layers.1.mlp.gate_proj") watch(*module, 0, 0, 6);
    if (name == "layers.1.mlp.down_proj") watch(*module, 0, 7, 8);
  }
  model.Forward(Read({0, 1}).tokens);
  edges.erase(edges.begin());
  return edges;
}

TEST(GuidesTest, TheDrawingOfABlockSaysWhatIsBetweenItsModules) {
  std::vector<std::vector<std::string>> columns(4);
  const auto run = [&](size_t column, int ranks, int fsdp_ranks, bool sequence,
                       bool splits) {
    ch::RunRanks(ranks, [&](ch::World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(std::vector<std::string> edges,
                          LayoutsInBlock(world, fsdp_ranks, sequence, splits));
      if (world.rank() == 0) columns[column] = std::move(edges);
      return absl::OkStatus();
    });
  };
  run(0, 2, 1, false, true);
  run(1, 2, 1, true, true);
  run(2, 2, 2, false, false);
  run(3, 4, 2, true, true);
  const std::vector<ch::docs::Fence> fences =
      ch::docs::FencesOf("docs/transformer_block.md", "");
  ASSERT_GE(fences.size(), 2u);
  std::vector<std::string> lines = {
      absl::StrFormat("%-6s%-8s%-14s%-8s%s", "edge", "TP", "TP, sequence",
                      "FSDP", "FSDP x TP, sequence")};
  for (size_t edge = 0; edge < columns[0].size(); ++edge) {
    lines.push_back(absl::StrFormat("%-6s%-8s%-14s%-8s%s",
                                    absl::StrCat("(", edge + 1, ")"),
                                    columns[0][edge], columns[1][edge],
                                    columns[2][edge], columns[3][edge]));
  }
  EXPECT_EQ(fences[1].lines, lines) << fences[1].where;
}

}  // namespace
