// SPDX-License-Identifier: Apache-2.0

/// \file
/// A mixture of experts on a mesh of three axes: a Llama whose MLPs have five
/// experts. Each token uses two of them.
///
///     moe [MESH]                      e.g. ep:2,fsdp:2,tp:2
///
/// The batch is split over "ep" and "fsdp", experts over "ep", all other
/// matrices over "tp". FSDP shards each parameter over the ranks that would
/// replicate it. docs/mixture_of_experts.md explains the details.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/example_job.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/mixture_of_experts.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/layers/rope.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/expert_parallel.h"
#include "crosshatch/tp/parallelize_module.h"

namespace ch = crosshatch;
namespace nn = crosshatch::nn;
using ch::Tensor;

namespace {

constexpr int64_t kVocab = 61;
constexpr int64_t kRows = 5;  // Of a batch; not divisible by any mesh.
constexpr int64_t kLength = 12;

nn::LlamaConfig Config() {
  nn::LlamaConfig config = {.dim = 32, .layers = 2, .heads = 4, .kv_heads = 2};
  return config.Resolved();
}

// [block]
// Maps {x, balance so far} to the same: attention, then experts.
class Block final : public nn::Module {
 public:
  Block(const nn::LlamaConfig& config, nn::RotaryTable& rotary)
      : attention_(Make<nn::LlamaAttention>("self_attn", config, rotary, 0)),
        experts_(Make<nn::MixtureOfExperts>(
            "experts",
            nn::MixtureOfExpertsOptions{
                .dim = config.dim, .hidden = 48, .experts = 5, .choices = 2})),
        attention_norm_(Make<nn::RmsNorm>("attention_norm", config.dim, 1e-5)),
        experts_norm_(Make<nn::RmsNorm>("experts_norm", config.dim, 1e-5)) {}

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    const Tensor x =
        Add(inputs[0], attention_.Forward(attention_norm_.Forward(inputs[0])));
    const ch::TensorList given = experts_.Call({experts_norm_.Forward(x)});
    return {Add(x, given[0]),
            inputs.size() == 1 ? given[1] : Add(inputs[1], given[1])};
  }

 private:
  nn::LlamaAttention& attention_;
  nn::MixtureOfExperts& experts_;
  nn::RmsNorm& attention_norm_;
  nn::RmsNorm& experts_norm_;
};
// [/block]

// Maps tokens [B, T] to {logits [B, T, vocab], load-balance loss}.
class Model final : public nn::Module {
 public:
  explicit Model(const nn::LlamaConfig& config)
      : rotary_(config.head_dim, config.rope_theta),
        embedding_(Make<nn::Embedding>("embedding", kVocab, config.dim)),
        blocks_(Make<nn::ModuleList<Block>>("blocks")),
        norm_(Make<nn::RmsNorm>("norm", config.dim, 1e-5)),
        head_(Make<nn::Linear>("head", config.dim, kVocab)) {
    for (int64_t i = 0; i < config.layers; ++i) blocks_.Add(config, rotary_);
  }

  nn::ModuleList<Block>& blocks() { return blocks_; }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    ch::TensorList x = {embedding_.Forward(inputs[0])};
    for (Block& block : blocks_) x = block.Call(x);
    return {head_.Forward(norm_.Forward(x[0])), x[1]};
  }

 private:
  nn::RotaryTable rotary_;
  nn::Embedding& embedding_;
  nn::ModuleList<Block>& blocks_;
  nn::RmsNorm& norm_;
  nn::Linear& head_;
};

// [parallelize]
// Returns the mesh with one axis that has the ranks along all of `axes`.
absl::StatusOr<ch::DeviceMesh> Joined(const ch::DeviceMesh& mesh,
                                      const std::vector<std::string>& axes) {
  const std::string name = absl::StrJoin(axes, "_");
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh joined, mesh.Flatten(axes, name));
  return joined.Slice(name);
}

