// SPDX-License-Identifier: Apache-2.0

/// \file
/// Saves a checkpoint on two ranks, with a failure of, and a kill after, each
/// system call. A load then returns the old or the new checkpoint, complete,
/// and errors name complete data.

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/file_system_testutil.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

/// Each rank writes one of the tensors.
nn::StateDict StateOf(int64_t version) {
  nn::StateDict state;
  for (const char* name : {"a", "b"}) {
    EXPECT_TRUE(state.Add(name, Full({5}, static_cast<double>(version))).ok());
  }
  EXPECT_TRUE(state.Add("version", version).ok());
  return state;
}

/// Returns the version in `dir`; an error if it is not one complete version.
absl::StatusOr<int64_t> VersionIn(const std::string& dir, bool verify = true) {
  int64_t version = 0;
  const absl::Status status =
      StatusOfRanks(1, [&](World& world) -> absl::Status {
        nn::StateDict state = StateOf(0);
        CH_RETURN_IF_ERROR(
            LoadCheckpoint(world, state, dir, {.verify = verify}));
        CH_ASSIGN_OR_RETURN(version, state.Get<int64_t>("version"));
        for (const char* name : {"a", "b"}) {
          CH_EXPECT_EQ(state.Get<Tensor>(name)->ToVector<float>(),
                       std::vector<float>(5, static_cast<float>(version)));
        }
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return version;
}

absl::Status Save(const std::string& dir, int64_t version, FileSystem& files,
                  bool async) {
  return StatusOfRanks(2, [&](World& world) -> absl::Status {
    if (!async) {
      return SaveCheckpoint(world, StateOf(version), dir,
                            {.overwrite = true, .file_system = &files});
    }
    AsyncCheckpointer saver(world, {.file_system = &files});
    CH_RETURN_IF_ERROR(saver.Save(StateOf(version), dir, true));
    return saver.Wait();
  });
}

struct Case {
  std::string name;
  bool replaces = false;
  bool can_exchange = true;
  bool async = false;
  DiskFault fault = {.kind = DiskFault::Kind::kFail, .error = ENOSPC};
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class CheckpointFaultsTest : public ::testing::TestWithParam<Case> {
 protected:
  /// Measures how many bytes a save writes before its commit.
  void SetUp() override {
    FaultyFileSystem whole({});
    fs::remove_all(root_);
    fs::create_directories(root_);
    ASSERT_TRUE(Save(dir_, 2, whole, GetParam().async).ok());
    complete_bytes_ =
        whole.written() -
        static_cast<int64_t>(fs::file_size(dir_ + "/" + kIndexFile));
  }

  /// Creates a root with a user's files.
  void Prepare() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    if (!GetParam().replaces) return;
    FaultyFileSystem whole({});
    ASSERT_TRUE(Save(dir_, 1, whole, false).ok());
  }

  /// Returns the other directories in the root, with their versions.
  std::map<std::string, absl::StatusOr<int64_t>> Aside() const {
    std::map<std::string, absl::StatusOr<int64_t>> aside;
    for (const auto& entry : fs::directory_iterator(root_)) {
      const std::string path = entry.path().string();
      if (path == dir_) continue;
      aside.emplace(path, VersionIn(path, false));
    }
    return aside;
  }

  void Check(const absl::Status& status, bool failed, int64_t written) const {
    const bool killed = GetParam().fault.kind == DiskFault::Kind::kKill;
    const absl::StatusOr<int64_t> in_place = VersionIn(dir_);
    const auto aside = Aside();
    if (!failed || (status.ok() && !killed)) {
      ASSERT_TRUE(in_place.ok()) << in_place.status();
      EXPECT_EQ(*in_place, 2);
      return;
    }
    if (fs::exists(dir_)) {
      ASSERT_TRUE(in_place.ok()) << in_place.status();
      EXPECT_THAT(*in_place, AnyOf(Eq(1), Eq(2)));
    }
    bool has_old = in_place.ok() && *in_place == 1;
    bool has_new = in_place.ok() && *in_place == 2;
    for (const auto& [path, version] : aside) {
      // The index of an old checkpoint is removed first.
      if (!has_new && fs::exists(path + "/" + DataFileName(0, 2)) &&
          fs::exists(path + "/" + DataFileName(1, 2))) {
        EXPECT_TRUE(version.ok()) << path << ": " << version.status();
      }
      if (!version.ok()) continue;
      has_old = has_old || *version == 1;
      has_new = has_new || *version == 2;
      if (!killed) {
        // The error names complete data.
        EXPECT_THAT(std::string(status.message()), HasSubstr(path));
      }
    }
    // Once all data files are complete, they stay.
    const bool is_of_data =
        std::string(status.message()).find(".safetensors") != std::string::npos;
    if (!killed && written >= complete_bytes_ && !is_of_data) {
      EXPECT_TRUE(has_new);
    }
    if (!GetParam().replaces) return;
    EXPECT_TRUE(has_old || has_new);
    if (GetParam().can_exchange) {
      EXPECT_TRUE(fs::exists(dir_));
    }
  }

  const std::string root_ = fs::canonical(::testing::TempDir()).string() +
                            "/faults_" + GetParam().name + "/";
  const std::string dir_ = root_ + "run";
  int64_t complete_bytes_ = 0;
};

TEST_P(CheckpointFaultsTest, LoadsTheOldOrTheNewCheckpoint) {
  ForEachFault(
      GetParam().fault, GetParam().can_exchange, 20, [this] { Prepare(); },
      [this](FileSystem& files) {
        return Save(dir_, 2, files, GetParam().async);
      },
      [this](const FaultyFileSystem& files, const absl::Status& status) {
        const bool failed = !files.failed_call().empty();
        ASSERT_NO_FATAL_FAILURE(Check(status, failed, files.written()));
        if (!failed) return;
        // The other directories survive a later successful save.
        const auto aside = Aside();
        FaultyFileSystem whole({});
        const absl::Status again = Save(dir_, 2, whole, false);
        ASSERT_TRUE(again.ok()) << again;
        EXPECT_EQ(VersionIn(dir_).value(), 2);
        for (const auto& [path, version] : aside) {
          if (!version.ok()) continue;
          EXPECT_EQ(VersionIn(path, false).value(), *version) << path;
        }
      });
}

/// A disk on which another program saves version 3 to the same place when the
/// first file is created.
class SharedFileSystem final : public FileSystem {
 public:
  explicit SharedFileSystem(std::string dir) : dir_(std::move(dir)) {}

 private:
  int Make(SystemCall& call, absl::FunctionRef<int()> make) override {
    if (call.name == absl::string_view("CreateFile")) {
      std::call_once(once_, [this] {
        FaultyFileSystem whole({});
        const absl::Status other = Save(dir_, 3, whole, false);
        EXPECT_TRUE(other.ok()) << other;
      });
    }
    return make();
  }

  const std::string dir_;
  std::once_flag once_;
};

TEST(TwoSaversTest, OfTwoSaversTheFirstWinsAndNothingIsLost) {
  for (const bool replaces : {false, true}) {
    const std::string root =
        fs::canonical(::testing::TempDir()).string() + "/two_savers/";
    fs::remove_all(root);
    const std::string dir = root + "run";
    FaultyFileSystem whole({});
    if (replaces) {
      ASSERT_TRUE(Save(dir, 1, whole, false).ok());
    }
    SharedFileSystem shared(dir);
    const absl::Status status = Save(dir, 2, shared, false);
    EXPECT_TRUE(absl::IsAlreadyExists(status) || absl::IsAborted(status))
        << status;
    EXPECT_EQ(VersionIn(dir).value(), 3);
    // The checkpoint of the second saver is complete in the directory that the
    // error names.
    EXPECT_EQ(VersionIn(dir + ".saving").value(), 2);
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir + ".saving"));
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Case& base : {
           Case{.name = "new"},
           Case{.name = "replaced", .replaces = true},
           Case{.name = "without_exchange",
           .replaces = true,
           .can_exchange = false},
           Case{.name = "async", .replaces = true, .async = true},
       }) {
    Case full = base;
    full.name += "_full";
    cases.push_back(full);
    Case killed = base;
    killed.name += "_killed";
    killed.fault = {.kind = DiskFault::Kind::kKill};
    cases.push_back(killed);
  }
  Case read_only{.name = "replaced_read_only", .replaces = true};
  read_only.fault.error = EROFS;
  cases.push_back(read_only);
  // Also at the commit, if a mount appears between the trial and the rename.
  Case other_disk{.name = "replaced_other_disk", .replaces = true};
  other_disk.fault.error = EXDEV;
  cases.push_back(other_disk);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointFaultsTest,
                         ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace crosshatch::checkpoint
