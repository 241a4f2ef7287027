// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/file_io.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using Files = std::vector<std::unique_ptr<const ReadableFile>>;

constexpr size_t kFiles = 4 * kMaxOpenFiles;

/// Opens kFiles files, each of which contains its number.
Files OpenMany(const std::string& dir) {
  fs::remove_all(dir);
  fs::create_directories(dir);
  Files files;
  for (size_t i = 0; i < kFiles; ++i) {
    const std::string path = absl::StrCat(dir, "/", i);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(&i), sizeof(i));
    auto file = ReadableFile::Open(path);
    if (!file.ok()) {
      ADD_FAILURE() << file.status();
      break;
    }
    files.push_back(*std::move(file));
  }
  return files;
}

size_t OpenDescriptors() {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator("/proc/self/fd"), {}));
}

TEST(FileIoTest, AnyNumberOfFilesTakesABoundedNumberOfDescriptors) {
  const size_t before = OpenDescriptors();
  {
    const Files files = OpenMany(::testing::TempDir() + "many");
    ASSERT_EQ(files.size(), kFiles);
    EXPECT_EQ(OpenDescriptors(), before + kMaxOpenFiles);
    // The first ones were closed long before.
    for (size_t i = 0; i < kFiles; ++i) {
      size_t value = 0;
      ASSERT_TRUE(files[i]->Read(0, sizeof(value), &value).ok());
      EXPECT_EQ(value, i);
    }
    EXPECT_EQ(OpenDescriptors(), before + kMaxOpenFiles);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(FileIoTest, ThreadsShareFiles) {
  const Files files = OpenMany(::testing::TempDir() + "shared");
  ASSERT_EQ(files.size(), kFiles);
  std::vector<std::thread> threads;
  std::vector<size_t> wrong(3, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&files, &wrong, t] {
      for (size_t i = 0; i < 2 * kFiles; ++i) {
        // Steps for which threads sometimes read the same file.
        const size_t at = i * (2 * t + 1) % kFiles;
        size_t value = kFiles;
        if (!files[at]->Read(0, sizeof(value), &value).ok() || value != at) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0u));
}

TEST(FileIoTest, AFileThatWasReplacedIsNotReadInItsPlace) {
  const std::string dir = ::testing::TempDir() + "replaced_file";
  const Files files = OpenMany(dir);
  ASSERT_EQ(files.size(), kFiles);
  std::ofstream(dir + "/other") << "another one";
  fs::rename(dir + "/other", dir + "/0");
  fs::remove(dir + "/1");
  size_t value = 0;
  const absl::Status replaced = files[0]->Read(0, sizeof(value), &value);
  EXPECT_TRUE(absl::IsDataLoss(replaced)) << replaced;
  EXPECT_THAT(std::string(replaced.message()),
              HasSubstr(dir + "/0 was replaced by another file"));
  EXPECT_TRUE(absl::IsNotFound(files[1]->Read(0, sizeof(value), &value)));
  EXPECT_TRUE(files[2]->Read(0, sizeof(value), &value).ok());
}

}  // namespace
}  // namespace crosshatch::checkpoint
