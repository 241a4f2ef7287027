// SPDX-License-Identifier: Apache-2.0

// Every op and every method of Tensor reports an undefined tensor instead of
// dereferencing a null pointer.

#include <string>
#include <vector>

#include "crosshatch/tensor/ops/entry_points_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(UndefinedInputsDeathTest, AreNamedByEveryEntryPoint) {
  const std::vector<EntryPoint> all = EntryPoints();
  // Fails if the generator misses entry points.
  EXPECT_GT(all.size(), 120u);
  for (const EntryPoint& entry : all) {
    SCOPED_TRACE(entry.call);
    EXPECT_DEATH(entry.run(), "check failed: .*undefined");
  }
}

}  // namespace
}  // namespace crosshatch
