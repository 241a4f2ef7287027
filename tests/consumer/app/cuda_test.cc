// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "app/swish.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/launch/run.h"
#include "crosshatch/launch/run_options.h"
#include "crosshatch/tensor/creation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace consumer {
namespace {

namespace ch = crosshatch;
using ::testing::HasSubstr;

// Runs a computation on a CUDA device.
// \returns the error, or "".
std::string ErrorOfCudaRun() {
  ch::RunOptions options;
  options.engine = ch::EngineKind::kLocal;
  options.device = ch::Device::Kind::kCuda;
  testing::internal::CaptureStderr();
  const int status = ch::Run(
      [](ch::World&) {
        EXPECT_EQ(ch::Ones({3}).ToVector<float>()[2], 1.0f);
#ifdef CONSUMER_WITH_CUDA
        // Three operations, each with a float's rounding.
        EXPECT_NEAR(Swish(ch::Ones({300}), 2).ToVector<float>()[299],
                    1 / (1 + std::exp(-2.0)), 0x1p-22);
#endif
        return absl::OkStatus();
      },
      options);
  const std::string error = testing::internal::GetCapturedStderr();
  return status == 0 ? "" : error;
}

TEST(CudaTest, IsInTheBuildIfItWasAskedFor) {
  const std::string error = ErrorOfCudaRun();
#ifdef CONSUMER_WITH_CUDA
  if (!error.empty()) {
    EXPECT_THAT(error, HasSubstr("no CUDA device"));
  }
#else
  EXPECT_THAT(error, HasSubstr("this build has no code for CUDA"));
#endif
}

}  // namespace
}  // namespace consumer
