// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/example_job.h"

#include <cstdio>
#include <utility>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/mesh/parse_mesh_axes.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"

namespace crosshatch::examples {
namespace {

constexpr int kMaxRanks = 64;
constexpr int64_t kSteps = 12;

// Returns all axes of `names` in their order; axes that `text` omits have size
// 1.
absl::StatusOr<std::vector<MeshAxis>> WithAll(
    const std::string& text, const std::vector<std::string>& names) {
  std::vector<MeshAxis> given;
  if (!text.empty()) {
    CH_ASSIGN_OR_RETURN(given, ParseMeshAxes(text, names, kMaxRanks));
  }
  std::vector<MeshAxis> axes;
  for (const std::string& name : names) {
    MeshAxis& axis = axes.emplace_back(MeshAxis{name, 1});
    for (const MeshAxis& one : given) {
      if (one.name == name) axis = one;
    }
  }
  return axes;
}

absl::Status OnMesh(World& world, const std::vector<MeshAxis>& axes,
                    absl::FunctionRef<absl::Status(const DeviceMesh&)> train) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh, InitDeviceMesh(world, axes));
  return train(mesh);
}

}  // namespace

int RunExample(const std::string& mesh, const std::vector<std::string>& axes,
               absl::FunctionRef<absl::Status(const DeviceMesh&)> train) {
  const absl::StatusOr<std::vector<MeshAxis>> shape = WithAll(mesh, axes);
  absl::Status status = shape.status();
  if (shape.ok()) {
    int ranks = 1;
    for (const MeshAxis& axis : *shape) ranks *= axis.size;
    status = RunLocal(
        ranks, [&](World& world) { return OnMesh(world, *shape, train); });
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

absl::Status TrainSomeSteps(
    nn::Module& model, const DeviceMesh& data,
    absl::FunctionRef<absl::StatusOr<Tensor>(int64_t step)> loss_of) {
  const std::vector<nn::Parameter*> parameters = model.Parameters();
  nn::AdamW optimizer(parameters, {.lr = 3e-3});
  for (int64_t step = 0; step < kSteps; ++step) {
    CH_ASSIGN_OR_RETURN(const Tensor loss, loss_of(step));
    CH_RETURN_IF_ERROR(Backward(loss));
    CH_ASSIGN_OR_RETURN(const double norm, nn::ClipGradNorm(parameters, 1.0));
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    CH_ASSIGN_OR_RETURN(const double value, nn::MeanOverAxis(loss, data));
    if (RankContext::Current().world_rank() == 0) {
      std::printf("step %lld loss %.7f norm %.7f\n",
                  static_cast<long long>(step), value, norm);
    }
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::examples
