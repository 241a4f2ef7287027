// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "crosshatch/tensor/backends/reference/reference_backend.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// Gives the thread of the tests a context on the device.
class OnReferenceDevice final : public ::testing::Environment {
 public:
  void SetUp() override {
    context_.emplace(RankContextOptions{.backend = &ReferenceBackend()});
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

[[maybe_unused]] const auto* const kOnReferenceDevice =
    ::testing::AddGlobalTestEnvironment(new OnReferenceDevice);

}  // namespace
}  // namespace crosshatch
