// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "crosshatch/base/process_scopes_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(KeptVariableTest, HasItsValueAgainOrNone) {
  constexpr char kName[] = "CROSSHATCH_KEPT_VARIABLE";
  {
    const KeptVariable unset(kName);
    setenv(kName, "first", /*replace=*/1);
    {
      const KeptVariable first(kName);
      setenv(kName, "second", /*replace=*/1);
    }
    EXPECT_STREQ(std::getenv(kName), "first");
    {
      const KeptVariable first(kName);
      unsetenv(kName);
    }
    EXPECT_STREQ(std::getenv(kName), "first");
  }
  EXPECT_EQ(std::getenv(kName), nullptr);
}

}  // namespace
}  // namespace crosshatch
