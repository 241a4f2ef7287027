// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_REPLICA_CHECK_H_
#define CROSSHATCH_DTENSOR_DISPATCH_REPLICA_CHECK_H_

/// \file
/// Checks that ranks hold the same bits where they should.

#include <string>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns whether replicas are compared wherever ranks are assumed to hold the
/// same values: if the environment has CROSSHATCH_DEBUG=replicas. Every
/// comparison waits for the ranks and for the stream. Checks that the variable
/// has no other value.
bool ComparesReplicas();

/// Returns whether several ranks of its mesh hold the same elements by
/// `layout`.
bool HasReplicas(const Layout& layout);

/// Returns OK if all ranks that replicate each other's part by `layout` hold
/// the same bits as `local`. Every rank of the mesh calls it.
/// \param what names `local` and its owner in messages.
/// \param sizes the global sizes.
/// \error kFailedPrecondition naming two ranks that differ; an error of the
///     engine.
absl::Status CompareReplicas(const std::string& what, const Tensor& local,
                             const DeviceMesh& mesh, const Layout& layout,
                             ShapeView sizes);

/// Calls CompareReplicas, whose error poisons the rank, for values that the
/// program states to be equal on all ranks. If ComparesReplicas, it compares
/// all of them. Otherwise it compares integers only (ids, targets, positions,
/// masks), the first time that `what` takes such a tensor, of that layout, in
/// the running module: they come from the program's own reading of data, and no
/// later check finds a difference. Shapes are compared, too. Within a module,
/// the first on a mesh is compared at once, and the others wait for
/// CompareTakenInputs, which needs one exchange. A backward takes what its
/// forward took. Every rank of the mesh calls it.
void CompareReplicasOfInput(const char* what, const Tensor& local,
                            const DeviceMesh& mesh, const Layout& layout,
                            ShapeView sizes);

/// Does the same once for a tensor of any dtype, and for each tensor that it is
/// called with: for values that follow from ids but enter no op on `mesh`.
void CompareReplicasOnce(const char* what, const Tensor& local,
                         const DeviceMesh& mesh, const Layout& layout,
                         ShapeView sizes);

/// Compares waiting inputs, by one exchange for each mesh. Module::Call
/// calls it at the end of the outermost forward. Every rank calls it alike.
void CompareTakenInputs();

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_REPLICA_CHECK_H_
