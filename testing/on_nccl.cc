// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/nccl/run_nccl_testutil.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// So low that tests of small models use NCCL's own collectives as well as sends
// and receives.
constexpr int64_t kLeastCollectiveBytes = 256;

absl::Status RunByNccl(int ranks, absl::FunctionRef<absl::Status(World&)> body,
                       const JobOptions& options) {
  return RunNccl(ranks, body,
                 {.nccl = {.least_collective_bytes = kLeastCollectiveBytes},
                  .job = options});
}

class OnNccl final : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* const device = std::getenv("CROSSHATCH_TEST_DEVICE");
    if (device == nullptr || std::string(device) != "nccl") return;
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    SetRunnerOfRanks(RunByNccl);
  }
};

[[maybe_unused]] const auto* const kOnNccl =
    ::testing::AddGlobalTestEnvironment(new OnNccl);

}  // namespace
}  // namespace crosshatch
