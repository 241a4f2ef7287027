// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_ROWS_OF_H_
#define CROSSHATCH_DTENSOR_ROWS_OF_H_

/// \file
/// RowsOf: the rows of the global batch that a rank reads.

#include <cstdint>

#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {

/// Returns the rows of a global batch of `rows` rows that this rank reads. The
/// batch is split over all ranks of `data`, the data-parallel slice of the
/// job's mesh:
///
///     CH_ASSIGN_OR_RETURN(DeviceMesh data, mesh.Slice("fsdp"));
///     const Interval mine = RowsOf(data, 10);  // [0, 5) or [5, 10) of 2 ranks
///
/// Rows are split as by Shard(0): in the order of the mesh, as evenly as
/// possible. A rank may have none. Ranks along axes that `data` leaves out,
/// such as tp, read the same rows. Communicates nothing.
/// \checks rows >= 0 and that this rank is on `data`.
Interval RowsOf(const DeviceMesh& data, int64_t rows);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_ROWS_OF_H_
