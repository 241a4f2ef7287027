// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/ops/layout_by.h"

#include <utility>

#include "absl/status/statusor.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

Layout LayoutBy(const char* what, absl::Span<const Placement> placements,
                const DeviceMesh& mesh, int ndim) {
  absl::StatusOr<Layout> layout =
      Layout::FromPlacements(mesh.layout(), ndim, placements);
  CH_CHECK_OK(layout.status())
      << " in " << what << " by placements " << ToString(placements) << " on "
      << mesh.ToString();
  return *std::move(layout);
}

}  // namespace crosshatch