absl::Status Parallelize(Model& model, const ch::DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh ep, mesh.Slice("ep"));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data, Joined(mesh, {"ep", "fsdp"}));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh copies_of_experts,
                      Joined(mesh, {"fsdp", "tp"}));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh all,
                      Joined(mesh, {"ep", "fsdp", "tp"}));

  // Between blocks activations are sharded by position. The experts use each
  // rank's positions as they are: all ranks have different tokens.
  const ch::tp::Style by_position = ch::tp::SequenceParallel(1);
  const nn::LlamaConfig config = Config();
  // Query heads that share a key head stay together.
  const int64_t group = config.heads / config.kv_heads * config.head_dim;
  CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(
      model, tp,
      {{"embedding", ch::tp::RowwiseParallel({.output = ch::Shard(1)})},
       {"blocks.*.*_norm", by_position},
       {"blocks.*.self_attn",
        ch::tp::PrepareModuleInput(
            {.input = ch::Shard(1), .desired = ch::Replicate()})},
       {"blocks.*.self_attn.q_proj",
        ch::tp::ColwiseParallel({.unit = group, .subunit = config.head_dim})},
       {"blocks.*.self_attn.[kv]_proj",
        ch::tp::ColwiseParallel(
            {.unit = config.head_dim, .query_heads = config.heads})},
       {"blocks.*.self_attn.o_proj",
        ch::tp::RowwiseParallel({.output = ch::Shard(1),
                                 .unit = group,
                                 .subunit = config.head_dim})},
       {"norm", by_position},
       {"head", ch::tp::ColwiseParallel()}}));
  CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(
      model, ep,
      {{"blocks.*.experts",
        ch::tp::ExpertParallel({.batch = all, .shared = tp})}}));

  ch::fsdp::FullyShardOptions options;
  // A mean over the ranks that split the batch, explicit because the experts'
  // meshes have other ranks.
  options.reduction.divide_factor = data.size();
  const auto is_expert = [](const nn::Parameter& p) {
    return p.name().find("experts.") != std::string::npos &&
           p.name().find("_proj") != std::string::npos;
  };
  options.mesh_of =
      [=](const nn::Parameter& p) -> std::optional<ch::DeviceMesh> {
    if (is_expert(p)) return copies_of_experts;
    return std::nullopt;
  };
  // Shards experts on dim 1, because there are fewer experts than ranks.
  options.shard_dim = [=](const nn::Parameter& p) {
    return is_expert(p) ? 1 : 0;
  };
  for (Block& block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(block, data, options));
  }
  return ch::fsdp::FullyShard(model, data, options);
}
// [/parallelize]

absl::Status Train(const ch::DeviceMesh& mesh) {
  Model model(Config());
  CH_RETURN_IF_ERROR(Parallelize(model, mesh));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data, mesh.Slice({"ep", "fsdp"}));
  const ch::Interval rows = ch::RowsOf(data, kRows);
  return ch::examples::TrainSomeSteps(
      model, data, [&](int64_t step) -> absl::StatusOr<Tensor> {
        std::vector<int32_t> tokens;
        std::vector<int32_t> targets;
        for (int64_t i = rows.begin * kLength; i < rows.end * kLength; ++i) {
          const int64_t at = step * kRows * kLength + i;
          tokens.push_back(static_cast<int32_t>(at * 7 % kVocab));
          targets.push_back(static_cast<int32_t>((at + 1) * 7 % kVocab));
        }
        const ch::Shape sizes = {rows.size(), kLength};
        // [loss]
        const ch::TensorList out =
            model.Call({ch::FromValues<int32_t>(sizes, tokens)});
        const Tensor loss = nn::CrossEntropyLoss(
            out[0], ch::FromValues<int32_t>(sizes, targets),
            {.mean_over = data});
        return Add(loss, Mul(out[1], 0.01));
        // [/loss]
      });
}

}  // namespace

int main(int argc, char** argv) {
  return ch::examples::RunExample(argc > 1 ? argv[1] : "", {"ep", "fsdp", "tp"},
                                  Train);
}
