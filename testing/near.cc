// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/near.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "crosshatch/testing/expect.h"

namespace crosshatch {

void ExpectNear(const Values& got, const Values& expected, double roundings) {
  CH_EXPECT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    CH_EXPECT_EQ(got[i].size(), expected[i].size()) << "tensor " << i;
    if (got[i].size() != expected[i].size()) continue;
    double largest = 0;
    for (const float v : expected[i]) {
      largest = std::max(largest, std::abs(double{v}));
    }
    for (size_t k = 0; k < got[i].size(); ++k) {
      CH_EXPECT_NEAR(got[i][k], expected[i][k], roundings * 0x1p-24 * largest)
          << "element " << k << " of tensor " << i;
    }
  }
}

}  // namespace crosshatch
