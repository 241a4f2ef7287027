// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_ROOT_COMMUNICATORS_H_
#define CROSSHATCH_MESH_ROOT_COMMUNICATORS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/communicator.h"

namespace crosshatch {

/// Returns the communicators of the root meshes in use that this rank is on,
/// for work on the current stream: those from InitDeviceMesh and
/// DeviceMeshFromCommunicators of which a mesh is left, in the order of their
/// making, one for each set of ranks. Called by all ranks of these meshes; the
/// World owns the communicators. Empty for a rank that is on no mesh.
/// \error as DeviceMesh::communicator
absl::StatusOr<std::vector<Communicator*>> RootCommunicators();

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_ROOT_COMMUNICATORS_H_
