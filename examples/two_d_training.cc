// SPDX-License-Identifier: Apache-2.0

/// \file
/// The example of README.md: a language model on a mesh of 2 x 2 ranks.

#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"

namespace ch = crosshatch;

namespace {

constexpr int64_t kRows = 5;  // Of the global batch; need not be divisible.

struct Batch {
  ch::Tensor tokens;   // [rows, 32]
  ch::Tensor targets;  // The next token of each.
};

// Returns rows of a pattern to learn.
Batch Read(const ch::Interval& rows) {
  constexpr int64_t kLength = 32;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  for (int64_t i = rows.begin * kLength; i < rows.end * kLength; ++i) {
    tokens.push_back(static_cast<int32_t>(i * 7 % 61));
    targets.push_back(static_cast<int32_t>((i + 1) * 7 % 61));
  }
  return {ch::FromValues<int32_t>({rows.size(), kLength}, tokens),
          ch::FromValues<int32_t>({rows.size(), kLength}, targets)};
}

}  // namespace

// [example]
absl::Status Train(ch::World& world) {
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}}));
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh fsdp, mesh.Slice("fsdp"));

  ch::nn::Llama model({.dim = 64, .layers = 2, .heads = 4, .ffn = 160});
  CH_RETURN_IF_ERROR(
      ch::tp::ParallelizeModule(model, tp, ch::tp::LlamaPlan(model.config())));
  for (ch::nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(block, fsdp));
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, fsdp));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));  // only its own elements

  ch::nn::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
  for (int step = 1; step <= 20; ++step) {
    const Batch batch = Read(ch::RowsOf(fsdp, kRows));  // this rank's rows
    ch::Tensor loss =
        ch::nn::CrossEntropyLoss(model.Forward(batch.tokens), batch.targets,
                                 {.mean_over = fsdp});  // of all ranks' rows
    CH_RETURN_IF_ERROR(ch::Backward(loss));  // a peer's failure surfaces here
    CH_RETURN_IF_ERROR(ch::nn::ClipGradNorm(model.Parameters(), 1.0).status());
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    CH_ASSIGN_OR_RETURN(double value, ch::nn::MeanOverAxis(loss, fsdp));
    if (world.rank() == 0) std::printf("step %d loss %.4f\n", step, value);
  }
  return absl::OkStatus();
}

int main() {
  const absl::Status status = ch::RunLocal(/*ranks=*/4, Train);
  std::fputs(status.ok() ? "" : status.ToString().c_str(), stderr);
  return status.ok() ? 0 : 1;
}
// [/example]
