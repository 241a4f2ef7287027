// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/new_directory.h"

#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "crosshatch/checkpoint/file_system_testutil.h"
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

  const std::string root_ = ::testing::TempDir() + "new_directory_test";
};

TEST_F(NewDirectoryTest, AppearsWhenCommitted) {
  // Creates parents; a trailing slash has no effect.
  auto directory = NewDirectory::Create(Path("a/b/model/"), false);
  ASSERT_TRUE(directory.ok()) << directory.status();
  WriteBytes((*directory)->Add("config.json"), "{}");
  EXPECT_FALSE(fs::exists(Path("a/b/model")));
  ASSERT_TRUE((*directory)->Commit().ok());
  directory->reset();
  EXPECT_EQ(ReadBytes(Path("a/b/model/config.json")), "{}");
  EXPECT_FALSE(fs::exists(Path("a/b/model.saving")));
}

// Whatever occupies the place after training, the weights are not lost.
TEST_F(NewDirectoryTest, WritesToAFallbackDirectory) {
  struct Taken {
    std::string path;     ///< The target.
    std::string partial;  ///< The directory that is written.
    std::function<void()> take;
  };
  const Taken cases[] = {
      {"full", "full.saving",
       [&] {
         fs::create_directory(Path("full"));
         WriteBytes(Path("full/readme"), "mine");
       }},
      {"a/file/model/", "a/file.saving",
       [&] {
         fs::create_directory(Path("a"));
         WriteBytes(Path("a/file"), "mine");
       }},
      {"link", "link.saving",
       [&] { fs::create_symlink(Path("nowhere"), Path("link")); }},
  };
  for (const Taken& c : cases) {
    SCOPED_TRACE(c.path);
    c.take();
    const absl::Status refusal =
        NewDirectory::Create(Path(c.path), false).status();
    ASSERT_FALSE(refusal.ok());
    auto directory = NewDirectory::CreateOrFallback(Path(c.path), false);
    ASSERT_TRUE(directory.ok()) << directory.status();
    WriteBytes((*directory)->Add("config.json"), "{}");
    const absl::Status status = (*directory)->Commit();
    EXPECT_EQ(status.code(), refusal.code());
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(refusal.message())));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("are in " + Path(c.partial)));
    directory->reset();
    EXPECT_EQ(ReadBytes(Path(c.partial) + "/config.json"), "{}");
  }
  EXPECT_EQ(ReadBytes(Path("full/readme")), "mine");
  EXPECT_EQ(ReadBytes(Path("a/file")), "mine");
}

TEST_F(NewDirectoryTest, LeavesNothingWhenAbandoned) {
  {
    auto directory = NewDirectory::Create(Path("model"), false);
    ASSERT_TRUE(directory.ok());
    WriteBytes((*directory)->Add("config.json"), "{}");
  }
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(NewDirectoryTest, TakesThePlaceOfAnEmptyDirectory) {
  fs::create_directory(Path("model"));
  auto directory = NewDirectory::Create(Path("model"), false);
  ASSERT_TRUE(directory.ok());
  WriteBytes((*directory)->Add("config.json"), "{}");
  ASSERT_TRUE((*directory)->Commit().ok());
  directory->reset();
  EXPECT_TRUE(fs::exists(Path("model/config.json")));
  EXPECT_FALSE(fs::exists(Path("model.saving")));
}

TEST_F(NewDirectoryTest, RecognizesModelFilesByNumber) {
  for (const char* name : {"model-00001-of-00002.safetensors",
                           "model-100000-of-100001.safetensors"}) {
    EXPECT_TRUE(IsModelFile(name)) << name;
  }
  for (const char* name :
       {"model-0001-of-0002.safetensors", "model-000001-of-00002.safetensors",
        "model-00001-of-000002.safetensors"}) {
    EXPECT_FALSE(IsModelFile(name)) << name;
  }
}

TEST_F(NewDirectoryTest, RejectsExistingFiles) {
  fs::create_directory(Path("model"));
  WriteBytes(Path("model/notes"), "keep");
  const absl::Status status =
      NewDirectory::Create(Path("model"), false).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("model")));
  EXPECT_TRUE(absl::IsAlreadyExists(CheckMayWrite(Path("model"), false)));
  EXPECT_TRUE(CheckMayWrite(Path("model"), true).ok());
  EXPECT_TRUE(CheckMayWrite(Path("new"), false).ok());

  WriteBytes(Path("file"), "");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMayWrite(Path("file"), true)));
  // A file in the place of a direct or distant parent.
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMayWrite(Path("file/a"), false)));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMayWrite(Path("file/a/b"), false)));
  EXPECT_TRUE(CheckMayWrite(Path("new/a/b"), false).ok());
  // Even root cannot create directories here.
  EXPECT_FALSE(CheckMayWrite("/proc/self/model", false).ok());
  EXPECT_FALSE(NewDirectory::Create(Path("file/model"), true).ok());
  EXPECT_FALSE(NewDirectory::Create("", true).ok());
  EXPECT_EQ(ReadBytes(Path("model/notes")), "keep");
}

