// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rows_of.h"

#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {

Interval RowsOf(const DeviceMesh& data, int64_t rows) {
  CH_CHECK(rows >= 0) << "RowsOf: a batch of " << rows << " rows";
  CH_CHECK(data.coordinate().has_value())
      << "RowsOf: rank " << data.world().world_rank() << " is not on "
      << data.ToString() << " and reads no rows of its batch";
  Layout layout = Layout::Replicated(data.layout(), 1);
  for (int axis = 0; axis < data.ndim(); ++axis) {
    layout = layout.WithShard(axis, 0);
  }
  return layout.DimInterval(0, rows, *data.coordinate());
}

}  // namespace crosshatch
