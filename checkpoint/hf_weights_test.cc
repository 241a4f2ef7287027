// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/hf_weights.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::HasSubstr;

class HfWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }

  /// Writes a file of one-element tensors with the values 0, 1, ...
  void WriteFile(const std::string& name,
                 const std::vector<std::string>& tensors) {
    std::vector<TensorInfo> infos;
    for (const std::string& tensor : tensors) {
      infos.push_back({tensor, kFloat32, {1}});
    }
    auto writer = SafetensorsWriter::Create(dir_ + "/" + name, infos, {});
    ASSERT_TRUE(writer.ok());
    float value = 0;
    for (const std::string& tensor : tensors) {
      ASSERT_TRUE((*writer)->Write(tensor, &value).ok());
      ++value;
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  void WriteIndex(const std::string& text) {
    std::ofstream(dir_ + "/model.safetensors.index.json") << text;
  }

  std::string Error() { return OpenWeights(dir_).status().ToString(); }

  const std::string dir_ = ::testing::TempDir() + "hf_weights_test";
};

TEST_F(HfWeightsTest, ReadsOneFile) {
  WriteFile("model.safetensors", {"a", "b"});
  const auto tensors = OpenWeights(dir_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->size(), 2u);
  EXPECT_EQ(tensors->at("b").info().name, "b");
}

TEST_F(HfWeightsTest, ReadsFilesByIndex) {
  WriteFile("x-1.safetensors", {"a", "c"});
  WriteFile("x-2.safetensors", {"b"});
  WriteIndex(R"({"metadata": {}, "weight_map": {"a": "x-1.safetensors",
      "b": "x-2.safetensors", "c": "x-1.safetensors"}})");
  const auto tensors = OpenWeights(dir_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->size(), 3u);
  EXPECT_EQ(tensors->at("a").file, tensors->at("c").file);
  const StoredTensor& c = tensors->at("c");
  float value = -1;
  EXPECT_TRUE(c.file->Read(c.index, WholeBox({1}), kFloat32, &value).ok());
  EXPECT_EQ(value, 1);
}

TEST_F(HfWeightsTest, ReportsEachMistake) {
  EXPECT_THAT(Error(), HasSubstr("holds neither model.safetensors nor"));
  WriteIndex("{");
  EXPECT_THAT(Error(), HasSubstr("index.json is not JSON"));
  WriteIndex(R"({"weight_map": 3})");
  EXPECT_THAT(Error(), HasSubstr("no weight_map"));
  WriteIndex(R"({"weight_map": {"a": "../x.safetensors"}})");
  EXPECT_THAT(Error(), HasSubstr("\"a\" is not a file name"));
  WriteIndex(R"({"weight_map": {"a": "x.safetensors"}})");
  EXPECT_THAT(Error(), HasSubstr("x.safetensors"));
  EXPECT_TRUE(absl::IsNotFound(OpenWeights(dir_).status()));
  WriteFile("x.safetensors", {"b"});
  EXPECT_THAT(Error(),
              HasSubstr("x.safetensors does not contain tensor \"a\""));
  WriteFile("x.safetensors", {"a", "b"});
  EXPECT_THAT(Error(), HasSubstr("x.safetensors holds tensor \"b\""));
  std::ofstream(dir_ + "/model.safetensors") << "short";
  EXPECT_THAT(Error(), HasSubstr("model.safetensors is not a valid"));
}

}  // namespace
}  // namespace crosshatch::checkpoint
