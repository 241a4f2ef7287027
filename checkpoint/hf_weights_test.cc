// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/checkpoint/weights_testutil.h"
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
    std::vector<float> values(tensors.size());
    std::iota(values.begin(), values.end(), 0.0f);
    std::vector<std::pair<TensorInfo, const void*>> all;
    for (size_t i = 0; i < tensors.size(); ++i) {
      all.push_back({{tensors[i], kFloat32, {1}}, &values[i]});
    }
    WriteSafetensors(dir_ + "/" + name, all);
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
  EXPECT_EQ(ValuesOf(tensors->at("c")), std::vector<float>{1});
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
