// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/reference/reference_backend.h"
#include "crosshatch/tests/devices/on_device_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

[[maybe_unused]] const auto* const kOnReferenceDevice =
    ::testing::AddGlobalTestEnvironment(new OnDevice(ReferenceBackend));

}  // namespace
}  // namespace crosshatch
