// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/weights_testutil.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "crosshatch/checkpoint/file_system_testutil.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {

std::vector<float> ValuesOf(const StoredTensor& stored) {
  const TensorInfo& info = stored.info();
  std::vector<float> values(static_cast<size_t>(NumElements(info.sizes)));
  EXPECT_TRUE(
      stored.file
          ->Read(stored.index, WholeBox(info.sizes), kFloat32, values.data())
          .ok());
  return values;
}

void WriteSafetensors(
    const std::string& path,
    const std::vector<std::pair<TensorInfo, const void*>>& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [info, data] : tensors) infos.push_back(info);
  absl::StatusOr<std::string> bytes = SafetensorsStart(path, infos);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  for (const auto& [info, data] : tensors) {
    if (info.bytes() == 0) continue;
    bytes->append(static_cast<const char*>(data),
                  static_cast<size_t>(info.bytes()));
  }
  WriteBytes(path, *bytes);
}

void ExpectSameWeights(const std::string& a, const std::string& b) {
  const auto x = OpenWeights(a);
  const auto y = OpenWeights(b);
  ASSERT_TRUE(x.ok()) << x.status();
  ASSERT_TRUE(y.ok()) << y.status();
  ASSERT_EQ(x->size(), y->size());
  for (const auto& [name, stored] : *x) {
    ASSERT_EQ(y->count(name), 1u) << name;
    EXPECT_EQ(stored.info().sizes, y->at(name).info().sizes) << name;
    EXPECT_EQ(ValuesOf(stored), ValuesOf(y->at(name))) << name;
  }
}

}  // namespace crosshatch::checkpoint
