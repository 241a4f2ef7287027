// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/weights_testutil.h"

#include <cstddef>
#include <utility>
#include <vector>

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
  const auto writer = SafetensorsWriter::Create(path, infos);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [info, data] : tensors) {
    ASSERT_TRUE((*writer)->Write(info.name, data, info.bytes()).ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
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
