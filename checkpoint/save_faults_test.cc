// SPDX-License-Identifier: Apache-2.0

/// \file
/// Saves a model with a failure of each system call, and with a kill after
/// each. Checks that no user files and no complete weights are lost, and that
/// the error names their directory.

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/checkpoint/file_system_testutil.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

absl::Status Save(const std::string& dir, uint64_t seed,
                  const SaveOptions& options) {
  nn::LlamaConfig config;
  config.dim = 8;
  config.heads = 2;
  config.layers = 1;
  config.ffn = 8;
  config.vocab = 8;
  return StatusOfRanks(2, [&](World& world) -> absl::Status {
    nn::Llama model(config);
    const absl::Status made = model.Materialize({.seed = seed});
    if (!made.ok()) return made;
    return SaveHuggingFace(world, model, dir, options);
  });
}

enum class Before { kNothing, kEmptyDirectory, kModel, kModelInParts };

struct Case {
  std::string name;
  Before before;
  bool can_exchange;
  DiskFault fault;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class SaveFaultsTest : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    for (const uint64_t seed : {1, 2}) {
      const std::string dir = SavedAs(seed);
      ASSERT_TRUE(Save(dir, seed, {.overwrite = true}).ok());
      weights_[seed] = ReadBytes(dir + "/model.safetensors");
      config_size_ = fs::file_size(dir + "/config.json");
    }
    ASSERT_NE(weights_[1], weights_[2]);
  }

  /// Returns the directory of a model that was saved without a fault.
  static std::string SavedAs(uint64_t seed) {
    return absl::StrCat(::testing::TempDir(), "save_faults_reference_", seed);
  }

  /// Creates a new root with a user's files.
  void Prepare() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    user_files_ = {"model.partial/mine", "model.saving/mine"};
    switch (GetParam().before) {
      case Before::kNothing:
        break;
      case Before::kEmptyDirectory:
        fs::create_directories(model_);
        break;
      case Before::kModel:
      case Before::kModelInParts: {
        fs::copy(SavedAs(1), model_, fs::copy_options::recursive);
        for (const char* name :
             {"notes", "tokenizer/vocab", "adapter.safetensors"}) {
          user_files_.push_back(absl::StrCat("model/", name));
        }
        break;
      }
    }
    if (GetParam().before == Before::kModelInParts) {
      const std::string part = "model-00001-of-00001.safetensors";
      fs::rename(model_ + "/model.safetensors", model_ + "/" + part);
      std::ofstream(model_ + "/model.safetensors.index.json") << "{}";
    }
    for (const std::string& file : user_files_) {
      fs::create_directories(fs::path(root_ + file).parent_path());
      std::ofstream(root_ + file) << "of " << file;
    }
  }

  /// Returns the directories below the root with a file of this content.
  std::vector<std::string> Holders(const std::string& content) const {
    std::vector<std::string> holders;
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      if (entry.is_regular_file() && entry.file_size() == content.size() &&
          ReadBytes(entry.path()) == content) {
        holders.push_back(entry.path().parent_path().string());
      }
    }
    return holders;
  }

  bool HoldsModel(const std::string& dir, uint64_t seed) const {
    if (!LoadConfig(dir).ok()) return false;
    return ReadBytes(dir + "/model.safetensors") == weights_[seed] ||
           ReadBytes(dir + "/model-00001-of-00001.safetensors") ==
               weights_[seed];
  }

  std::set<std::string> NamesInRoot() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  void ExpectUserFiles(const std::string& message) const {
    for (const std::string& file : user_files_) {
      const std::vector<std::string> holders =
          Holders(absl::StrCat("of ", file));
      ASSERT_EQ(holders.size(), 1u) << file;
      const bool in_place = fs::exists(root_ + file);
      // If a directory moved, its name.
      const fs::path top =
          fs::path(root_) /
          *fs::path(holders[0]).lexically_relative(root_).begin();
      if (!in_place && !message.empty()) {
        EXPECT_THAT(message, HasSubstr(top.string())) << file;
      }
    }
  }

  /// Checks the root after a save with a fault.
  void Check(const FaultyFileSystem& files, const absl::Status& status) const {
    const bool killed = GetParam().fault.kind == DiskFault::Kind::kKill;
    const std::string message(killed ? "" : status.message());
    ExpectUserFiles(message);
    const bool had_model = GetParam().before == Before::kModel ||
                           GetParam().before == Before::kModelInParts;
    const std::vector<std::string> old_at = Holders(weights_[1]);
    const std::vector<std::string> new_at = Holders(weights_[2]);
    if (status.ok() && !killed) {
      EXPECT_TRUE(HoldsModel(model_, 2));
      EXPECT_TRUE(old_at.empty());
      // Directories of the trial that could not be removed are empty.
      for (const std::string& name : NamesInRoot()) {
        if (name == "model" || fs::exists(root_ + name + "/mine")) continue;
        EXPECT_EQ(files.failed_call(), "RemoveDirectory");
        for (const auto& entry :
             fs::recursive_directory_iterator(root_ + name)) {
          EXPECT_TRUE(entry.is_directory()) << entry.path();
        }
      }
      return;
    }
    if (had_model) {
      bool old_or_new = HoldsModel(model_, 1) || HoldsModel(model_, 2);
      if (!GetParam().can_exchange) {
        // Without an atomic exchange there is a moment without a name.
        for (const std::string& dir : old_at) {
          old_or_new = old_or_new || HoldsModel(dir, 1);
          if (!killed) {
            EXPECT_THAT(message, HasSubstr(dir));
          }
        }
      }
      EXPECT_TRUE(old_or_new);
    } else if (fs::exists(model_)) {
      EXPECT_TRUE(fs::is_empty(model_) || HoldsModel(model_, 2));
    }
    const auto all = static_cast<int64_t>(weights_[2].size() + config_size_);
    if (files.written() == all) {
      ASSERT_EQ(new_at.size(), 1u);
      EXPECT_TRUE(fs::exists(new_at[0] + "/config.json"));
      if (!killed) {
        EXPECT_THAT(message, HasSubstr(new_at[0]));
      }
    } else if (!killed && files.failed_call() != "RemoveFile" &&
               files.failed_call() != "RemoveDirectory") {
      // Abandoned without remaining files.
      EXPECT_EQ(NamesInRoot().size(),
                GetParam().before == Before::kNothing ? 2u : 3u);
    }
  }

  static std::map<uint64_t, std::string> weights_;
  static uintmax_t config_size_;

  const std::string root_ = fs::canonical(::testing::TempDir()).string() +
                            "/save_faults_" + GetParam().name + "/";
  const std::string model_ = root_ + "model";
  std::vector<std::string> user_files_;
};

