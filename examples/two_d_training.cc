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
#include "crosshatch/nn/adamw.h"
#include "crosshatch/nn/clip_grad.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"

namespace ch = crosshatch;

namespace {

struct Batch {
  ch::Tensor tokens;   // [2, 32]
  ch::Tensor targets;  // The token after each.
};

// Two rows of a pattern to learn, other ones for each part of the batch.
Batch Rows(int part) {
  constexpr int kRows = 2;
  constexpr int kLength = 32;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  for (int i = 0; i < kRows * kLength; ++i) {
    const int at = part * kRows * kLength + i;
    tokens.push_back(at * 7 % 61);
    targets.push_back((at + 1) * 7 % 61);
  }
  return {ch::FromValues<int32_t>({kRows, kLength}, tokens),
          ch::FromValues<int32_t>({kRows, kLength}, targets)};
}

}  // namespace

// [example]
absl::Status Train(ch::World& world) {
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh mesh,
                      ch::InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}}));
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(ch::DeviceMesh fsdp, mesh.Slice("fsdp"));

  ch::nn::Llama model({.dim = 64, .layers = 2, .heads = 4, .ffn = 160});
  CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(model, tp, ch::tp::LlamaPlan()));
  for (ch::nn::Module& block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(block, fsdp));
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, fsdp));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));  // only its own elements

  ch::nn::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
  for (int step = 1; step <= 20; ++step) {
    const Batch batch = Rows(*fsdp.index(0));
    ch::Tensor loss =
        ch::CrossEntropy(model.Forward(batch.tokens), batch.targets);
    CH_RETURN_IF_ERROR(ch::Backward(loss));  // a peer's failure surfaces here
    CH_RETURN_IF_ERROR(ch::nn::ClipGradNorm(model.Parameters(), 1.0).status());
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    const float value = ch::LocalTensor(loss).ToVector<float>()[0];
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
