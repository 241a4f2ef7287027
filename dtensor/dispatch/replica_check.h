// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_REPLICA_CHECK_H_
#define CROSSHATCH_DTENSOR_DISPATCH_REPLICA_CHECK_H_

/// \file
/// Whether ranks hold the same bits where they should.

#include <string>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Whether the program compares replicas by itself, wherever it takes ranks to
/// hold the same: CROSSHATCH_DEBUG=replicas in the environment. Every such
/// place then waits for the ranks and for the stream. Checks that the variable
/// has no other value.
bool ComparesReplicas();

/// Whether several ranks of its mesh hold the same elements by `layout`.
bool HasReplicas(const Layout& layout);

/// OK if all ranks that replicate each other's part by `layout` hold the same
/// bits as `local`. Every rank of the mesh calls it.
/// \param what of whom `local` is, for messages
/// \param sizes global
/// \error kFailedPrecondition naming two ranks that differ; what the engine
///     says.
absl::Status CompareReplicas(const std::string& what, const Tensor& local,
                             const DeviceMesh& mesh, const Layout& layout,
                             ShapeView sizes);

/// CompareReplicas, whose error poisons the rank, of what the program says that
/// ranks hold alike: everywhere where ComparesReplicas. Else integers (ids,
/// targets, positions, masks) alone, each time that `what` first takes such a
/// tensor, of that layout, in the module that runs: these come from a program's
/// own reading of its data, and no later check finds that they differ. In a
/// module they wait for CompareTakenInputs, so that all that a forward takes is
/// one exchange; a backward takes what its forward took. Every rank of the mesh
/// calls it.
void CompareReplicasOfInput(const char* what, const Tensor& local,
                            const DeviceMesh& mesh, const Layout& layout,
                            ShapeView sizes);

/// The same of any tensor, floating-point ones too, and of each that it is
/// given: for what follows from ids that no op on `mesh` takes, once.
void CompareReplicasOnce(const char* what, const Tensor& local,
                         const DeviceMesh& mesh, const Layout& layout,
                         ShapeView sizes);

/// Compares what waits, by one exchange for each mesh. Module::Call does it at
/// the end of the outermost forward. Every rank calls it alike.
void CompareTakenInputs();

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_REPLICA_CHECK_H_
