// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_DEVICES_ON_DEVICE_TESTUTIL_H_
#define CROSSHATCH_TESTS_DEVICES_ON_DEVICE_TESTUTIL_H_

#include <optional>

#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch {

/// Gives the test's thread a context on a device while the tests run.
class OnDevice : public ::testing::Environment {
 public:
  /// \param backend called when the tests begin; its result outlives them
  explicit OnDevice(const DeviceBackend& (*backend)()) : backend_(backend) {}

  void SetUp() override {
    context_.emplace(RankContextOptions{.backend = &backend_()});
    scope_.emplace(&*context_);
  }
  void TearDown() override {
    scope_.reset();
    context_.reset();
  }

 private:
  const DeviceBackend& (*const backend_)();
  std::optional<RankContext> context_;
  std::optional<RankContextScope> scope_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_DEVICES_ON_DEVICE_TESTUTIL_H_
