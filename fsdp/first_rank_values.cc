// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/first_rank_values.h"

#include <algorithm>
#include <cstdint>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/storage.h"

namespace crosshatch::fsdp {

absl::Status BroadcastFromFirstRank(const DeviceMesh& mesh, const Tensor& local,
                                    const std::string& label) {
  Stream& stream = RankContext::Current().current_stream();
  // After the last axis, the first rank of each line along the others has the
  // values.
  for (int axis = mesh.ndim() - 1; axis >= 0; --axis) {
    CH_ASSIGN_OR_RETURN(Communicator * comm,
                        mesh.communicator(axis, stream.name()));
    CH_RETURN_IF_ERROR(Broadcast(*comm, local.raw_data(), local.numel(),
                                 local.dtype(), 0, stream, label));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> HasValuesOnFirstRank(
    const DeviceMesh& mesh, const std::vector<Tensor>& tensors,
    const std::string& label) {
  std::vector<int64_t> flags;
  for (const Tensor& tensor : tensors) {
    flags.push_back(tensor.storage()->attached() ? 1 : 0);
  }
  RankContext& context = RankContext::Current();
  const Shape sizes = {static_cast<int64_t>(flags.size())};
  if (context.device().is_meta()) {
    CH_RETURN_IF_ERROR(
        BroadcastFromFirstRank(mesh, Empty(sizes, kInt64), label));
    const MeshCoordinate& here = *mesh.coordinate();
    const bool is_first =
        std::all_of(here.begin(), here.end(), [](int i) { return i == 0; });
    if (!is_first) flags.assign(flags.size(), 1);
    return std::vector<bool>(flags.begin(), flags.end());
  }
  const Tensor shared = FromValues<int64_t>(sizes, flags);
  CH_RETURN_IF_ERROR(BroadcastFromFirstRank(mesh, shared, label));
  flags = shared.ToVector<int64_t>();
  CH_RETURN_IF_ERROR(context.status());
  return std::vector<bool>(flags.begin(), flags.end());
}

}  // namespace crosshatch::fsdp
