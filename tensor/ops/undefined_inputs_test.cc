// SPDX-License-Identifier: Apache-2.0

// Every op and every method of Tensor says so when it is given an undefined
// tensor, where a null pointer would end the process without a word.

#include <string>
#include <vector>

#include "crosshatch/tensor/ops/entry_points_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(UndefinedInputsDeathTest, AreNamedByEveryEntryPoint) {
  const std::vector<EntryPoint> all = EntryPoints();
  // What the generator no longer reads is missed here.
  EXPECT_GT(all.size(), 120u);
  for (const EntryPoint& entry : all) {
    SCOPED_TRACE(entry.call);
    EXPECT_DEATH(entry.run(), "check failed: .*undefined");
  }
}

}  // namespace
}  // namespace crosshatch