TEST_F(NewDirectoryTest, ReplacesTheModelAndKeepsTheRest) {
  fs::create_directories(Path("model/tokenizer"));
  WriteBytes(Path("model/notes"), "keep");
  WriteBytes(Path("model/config.json"), "old");
  WriteBytes(Path("model/model-00001-of-00002.safetensors"), "old");
  WriteBytes(Path("model/model.safetensors.index.json"), "old");
  // A user's files, whatever their names.
  WriteBytes(Path("model/adapter.safetensors"), "keep");
  WriteBytes(Path("model/generation_config.json"), "keep");
  fs::create_directory(Path("model.partial"));
  WriteBytes(Path("model.partial/mine"), "keep");
  fs::create_directory(Path("model.saving"));
  WriteBytes(Path("model.saving/mine"), "keep");
  {
    auto abandoned = NewDirectory::Create(Path("model"), true);
    ASSERT_TRUE(abandoned.ok());
  }
  EXPECT_EQ(ReadBytes(Path("model/config.json")), "old");

  auto directory = NewDirectory::Create(Path("model"), true);
  ASSERT_TRUE(directory.ok());
  WriteBytes((*directory)->Add("config.json"), "new");
  ASSERT_TRUE((*directory)->Commit().ok());
  directory->reset();
  EXPECT_EQ(ReadBytes(Path("model/config.json")), "new");
  EXPECT_EQ(ReadBytes(Path("model/notes")), "keep");
  EXPECT_TRUE(fs::is_directory(Path("model/tokenizer")));
  EXPECT_FALSE(fs::exists(Path("model/model-00001-of-00002.safetensors")));
  EXPECT_FALSE(fs::exists(Path("model/model.safetensors.index.json")));
  for (const char* kept :
       {"model/adapter.safetensors", "model/generation_config.json",
        "model.partial/mine", "model.saving/mine"}) {
    EXPECT_EQ(ReadBytes(Path(kept)), "keep") << kept;
  }
  EXPECT_FALSE(fs::exists(Path("model.saving-2")));
}

// A system with given answers.
class OtherSystem final : public FileSystem {
 public:
  std::string mount;
  std::string refused;
  int refusal = 0;

 private:
  int Make(SystemCall& call, absl::FunctionRef<int()> make) override {
    if (call.name == absl::string_view("Rename") && call.path == refused) {
      return refusal;
    }
    const int error = make();
    if (call.info != nullptr) call.info->is_mount = call.path == mount;
    return error;
  }
};

TEST_F(NewDirectoryTest, ReportsObstaclesOfCommitBeforehand) {
  fs::create_directories(Path("model/data"));
  fs::create_directories(Path("empty"));
  WriteBytes(Path("model/notes"), "keep");
  fs::create_directory_symlink(Path("nowhere"), Path("link"));
  const struct {
    const char* path;
    const char* mount;
    const char* refused;
    int refusal;
    const char* message;
  } cases[] = {
      {"model", "model", "", 0, "it is a mount point"},
      {"empty", "empty", "", 0, "it is a mount point"},
      {"model", "model/data", "", 0, "model/data is a mount point"},
      {"model", "model/notes", "", 0, "model/notes is a mount point"},
      // The kernel does not report mounts.
      {"model", "", "model", EBUSY, "a mount point or in use"},
      {"empty", "", "empty", EBUSY, "a mount point or in use"},
      {"model", "", "model", EXDEV, "a lower layer of an overlay"},
      {"model", "", "model/data", EXDEV, "model/data, which is in a lower"},
      {"model", "", "model", EPERM, "Operation not permitted"},
      {"link", "", "", 0, "is a link to"},
      {"link/model", "", "", 0, "is a link to"},
  };
  for (const auto& c : cases) {
    const std::string root = fs::canonical(root_).string() + "/";
    OtherSystem system;
    system.mount = root + c.mount;
    system.refused = root + c.refused;
    system.refusal = c.refusal;
    const absl::Status status = CheckMayWrite(Path(c.path), true, system);
    EXPECT_FALSE(status.ok()) << c.path << " " << c.mount << c.refused;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_EQ(NewDirectory::Create(Path(c.path), true, system).status(),
              status);
  }
  EXPECT_EQ(ReadBytes(Path("model/notes")), "keep");
  EXPECT_TRUE(CheckMayWrite(Path("model"), true).ok());
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(root_)) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, (std::set<std::string>{"empty", "link", "model"}));
}

TEST_F(NewDirectoryTest, OfTwoSaversTheSecondIsRefused) {
  enum Place { kNothing, kEmpty, kModel };
  for (const Place place : {kNothing, kEmpty, kModel}) {
    SetUp();
    if (place != kNothing) fs::create_directory(Path("model"));
    if (place == kModel) WriteBytes(Path("model/config.json"), "old");
    auto first = NewDirectory::Create(Path("model"), true);
    auto second = NewDirectory::Create(Path("model"), true);
    ASSERT_TRUE(first.ok() && second.ok());
    WriteBytes((*first)->Add("model.safetensors"), "first");
    WriteBytes((*second)->Add("model.safetensors"), "second");
    ASSERT_TRUE((*first)->Commit().ok());
    const absl::Status status = (*second)->Commit();
    EXPECT_FALSE(status.ok());
    const std::string where = (*second)->partial_path();
    EXPECT_THAT(std::string(status.message()), HasSubstr("are in " + where));
    first->reset();
    second->reset();
    EXPECT_EQ(ReadBytes(Path("model/model.safetensors")), "first");
    EXPECT_EQ(ReadBytes(where + "/model.safetensors"), "second");
    // The remaining directory is reported, and a later save does not touch it.
    const auto unfinished = UnfinishedSaves(Path("model"));
    ASSERT_TRUE(unfinished.ok());
    EXPECT_EQ(*unfinished, std::vector<std::string>{where});
    auto third = NewDirectory::Create(Path("model"), true);
    ASSERT_TRUE(third.ok());
    WriteBytes((*third)->Add("model.safetensors"), "third");
    ASSERT_TRUE((*third)->Commit().ok());
    EXPECT_EQ(ReadBytes(Path("model/model.safetensors")), "third");
    EXPECT_EQ(ReadBytes(where + "/model.safetensors"), "second");
  }
}

}  // namespace
}  // namespace crosshatch::checkpoint
