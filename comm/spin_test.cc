// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/spin.h"

#include <chrono>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

struct Yielding {
  static std::chrono::nanoseconds Yield() {
    ++yields;
    return time;
  }
  static inline int yields = 0;
  static inline std::chrono::nanoseconds time{1000};
};

TEST(SpinTest, YieldsUntilAYieldTakesLong) {
  BasicSpin<Yielding> spin;
  const auto yields = [&spin] {
    Yielding::yields = 0;
    EXPECT_FALSE(spin.Until(2, [] { return false; }));
    return Yielding::yields;
  };
  const int often = yields();
  EXPECT_GT(often, 1);
  Yielding::time = std::chrono::milliseconds(3);
  EXPECT_EQ(yields(), 1);
  for (int call = 0; call < 1000; ++call) ASSERT_EQ(yields(), 0);
  Yielding::time = std::chrono::microseconds(1);
  EXPECT_EQ(yields(), often);
}

TEST(SpinTest, EndsAtTheFirstSuccess) {
  BasicSpin<Yielding> spin;
  for (const int success : {1, 2, 3}) {
    int calls = 0;
    Yielding::yields = 0;
    EXPECT_TRUE(spin.Until(2, [&] { return ++calls == success; }));
    EXPECT_EQ(calls, success);
    EXPECT_EQ(Yielding::yields, success > 2 ? 1 : 0);
  }
}

}  // namespace
}  // namespace crosshatch::internal
