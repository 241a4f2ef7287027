// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/on_ranks_testutil.h"

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {

FullyShardOptions Summing() {
  FullyShardOptions options;
  options.reduction.divide_factor = 1;
  return options;
}

void OnRanks(
    const Axes& axes,
    const std::function<absl::Status(const DeviceMesh&, LineSink&)>& body,
    uint64_t adversarial_seed) {
  int ranks = 1;
  for (const MeshAxis& axis : axes) ranks *= axis.size;
  std::vector<LineSink> logs(static_cast<size_t>(ranks),
                             LineSink(EventKind::kFsdp));
  std::vector<EventSink*> sinks;
  for (LineSink& log : logs) sinks.push_back(&log);
  OnMesh(
      axes,
      [&](const DeviceMesh& mesh) -> absl::Status {
        World& world = mesh.world();
        CH_RETURN_IF_ERROR(body(mesh, logs[static_cast<size_t>(world.rank())]));
        return world.context().Synchronize();
      },
      {.sinks = sinks, .test = {.adversarial_seed = adversarial_seed}});
}

absl::Status ShardAll(TestModel& model, const DeviceMesh& mesh,
                      const FullyShardOptions& options) {
  for (auto& block : model.blocks()) {
    CH_RETURN_IF_ERROR(FullyShard(*block, mesh, options));
  }
  return FullyShard(model, mesh, options);
}

Tensor Job::Loss(int64_t salt) const {
  const World& world = mesh.world();
  return Sum(model.Forward(BatchOf(world.rank(), world.size(), salt)));
}

absl::Status Step(Job& job) { return Backward(job.Loss(0)); }

std::vector<std::string> LogOf(const Axes& axes,
                               const FullyShardOptions& options,
                               const std::function<absl::Status(Job&)>& body,
                               int repeats) {
  std::vector<std::string> lines;
  OnRanks(axes, [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
    TestModel model(2, 5, 7, 3, repeats);
    model.FillWithIntegers();
    CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
    CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
    Job job{model, mesh, root, log};
    CH_RETURN_IF_ERROR(Step(job));
    log.Take();
    CH_RETURN_IF_ERROR(body(job));
    if (mesh.world().rank() == 0) lines = log.Take();
    return absl::OkStatus();
  });
  return OfFirstRank(lines);
}

}  // namespace crosshatch::fsdp
