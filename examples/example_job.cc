// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/example_job.h"

#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/mesh/parse_mesh_axes.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/verify/verify_step.h"

namespace crosshatch::examples {
namespace {

constexpr int kMaxRanks = 64;
constexpr int kMaxVerifiedRanks = 1 << 17;
constexpr absl::string_view kVerify = "verify=";
constexpr int64_t kSteps = 12;
constexpr int64_t kDrySteps = 2;  // All later ones are like the second.

// Returns all axes of `names` in their order; axes that `text` omits have size
// 1.
absl::StatusOr<std::vector<MeshAxis>> WithAll(
    const std::string& text, const std::vector<std::string>& names,
    int max_ranks) {
  std::vector<MeshAxis> given;
  if (!text.empty()) {
    CH_ASSIGN_OR_RETURN(given, ParseMeshAxes(text, names, max_ranks));
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

// Prints the report.
absl::Status Verify(const std::vector<MeshAxis>& axes,
                    absl::FunctionRef<absl::Status(const DeviceMesh&)> train) {
  CH_ASSIGN_OR_RETURN(
      const verify::VerifyReport report,
      verify::VerifyStep(
          [&](World& world) { return OnMesh(world, axes, train); }, axes));
  std::printf("%s", report.ToString().c_str());
  if (report.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError("the step is not correct");
}

absl::Status Run(const std::string& mesh, const std::vector<std::string>& names,
                 absl::FunctionRef<absl::Status(const DeviceMesh&)> train) {
  if (absl::StartsWith(mesh, kVerify)) {
    CH_ASSIGN_OR_RETURN(
        const std::vector<MeshAxis> axes,
        WithAll(mesh.substr(kVerify.size()), names, kMaxVerifiedRanks));
    return Verify(axes, train);
  }
  CH_ASSIGN_OR_RETURN(const std::vector<MeshAxis> axes,
                      WithAll(mesh, names, kMaxRanks));
  int ranks = 1;
  for (const MeshAxis& axis : axes) ranks *= axis.size;
  return RunLocal(ranks,
                  [&](World& world) { return OnMesh(world, axes, train); });
}

}  // namespace

int RunExample(const std::string& mesh, const std::vector<std::string>& axes,
               absl::FunctionRef<absl::Status(const DeviceMesh&)> train) {
  const absl::Status status = Run(mesh, axes, train);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

absl::Status TrainSomeSteps(
    nn::Module& model, const DeviceMesh& data,
    absl::FunctionRef<absl::StatusOr<Tensor>(int64_t step)> loss_of) {
  const std::vector<nn::Parameter*> parameters = model.Parameters();
  nn::AdamW optimizer(parameters, {.lr = 3e-3});
  const RankContext& context = RankContext::Current();
  const int64_t steps = context.dry_run() ? kDrySteps : kSteps;
  for (int64_t step = 0; step < steps; ++step) {
    CH_ASSIGN_OR_RETURN(const Tensor loss, loss_of(step));
    CH_RETURN_IF_ERROR(Backward(loss));
    CH_ASSIGN_OR_RETURN(const double norm, nn::ClipGradNorm(parameters, 1.0));
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    CH_ASSIGN_OR_RETURN(const double value, nn::MeanOverAxis(loss, data));
    if (context.world_rank() == 0 && !context.dry_run()) {
      std::printf("step %lld loss %.7f norm %.7f\n",
                  static_cast<long long>(step), value, norm);
    }
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::examples
