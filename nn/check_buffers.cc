// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/check_buffers.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/mesh/rank_difference.h"

namespace crosshatch::nn {

namespace {

// Which buffers there are with memory: what follows asks ranks about these.
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

// Of both meshes, whatever the first says: the ranks of the other one wait for
// this one.
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
