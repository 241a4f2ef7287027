// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_CHECK_BUFFERS_H_
#define CROSSHATCH_NN_CHECK_BUFFERS_H_

#include "absl/status/status.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// OK if all ranks of `mesh`, which all call it, have memory for the same
/// buffers of `module` and below, and hold the same bits in them. Waits for the
/// current stream and for the ranks; in a dry run OK. FullyShard does it at the
/// first forward, and with CROSSHATCH_DEBUG=replicas at each.
/// \error kFailedPrecondition naming the first buffer and two ranks that
///     differ; what the engine says.
absl::Status CheckBuffers(Module& module, const DeviceMesh& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_CHECK_BUFFERS_H_
