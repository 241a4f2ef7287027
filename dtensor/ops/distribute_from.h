// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OPS_DISTRIBUTE_FROM_H_
#define CROSSHATCH_DTENSOR_OPS_DISTRIBUTE_FROM_H_

/// \file
/// Spreads what one rank has over all.

#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// The tensor that `source_rank` (a world rank on the mesh) has as `full`,
/// spread as `layout` says: where only one rank has read a file, or ranks may
/// have computed different values. DistributeTensor takes each rank's own
/// `full` and communicates nothing.
///
/// Called by every rank of the mesh with a `full` of the same sizes and dtype;
/// that of the other ranks is not read and needs no memory. The source's is
/// sent from where it lies, to each rank just its part: one collective on the
/// current stream, a broadcast for a replicated layout. A pending reduction is
/// made of the values locally, as by Redistribute.
///
/// Outside of the graph, as DistributeTensor. An error of communication, or
/// sizes that differ, poison the ranks.
Tensor DistributeTensorFrom(int source_rank, const Tensor& full,
                            const DeviceMesh& mesh, const Layout& layout);
Tensor DistributeTensorFrom(int source_rank, const Tensor& full,
                            const DeviceMesh& mesh,
                            absl::Span<const Placement> placements);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_OPS_DISTRIBUTE_FROM_H_
