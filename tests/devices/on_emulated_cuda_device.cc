// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// Gives the thread of the tests a context on the device.
class OnEmulatedCudaDevice final : public ::testing::Environment {
 public:
  void SetUp() override {
    // A process that was forked has no threads that its streams could use.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    context_.emplace(RankContextOptions{.backend = *CudaBackend(0)});
    scope_.emplace(&*context_);
  }
  void TearDown() override {
    scope_.reset();
    context_.reset();
  }

 private:
  std::optional<RankContext> context_;
  std::optional<RankContextScope> scope_;
};

[[maybe_unused]] const auto* const kOnEmulatedCudaDevice =
    ::testing::AddGlobalTestEnvironment(new OnEmulatedCudaDevice);

}  // namespace
}  // namespace crosshatch