std::map<uint64_t, std::string> SaveFaultsTest::weights_;
uintmax_t SaveFaultsTest::config_size_ = 0;

TEST_P(SaveFaultsTest, LosesNothing) {
  ForEachFault(
      GetParam().fault, GetParam().can_exchange, 20, [this] { Prepare(); },
      [this](FileSystem& files) {
        return Save(model_, 2, {.overwrite = true, .file_system = &files});
      },
      [this](const FaultyFileSystem& files, const absl::Status& status) {
        ASSERT_NO_FATAL_FAILURE(Check(files, status));
        if (files.failed_call().empty()) return;
        // A later save succeeds and leaves the earlier directories.
        const std::vector<std::string> aside = Holders(weights_[2]);
        FaultyFileSystem whole({});
        ASSERT_TRUE(
            Save(model_, 2, {.overwrite = true, .file_system = &whole}).ok());
        EXPECT_TRUE(HoldsModel(model_, 2));
        ExpectUserFiles("");
        for (const std::string& dir : aside) {
          EXPECT_TRUE(ReadBytes(dir + "/model.safetensors") == weights_[2] ||
                      ReadBytes(dir + "/model.safetensors.saving") ==
                          weights_[2])
              << dir;
        }
      });
}

std::vector<Case> Cases() {
  const struct {
    const char* name;
    Before before;
  } befores[] = {{"nothing", Before::kNothing},
                 {"empty", Before::kEmptyDirectory},
                 {"model", Before::kModel},
                 {"parts", Before::kModelInParts}};
  std::vector<Case> cases;
  for (const auto& before : befores) {
    for (const bool can_exchange : {true, false}) {
      const bool is_model = before.before == Before::kModel;
      if (!can_exchange && !is_model && before.before != Before::kNothing) {
        continue;
      }
      const std::string name =
          absl::StrCat(before.name, can_exchange ? "" : "_without_exchange");
      cases.push_back({name + "_full",
                       before.before,
                       can_exchange,
                       {.kind = DiskFault::Kind::kFail, .error = ENOSPC}});
      cases.push_back({name + "_killed",
                       before.before,
                       can_exchange,
                       {.kind = DiskFault::Kind::kKill}});
      if (is_model) {
        cases.push_back({name + "_forbidden",
                         before.before,
                         can_exchange,
                         {.kind = DiskFault::Kind::kFail, .error = EPERM}});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, SaveFaultsTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace crosshatch::checkpoint
