// SPDX-License-Identifier: Apache-2.0
// Selects the emulated NCCL in nccl_api.cuh.
#define CROSSHATCH_CUDA_EMULATION 1
#include "crosshatch/comm/nccl/nccl_comm.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using ::testing::HasSubstr;

// Peers of a call that was not issued would wait for it.
TEST(NcclCommTest, AbortsAfterACallThatFails) {
  ncclUniqueId id = {};
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  absl::StatusOr<std::unique_ptr<NcclComm>> comm =
      NcclComm::Create(std::string(id.internal, sizeof(id.internal)),
                       /*size=*/1, /*rank=*/0, "group 'one'", absl::Minutes(1));
  ASSERT_TRUE(comm.ok()) << comm.status();
  const int64_t open = emulation::CountsOfNccl().open;
  EXPECT_TRUE((*comm)->Group([](ncclComm_t) { return ncclSuccess; }).ok());
  EXPECT_EQ(emulation::CountsOfNccl().open, open);
  const absl::Status failed =
      (*comm)->Group([](ncclComm_t) { return ncclInvalidArgument; });
  EXPECT_THAT(std::string(failed.message()),
              HasSubstr("NCCL in group 'one': invalid argument"));
  EXPECT_EQ(emulation::CountsOfNccl().open, open - 1);
  const absl::Status after =
      (*comm)->Group([](ncclComm_t) { return ncclSuccess; });
  EXPECT_EQ(after.code(), absl::StatusCode::kAborted) << after;
}

}  // namespace
}  // namespace crosshatch::internal
