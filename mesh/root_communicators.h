// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_ROOT_COMMUNICATORS_H_
#define CROSSHATCH_MESH_ROOT_COMMUNICATORS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/communicator.h"

namespace crosshatch {

/// Returns the communicators of the root meshes that include this rank, for
/// work on the current stream. Root meshes come from InitDeviceMesh and
/// DeviceMeshFromCommunicators and count while one of their meshes exists. The
/// order is that of creation, with one communicator per set of ranks. All ranks
/// of these meshes must call it. The World owns the communicators.
/// \error As DeviceMesh::communicator.
absl::StatusOr<std::vector<Communicator*>> RootCommunicators();

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_ROOT_COMMUNICATORS_H_
