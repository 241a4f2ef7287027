// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/weights_testutil.h"

#include <cstddef>
#include <vector>

#include "crosshatch/checkpoint/hf_weights.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

std::vector<float> ReadAll(const StoredTensor& stored) {
  const TensorInfo& info = stored.info();
  std::vector<float> values(static_cast<size_t>(NumElements(info.sizes)));
  EXPECT_TRUE(
      stored.file
          ->Read(stored.index, WholeBox(info.sizes), kFloat32, values.data())
          .ok());
  return values;
}

}  // namespace

void ExpectSameWeights(const std::string& a, const std::string& b) {
  const auto x = OpenWeights(a);
  const auto y = OpenWeights(b);
  ASSERT_TRUE(x.ok()) << x.status();
  ASSERT_TRUE(y.ok()) << y.status();
  ASSERT_EQ(x->size(), y->size());
  for (const auto& [name, stored] : *x) {
    ASSERT_EQ(y->count(name), 1u) << name;
    EXPECT_EQ(stored.info().sizes, y->at(name).info().sizes) << name;
    EXPECT_EQ(ReadAll(stored), ReadAll(y->at(name))) << name;
  }
}

}  // namespace crosshatch::checkpoint
