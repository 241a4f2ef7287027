// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/new_directory.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

class NewDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  std::string Path(const std::string& name) const { return root_ + "/" + name; }

  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const std::string root_ = ::testing::TempDir() + "new_directory_test";
};

TEST_F(NewDirectoryTest, AppearsWhenCommitted) {
  // Parents are made, and a slash at the end changes nothing.
  auto directory = NewDirectory::Create(Path("a/b/model/"), false);
  ASSERT_TRUE(directory.ok()) << directory.status();
  Write((*directory)->partial_path() + "/config.json", "{}");
  EXPECT_FALSE(fs::exists(Path("a/b/model")));
  ASSERT_TRUE((*directory)->Commit().ok());
  directory->reset();
  EXPECT_EQ(Read(Path("a/b/model/config.json")), "{}");
  EXPECT_FALSE(fs::exists(Path("a/b/model.partial")));
}

TEST_F(NewDirectoryTest, LeavesNothingWhenAbandoned) {
  {
    auto directory = NewDirectory::Create(Path("model"), false);
    ASSERT_TRUE(directory.ok());
    Write((*directory)->partial_path() + "/config.json", "{}");
  }
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(NewDirectoryTest, TakesThePlaceOfAnEmptyDirectory) {
  fs::create_directory(Path("model"));
  auto directory = NewDirectory::Create(Path("model"), false);
  ASSERT_TRUE(directory.ok());
  Write((*directory)->partial_path() + "/config.json", "{}");
  ASSERT_TRUE((*directory)->Commit().ok());
  directory->reset();
  EXPECT_TRUE(fs::exists(Path("model/config.json")));
  EXPECT_FALSE(fs::exists(Path("model.partial")));
}

TEST_F(NewDirectoryTest, RefusesWhatIsThere) {
  fs::create_directory(Path("model"));
  Write(Path("model/notes"), "keep");
  const absl::Status status =
      NewDirectory::Create(Path("model"), false).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("model")));
  EXPECT_TRUE(absl::IsAlreadyExists(CheckMayWrite(Path("model"), false)));
  EXPECT_TRUE(CheckMayWrite(Path("model"), true).ok());
  EXPECT_TRUE(CheckMayWrite(Path("new"), false).ok());

  Write(Path("file"), "");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMayWrite(Path("file"), true)));
  // A file where a directory would be needed, near and far above.
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMayWrite(Path("file/a"), false)));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMayWrite(Path("file/a/b"), false)));
  EXPECT_TRUE(CheckMayWrite(Path("new/a/b"), false).ok());
  // Where even root may make nothing.
  EXPECT_FALSE(CheckMayWrite("/proc/self/model", false).ok());
  EXPECT_FALSE(NewDirectory::Create(Path("file/model"), true).ok());
  EXPECT_FALSE(NewDirectory::Create("", true).ok());
  EXPECT_EQ(Read(Path("model/notes")), "keep");
}

TEST_F(NewDirectoryTest, ReplacesTheModelAndKeepsTheRest) {
  fs::create_directories(Path("model/tokenizer"));
  Write(Path("model/notes"), "keep");
  Write(Path("model/config.json"), "old");
  Write(Path("model/model-00001-of-00002.safetensors"), "old");
  Write(Path("model/model.safetensors.index.json"), "old");
  {
    auto abandoned = NewDirectory::Create(Path("model"), true);
    ASSERT_TRUE(abandoned.ok());
  }
  EXPECT_EQ(Read(Path("model/config.json")), "old");

  auto directory = NewDirectory::Create(Path("model"), true);
  ASSERT_TRUE(directory.ok());
  Write((*directory)->partial_path() + "/config.json", "new");
  ASSERT_TRUE((*directory)->Commit().ok());
  directory->reset();
  EXPECT_EQ(Read(Path("model/config.json")), "new");
  EXPECT_EQ(Read(Path("model/notes")), "keep");
  EXPECT_TRUE(fs::is_directory(Path("model/tokenizer")));
  EXPECT_FALSE(fs::exists(Path("model/model-00001-of-00002.safetensors")));
  EXPECT_FALSE(fs::exists(Path("model/model.safetensors.index.json")));
  EXPECT_FALSE(fs::exists(Path("model.partial")));
}

}  // namespace
}  // namespace crosshatch::checkpoint
