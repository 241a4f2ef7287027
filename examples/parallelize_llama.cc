// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/parallelize_llama.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/float8_gather.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "crosshatch/tp/plan_text.h"

namespace crosshatch::examples {
namespace {

bool HasAxis(const TrainOptions& options, absl::string_view name) {
  return std::any_of(options.mesh.begin(), options.mesh.end(),
                     [&](const MeshAxis& axis) { return axis.name == name; });
}

}  // namespace

std::vector<std::string> DataAxes(const TrainOptions& options) {
  if (HasAxis(options, "replicate")) return {"replicate", "fsdp"};
  return {"fsdp"};
}

int RanksWithoutHeads(const TrainOptions& options) {
  const nn::LlamaConfig config = options.config.Resolved();
  const int64_t ranks = options.AxisSize("tp");
  const auto busy = [ranks](int64_t units) {
    const int64_t share = (units + ranks - 1) / ranks;
    return (units + share - 1) / share;
  };
  const bool splits_groups =
      config.kv_heads < ranks &&
      (config.heads + ranks - 1) / ranks < config.heads / config.kv_heads;
  return static_cast<int>(ranks -
                          busy(splits_groups ? config.heads : config.kv_heads));
}

absl::Status ParallelizeLlama(nn::Llama& model, const DeviceMesh& mesh,
                              const TrainOptions& options) {
  if (HasAxis(options, "tp")) {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp_mesh, mesh.Slice("tp"));
    tp::ParallelPlan plan = tp::LlamaPlan(model.config());
    if (!options.plan.empty()) {
      CH_ASSIGN_OR_RETURN(
          plan, tp::ParsePlan(options.plan_text, options.plan, kMaxDims));
    }
    const absl::Status laid = tp::ParallelizeModule(
        model, tp_mesh, plan, {.replicate_rest = !options.plan.empty()});
    if (!laid.ok() && !options.plan.empty()) {
      return absl::Status(laid.code(),
                          absl::StrCat("--plan=", options.plan, ": ",
                                       std::string(laid.message())));
    }
    CH_RETURN_IF_ERROR(laid);
  }
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp_mesh,
                      mesh.Slice(DataAxes(options)));
  fsdp::FullyShardOptions fsdp_options;
  // The loss is divided by the number of targets of the whole batch, so every
  // target has the same weight however the batch is split.
  fsdp_options.reduction.divide_factor = 1.0;
  if (fsdp_mesh.ndim() == 2) fsdp_options.replicate_axis = "replicate";
  fsdp_options.cpu_offload = options.offload;
  if (options.dtype != kFloat32) {
    fsdp_options.mixed_precision.param_dtype = options.dtype;
  }
  // Without it, forward converts the weights, of which offloading keeps the
  // shards in host memory.
  if (options.float8.has_value() && !options.offload) {
    fsdp_options.gather_hooks = fsdp::Float8GatherHooks(model);
  }
  for (nn::Module& block : model.blocks()) {
    if (options.recompute) CH_RETURN_IF_ERROR(nn::CheckpointActivations(block));
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp_mesh, fsdp_options));
  }
  return fsdp::FullyShard(model, fsdp_mesh, fsdp_options);
}

}  // namespace crosshatch::examples
