// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_DATA_PLANE_TESTUTIL_H_
#define CROSSHATCH_COMM_DATA_PLANE_TESTUTIL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/conformance_testutil.h"
#include "crosshatch/comm/data_plane.h"

namespace crosshatch {

/// Returns an engine for the conformance suite with the control plane of
/// processes, a thread of this process for each, and the given data plane.
/// \param make returns the planes of each rank of one job
/// \param world_sizes numbers of ranks to test
ConformanceEngine EngineOfPlanes(
    std::string name,
    std::function<std::vector<std::unique_ptr<DataPlanes>>(int ranks)> make,
    std::vector<int> world_sizes);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_DATA_PLANE_TESTUTIL_H_
