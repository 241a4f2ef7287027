// SPDX-License-Identifier: Apache-2.0

#include <optional>

#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// Gives the test's thread a context on the device while the tests run.
class OnCudaDevice final : public ::testing::Environment {
 public:
  void SetUp() override {
    // A forked process has no threads for its streams.
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

[[maybe_unused]] const auto* const kOnCudaDevice =
    ::testing::AddGlobalTestEnvironment(new OnCudaDevice);

}  // namespace
}  // namespace crosshatch
