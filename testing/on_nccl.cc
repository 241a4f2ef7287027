// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/nccl/run_nccl_testutil.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

// Low, so that tests of small models use NCCL's collectives as well as sends
// and receives.
constexpr int64_t kLeastCollectiveBytes = 256;

absl::Status RunByNccl(int ranks, absl::FunctionRef<absl::Status(World&)> body,
                       const JobOptions& options) {
  return RunNccl(ranks, body,
                 {.nccl = {.least_collective_bytes = kLeastCollectiveBytes},
                  .job = options});
}

[[maybe_unused]] const bool registered = [] {
  // Ranks may share devices, which NCCL allows from 2.30 on. The CUDA runtime
  // reads its variables in its first call.
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/1);
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/1);
  return RegisterRunner(TestEngine::kNccl, Device::Kind::kCuda, RunByNccl);
}();

}  // namespace
}  // namespace crosshatch
