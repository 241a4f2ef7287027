// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OPS_LAYOUT_BY_H_
#define CROSSHATCH_DTENSOR_OPS_LAYOUT_BY_H_

#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {

/// The layout that `what`, a function's name, is given as a list of placements
/// for a tensor of `ndim` dims. Checks that Layout::FromPlacements takes it.
Layout LayoutBy(const char* what, absl::Span<const Placement> placements,
                const DeviceMesh& mesh, int ndim);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_OPS_LAYOUT_BY_H_
