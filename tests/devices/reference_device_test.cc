// SPDX-License-Identifier: Apache-2.0

/// \file
/// Trainings on the reference device. The tests of the ops are linked to the
/// same binary.

#include <string>

#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/backends/reference/reference_backend.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tests/devices/loader_testutil.h"
#include "crosshatch/tests/devices/training_testutil.h"
#include "crosshatch/tests/llama_case_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

TEST(ReferenceDeviceTest, IsWhatTheTestsOfThisBinaryRunOn) {
  EXPECT_EQ(&RankContext::Current().backend(), &ReferenceBackend());
  EXPECT_EQ(Zeros({1}).device(), Device::Reference());
}

TEST(ReferenceDeviceTest, TrainsInMemoryThatTheHostCannotAddress) {
  ExpectTrainsAsOnTheCpu(ReferenceBackend());
}

TEST(ReferenceDeviceTest, TrainsOnAMesh) {
  for (const std::string mesh : {"fsdp:1", "fsdp:2,tp:2"}) {
    SCOPED_TRACE(mesh);
    ExpectTrainsAsTheReferenceDoes("tied", mesh,
                                   {.backend = &SharedReferenceBackend()});
  }
}

TEST(ReferenceDeviceTest, RanksThatAreThreadsWantMemoryThatTheyCanRead) {
  const absl::Status status =
      StatusOfRanks(2, [](World&) { return absl::OkStatus(); },
                    {.backend = &ReferenceBackend()});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the host cannot address the memory of reference"));
}

TEST(ReferenceDeviceDeathTest, TakesWhatALoaderMadeByACopy) {
  ExpectTakesWhatALoaderMade();
}

TEST(ReferenceDeviceDeathTest, NamesThePlaceOfAnIdOutOfRange) {
  ExpectNamesThePlaceOfAnIdOutOfRange();
}

// A dry run is of the device: with its kernels' workspaces, of which the
// reference has none.
TEST(ReferenceDeviceTest, ADryRunTakesTheMemoryOfARun) {
  const auto peak = [](bool dry_run) {
    RankContext context({.backend = &ReferenceBackend(), .dry_run = dry_run});
    const RankContextScope scope(&context);
    const Tensor x = Zeros({4, 6}, kBFloat16);
    MatMul(x, Transpose(x, 0, 1));
    return context.allocator().stats().peak_total;
  };
  EXPECT_EQ(peak(true), peak(false));
  // The operand and the product, no workspace: the CPU takes one.
  EXPECT_EQ(peak(false), (4 * 6 + 4 * 4) * 2);
}

}  // namespace
}  // namespace crosshatch
