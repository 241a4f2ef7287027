// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/distribute_module.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/mesh/mesh_collectives.h"

namespace crosshatch::nn {
namespace {

constexpr char kAttachment[] = "distribute_module";

// Marks a module whose hooks are installed.
class Distributed final : public Attachment {};

}  // namespace

absl::Status DistributeParameter(Parameter& parameter, const DeviceMesh& mesh,
                                 const Layout& layout) {
  const Tensor& data = parameter.data();
  if (parameter.gathered().defined()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter ", parameter.name(), " is sharded by FullyShard already: ",
        data.Describe(), "; distribute parameters over tensor-parallel ranks ",
        "(ParallelizeModule, DistributeModule) before calling ", "FullyShard"));
  }
  if (!data.is_distributed()) {
    parameter.set_data(DistributeTensor(data, mesh, layout));
    return absl::OkStatus();
  }
  if (LayoutOf(data) == layout) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "parameter ", parameter.name(), " is distributed as ",
      LayoutOf(data).ToString(), " already, on ", MeshOf(data).ToString(),
      ", not ", layout.ToString(), " on ", mesh.ToString()));
}

absl::Status DistributeModule(Module& module, const DeviceMesh& mesh,
                              const DistributeModuleOptions& options) {
  if (!mesh.coordinate().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("DistributeModule: rank ", mesh.world().world_rank(),
                     " is not on ", mesh.ToString()));
  }
  if (module.attachment(kAttachment) != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("DistributeModule: ", module.type_name(), " ",
                     module.FullName(), " is distributed already"));
  }
  // Gives the parameters the names that messages use.
  const std::vector<NamedParameter> parameters = module.NamedParameters();
  if (options.partition != nullptr) {
    for (const NamedModule& named : module.NamedModules()) {
      CH_RETURN_IF_ERROR(options.partition(named.name, *named.module, mesh));
    }
  }
  for (const NamedParameter& named : parameters) {
    const Tensor& data = named.parameter->data();
    if (!data.is_distributed()) {
      CH_RETURN_IF_ERROR(
          DistributeParameter(*named.parameter, mesh,
                              Layout::Replicated(mesh.layout(), data.ndim())));
    } else if (MeshOf(data) != mesh) {
      return absl::FailedPreconditionError(
          absl::StrCat("DistributeModule: parameter ", named.name, " is on ",
                       MeshOf(data).ToString(), ", not on ", mesh.ToString()));
    }
  }
  for (const NamedBuffer& named : module.NamedBuffers()) {
    const Tensor& data = named.buffer->data();
    if (data.is_distributed()) continue;
    CH_RETURN_IF_ERROR(DistributeParameter(
        *named.buffer, mesh, Layout::Replicated(mesh.layout(), data.ndim())));
  }
  if (options.input != nullptr) {
    module.AddPreHook([mesh, run = options.input](Module&, TensorList& inputs) {
      run(inputs, mesh);
    });
  }
  if (options.output != nullptr) {
    module.AddPostHook(
        [mesh, run = options.output](Module&, TensorSpan, TensorList& outputs) {
          run(outputs, mesh);
        });
  }
  module.Attach(kAttachment, std::make_shared<Distributed>());
  return absl::OkStatus();
}

namespace {

// Checks that the ranks have memory for the same buffers. The later comparisons
// are collective over those buffers.
absl::Status CompareMemory(const std::vector<NamedBuffer>& buffers,
                           const DeviceMesh& mesh) {
  std::string here;
  for (const auto& [name, buffer] : buffers) {
    absl::StrAppend(&here, here.empty() ? "" : ", ", buffer->name(),
                    buffer->has_memory() ? "" : " without memory");
  }
  CH_ASSIGN_OR_RETURN(const std::optional<RankDifference> differ,
                      FindRankDifference(mesh, here, "buffers"));
  if (!differ.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks have other buffers: ", differ->first, " on rank ",
      differ->first_rank, ", ", differ->other, " on rank ", differ->other_rank,
      "; every rank calls Module::Materialize, or restores, and builds the "
      "same modules"));
}

// Compares on both meshes even if the first reports an error, since the ranks
// of the other one wait.
absl::Status CompareValues(const Buffer& buffer, const DeviceMesh& mesh) {
  const std::string what = absl::StrCat("buffer ", buffer.name());
  const Tensor& data = buffer.data();
  const Tensor local = LocalTensor(data);
  absl::Status status = CompareReplicas(
      what, local, mesh, Layout::Replicated(mesh.layout(), local.ndim()),
      local.sizes());
  if (data.is_distributed()) {
    status.Update(CompareReplicas(what, local, MeshOf(data), LayoutOf(data),
                                  data.sizes()));
  }
  return status;
}

}  // namespace

absl::Status CheckBuffers(Module& module, const DeviceMesh& mesh) {
  const std::vector<NamedBuffer> buffers = module.NamedBuffers();
  if (buffers.empty()) return absl::OkStatus();
  CH_RETURN_IF_ERROR(CompareMemory(buffers, mesh));
  absl::Status status;
  for (const auto& [name, buffer] : buffers) {
    if (buffer->has_memory()) status.Update(CompareValues(*buffer, mesh));
  }
  return status;
}

}  // namespace crosshatch::nn
