// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_MESH_COMMUNICATOR_H_
#define CROSSHATCH_MESH_MESH_COMMUNICATOR_H_

#include "absl/status/statusor.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {

/// Returns the communicator of all ranks of `mesh`, in the order of
/// mesh.layout().ranks(), for work on the current stream. All of them must call
/// it. The mesh's World owns it.
/// \error As DeviceMesh::communicator.
absl::StatusOr<Communicator*> MeshCommunicator(const DeviceMesh& mesh);

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_MESH_COMMUNICATOR_H_
