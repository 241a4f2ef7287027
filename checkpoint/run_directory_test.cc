// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/run_directory.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_system_testutil.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/offline.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/tensor.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A run whose state is its step.
class StepState final : public nn::Stateful {
 public:
  explicit StepState(int64_t step = 0) : step_(step) {}
  explicit StepState(absl::Status error) : error_(std::move(error)) {}
  absl::StatusOr<nn::StateDict> State() override {
    CH_RETURN_IF_ERROR(error_);
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("step", step_));
    CH_RETURN_IF_ERROR(
        state.Add("values", Full({3}, static_cast<double>(step_))));
    return state;
  }
  absl::StatusOr<nn::StateDict> StateToFill(
      const std::vector<std::string>&) override {
    return State();
  }
  absl::Status Restore(const nn::StateDict& state) override {
    CH_ASSIGN_OR_RETURN(step_, state.Get<int64_t>("step"));
    return absl::OkStatus();
  }
  int64_t step() const { return step_; }

 private:
  int64_t step_ = 0;
  absl::Status error_;
};

/// \param resumes whether to resume from the latest step.
void SaveSteps(const std::string& root, const std::vector<int64_t>& steps,
               RunCheckpointsOptions options, bool resumes = false) {
  // Omits flushes.
  FaultyFileSystem whole({});
  options.file_system = &whole;
  RunRanks(2, [&](World& world) -> absl::Status {
    RunCheckpoints checkpoints(world, root, options);
    if (resumes) {
      CH_ASSIGN_OR_RETURN(const std::optional<int64_t> latest,
                          checkpoints.Latest());
      StepState run;
      CH_RETURN_IF_ERROR(checkpoints.Load(run, latest.value()));
    }
    for (const int64_t step : steps) {
      StepState run(step);
      CH_RETURN_IF_ERROR(checkpoints.Save(run, step));
    }
    return checkpoints.Wait();
  });
}

TEST(RunDirectoryTest, KeepsTheLastOfARun) {
  for (const bool async : {false, true}) {
    const std::string root = FreshDir("keeps");
    EXPECT_EQ(LatestIn(root).value(), std::nullopt);
    SaveSteps(root, {100, 200, 1'000'000, 300}, {.keep = 2, .async = async});
    // 1'000'000 is sorted after 300 as a number.
    EXPECT_THAT(StepsIn(root).value(), ElementsAre(200, 300, 1'000'000));
    EXPECT_EQ(LatestIn(root).value(), 1'000'000);
    EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 3);
    RunRanks(3, [&](World& world) -> absl::Status {
      RunCheckpoints checkpoints(world, root);
      CH_ASSIGN_OR_RETURN(const std::optional<int64_t> latest,
                          checkpoints.Latest());
      CH_EXPECT_EQ(latest, 1'000'000);
      StepState run;
      CH_RETURN_IF_ERROR(checkpoints.Load(run, *latest));
      CH_EXPECT_EQ(run.step(), 1'000'000);
      return absl::OkStatus();
    });
  }
}

/// A run whose program writes values by address.
class FilledState final : public nn::Stateful {
 public:
  absl::StatusOr<nn::StateDict> State() override {
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("values", values_));
    return state;
  }
  absl::StatusOr<nn::StateDict> StateToFill(
      const std::vector<std::string>&) override {
    return State();
  }
  absl::Status Restore(const nn::StateDict&) override {
    return absl::OkStatus();
  }
  void Set(float value) {
    std::fill_n(values_.data<float>(), values_.numel(), value);
  }
  std::vector<float> values() const { return values_.ToVector<float>(); }

 private:
  /// Copying it takes longer than writing its first element.
  Tensor values_ = Full({int64_t{4} << 20}, 1);
};

TEST(RunDirectoryTest, WritesAreAllowedAfterTheCopy) {
  const std::string root = FreshDir("by_address");
  FaultyFileSystem whole({});
  RunRanks(2, [&](World& world) -> absl::Status {
    RunCheckpoints checkpoints(world, root,
                               {.async = true, .file_system = &whole});
    FilledState run;
    CH_RETURN_IF_ERROR(checkpoints.Save(run, 1));
    checkpoints.WaitUntilCopied();
    run.Set(2);
    CH_RETURN_IF_ERROR(checkpoints.Wait());
    CH_RETURN_IF_ERROR(checkpoints.Load(run, 1));
    const std::vector<float> saved = run.values();
    CH_EXPECT_EQ(std::count(saved.begin(), saved.end(), 1.0f),
                 static_cast<int64_t>(saved.size()));
    return absl::OkStatus();
  });
}

TEST(RunDirectoryTest, AStepIsReplaced) {
  const std::string root = FreshDir("replaced_step");
  SaveSteps(root, {100, 200, 100}, {.keep = 0});
  EXPECT_THAT(StepsIn(root).value(), ElementsAre(100, 200));
}

TEST(RunDirectoryTest, AnotherRunsCheckpointsStay) {
  for (const bool async : {false, true}) {
    const std::string root = FreshDir("two_runs");
    absl::Status refused;
    RunRanks(2, [&](World& world) -> absl::Status {
      RunCheckpoints mine(world, root, {.keep = 1, .async = async});
      StepState first(1);
      CH_RETURN_IF_ERROR(mine.Save(first, 1));
      CH_RETURN_IF_ERROR(mine.Wait());
      RunCheckpoints others(world, root, {.keep = 2});
      for (const int64_t step : {2, 3, 4}) {
        StepState run(-step);
        CH_RETURN_IF_ERROR(others.Save(run, step));
      }
      StepState late(3);
      absl::Status status = mine.Save(late, 3);
      if (status.ok()) status = mine.Wait();
      if (world.rank() == 0) refused = status;
      StepState last(5);
      CH_RETURN_IF_ERROR(mine.Save(last, 5));
      CH_RETURN_IF_ERROR(mine.Wait());
      StepState kept;
      CH_RETURN_IF_ERROR(others.Load(kept, 3));
      CH_EXPECT_EQ(kept.step(), -3);
      CH_RETURN_IF_ERROR(LoadCheckpoint(
          world, kept, StepDirectory(root, 3) + ".saving", {.verify = false}));
      CH_EXPECT_EQ(kept.step(), 3);
      return absl::OkStatus();
    });
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("step-000003.saving"));
    // The first run removed step 1 for 5, the second step 2 for 4.
    EXPECT_THAT(StepsIn(root).value(), ElementsAre(3, 4, 5));
    ASSERT_EQ(UnfinishedSteps(root).value().size(), 1u);
    EXPECT_THAT(UnfinishedSteps(root).value()[0],
                HasSubstr("step-000003.saving"));
  }
}

TEST(RunDirectoryTest, OtherNamesAreNoCheckpoints) {
  const std::string root = FreshDir("others");
  SaveSteps(root, {7}, {});
  for (const char* name :
       {"step-8", "step-000009.saving", "step-000010.removing", "step-00x011",
        "step--00012", "notes", "step-000013"}) {
    fs::create_directories(root + "/" + name);
  }
  for (const char* name : {"step-8", "step-000009.saving", "notes"}) {
    fs::copy(root + "/step-000007", root + "/" + name);
  }
  std::ofstream(root + "/step-000014") << "a file";
  EXPECT_THAT(StepsIn(root).value(), ElementsAre(7));
}

TEST(RunDirectoryTest, DoesNotRemoveOtherFiles) {
  const std::string root = FreshDir("foreign");
  SaveSteps(root, {1, 2}, {});
  std::ofstream(root + "/step-000001/notes") << "mine";
  std::ofstream(root + "/step-000000") << "mine";
  fs::create_directories(root + "/step-000000.removing/mine");
  SaveSteps(root, {3}, {.keep = 1}, /*resumes=*/true);
  EXPECT_THAT(StepsIn(root).value(), ElementsAre(1, 3));
  EXPECT_TRUE(fs::exists(root + "/step-000001/notes"));
  EXPECT_TRUE(fs::exists(root + "/step-000000"));
  EXPECT_TRUE(fs::exists(root + "/step-000000.removing/mine"));
}

/// Removes old steps with a failure of, and a kill after, each call: every
/// remaining name has a complete checkpoint.
TEST(RunDirectoryTest, NamesOnlyCompleteCheckpoints) {
  for (const DiskFault::Kind kind :
       {DiskFault::Kind::kFail, DiskFault::Kind::kKill}) {
    const std::string root = FreshDir("half");
    ForEachFault(
        {.kind = kind}, /*can_exchange=*/true, 10,
        [&] {
          FreshDir("half");
          SaveSteps(root, {1, 2, 3, 4}, {});
        },
        [&](FileSystem& files) {
          return RemoveOldSteps(root, 2, 4, {1, 2, 3, 4}, files);
        },
        [&](const FaultyFileSystem& files, const absl::Status& status) {
          const auto steps = StepsIn(root);
          ASSERT_TRUE(steps.ok()) << steps.status();
          for (const int64_t step : *steps) {
            // An index and the data of two ranks.
            const std::string dir = StepDirectory(root, step);
            EXPECT_EQ(std::distance(fs::directory_iterator(dir), {}), 2);
            EXPECT_TRUE(ReadIndex(dir).ok());
          }
          EXPECT_EQ(steps->back(), 4);
          EXPECT_GE(steps->size(), 2u);
          EXPECT_EQ(status.ok(), files.failed_call().empty());
          // The next removal removes everything old.
          ASSERT_TRUE(RemoveOldSteps(root, 2, 4, {1, 2, 3, 4}).ok());
          EXPECT_THAT(StepsIn(root).value(), ElementsAre(3, 4));
          EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 2);
        });
  }
}

// A step that was moved to another disk and linked back, and one whose file
// was.
TEST(RunDirectoryTest, LinksAreLeftAlone) {
  const std::string root = FreshDir("linked");
  const std::string disk = FreshDir("larger_disk");
  fs::create_directories(disk);
  SaveSteps(root, {1, 2, 3, 4}, {});
  fs::rename(root + "/step-000001", disk + "/moved");
  fs::create_directory_symlink(disk + "/moved", root + "/step-000001");
  const std::string file = "/" + DataFileName(0, 1);
  fs::rename(root + "/step-000002" + file, disk + file);
  fs::create_symlink(disk + file, root + "/step-000002" + file);
  SaveSteps(root, {5}, {.keep = 1}, /*resumes=*/true);
  SaveSteps(root, {6}, {.keep = 1}, /*resumes=*/true);
  EXPECT_THAT(StepsIn(root).value(), ElementsAre(1, 2, 6));
  for (const int64_t step : {1, 2}) {
    EXPECT_TRUE(Verify(StepDirectory(root, step)).ok()) << step;
  }
}

TEST(RunDirectoryTest, OneFailedRemovalStopsNoOther) {
  for (const int64_t stays : {1, 2, 3}) {
    const std::string root = FreshDir("one_stays");
    SaveSteps(root, {1, 2, 3, 4}, {});
    const std::string dir = StepDirectory(root, stays);
    std::ofstream(dir + ".removing") << "a file";
    const absl::Status status = RemoveOldSteps(root, 1, 4, {1, 2, 3, 4});
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir + ".removing"));
    EXPECT_THAT(StepsIn(root).value(), ElementsAre(stays, 4));
  }
}

TEST(RunDirectoryTest, CleanRemovesIncompleteSaves) {
  const std::string root = FreshDir("clean");
  SaveSteps(root, {1, 2}, {});
  const auto left = [&](const std::string& name, const std::string& index) {
    const std::string dir = root + "/" + name;
    fs::create_directories(dir);
    std::ofstream(dir + "/" + DataFileName(0, 1) + ".saving") << "half";
    if (!index.empty()) std::ofstream(dir + "/" + kIndexFile) << index;
    return dir;
  };
  const std::string half = left("step-000003.saving", "");
  const std::string other = left(
      "step-000003.saving-2", ReadBytes(root + "/step-000002/" + kIndexFile));
  left("step-000000.removing", "");
  const std::string mine = left("step-000004.saving", "");
  std::ofstream(mine + "/notes") << "mine";
  const std::string written = left("step-000005.saving", "");
  // Complete, as if its save could not rename it.
  fs::copy(root + "/step-000002", root + "/step-000002.saving");
  left("notes.saving", "");
  std::string report;
  {
    const DirectoryLock save(written);
    ASSERT_EQ(save.error(), 0);
    const absl::Status status = CleanRunDirectory(root, report);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_THAT(report, HasSubstr("removed " + half + "\n"));
  EXPECT_THAT(report, HasSubstr("removed " + other + "\n"));
  EXPECT_THAT(report, HasSubstr("step-000000.removing\n"));
  EXPECT_THAT(
      report,
      HasSubstr("left " + mine +
                ": it contains other files than those of a checkpoint"));
  EXPECT_THAT(report,
              HasSubstr("left " + written + ": a save is writing to it"));
  EXPECT_THAT(report, HasSubstr("step-000002.saving: it contains a complete "));
  EXPECT_FALSE(fs::exists(half));
  EXPECT_TRUE(fs::exists(mine + "/notes"));
  EXPECT_TRUE(Verify(root + "/step-000002.saving").ok());
  EXPECT_THAT(StepsIn(root).value(), ElementsAre(1, 2));
  // After the save or its process has ended.
  report.clear();
  EXPECT_TRUE(CleanRunDirectory(root, report).ok());
  EXPECT_FALSE(fs::exists(written)) << report;
  EXPECT_TRUE(fs::exists(root + "/notes.saving"));
}

TEST(RunDirectoryTest, CleanKeepsUnknownDirectories) {
  const std::string root = FreshDir("clean_unknown");
  SaveSteps(root, {1}, {});
  const std::string dir = root + "/step-000001.saving";
  fs::rename(StepDirectory(root, 1), dir);
  const std::string index = dir + "/" + kIndexFile;
  const std::string data = dir + "/" + DataFileName(0, 1);
  const auto expect_left = [&](FileSystem& files, const std::string& why) {
    std::string report;
    const absl::Status status = CleanRunDirectory(root, report, files);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(report,
                HasSubstr("left " + dir +
                          ": cannot determine whether it is complete: "));
    EXPECT_THAT(report, HasSubstr(why));
    EXPECT_TRUE(fs::exists(index) && fs::exists(data)) << why;
  };
  const auto with_change = [&](const std::string& path, const std::string& from,
                               const std::string& to, const std::string& why) {
    const std::string before = ReadBytes(path);
    std::string text = before;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    WriteBytes(path, text);
    expect_left(FileSystem::Real(), why);
    WriteBytes(path, before);
  };
  with_change(index, "\"version\": ", "\"version\": 9", "of version 9");
  with_change(index, "\"ranks\"", "\"later\": 1, \"ranks\"", "unknown field");
  with_change(index, "values", "valuEs", "not a valid index");
  with_change(data, "values", "valuEs", "lacks \"values");

  class FailingFileSystem final : public FileSystem {
   public:
    explicit FailingFileSystem(std::string path) : path_(std::move(path)) {}

   private:
    int Make(SystemCall& call, absl::FunctionRef<int()> make) override {
      return call.name == absl::string_view("Examine") && call.path == path_
                 ? EIO
                 : make();
    }

    const std::string path_;
  };
  for (const std::string& path : {dir, index, data}) {
    FailingFileSystem files(path);
    expect_left(files, "cannot examine " + path);
  }
  // An incomplete save is removed.
  fs::resize_file(data, 4);
  std::string report;
  EXPECT_TRUE(CleanRunDirectory(root, report).ok());
  EXPECT_FALSE(fs::exists(dir)) << report;
}

// The name of a step is a link to another disk, or a dangling one.
TEST(RunDirectoryTest, CleanKeepsToItsDirectory) {
  const std::string root = FreshDir("clean_links");
  const std::string disk = FreshDir("clean_links_disk");
  for (const std::string& dir :
       {disk + "/step-000005", disk + "/step-000005.saving",
        root + "/step-000005.saving", root + "/step-000009.saving-2"}) {
    fs::create_directories(dir);
    std::ofstream(dir + "/" + DataFileName(0, 1)) << "half";
  }
  fs::create_directory_symlink(disk + "/step-000005", root + "/step-000005");
  fs::create_directory_symlink("nowhere", root + "/step-000009");
  fs::create_directory_symlink(disk + "/step-000005",
                               root + "/step-000007.saving");
  std::string report;
  const absl::Status status = CleanRunDirectory(root, report);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(report, "removed " + root + "/step-000005.saving\nremoved " + root +
                        "/step-000009.saving-2\n");
  EXPECT_FALSE(fs::exists(root + "/step-000005.saving"));
  EXPECT_FALSE(fs::exists(root + "/step-000009.saving-2"));
  for (const char* name : {"/step-000005", "/step-000005.saving"}) {
    EXPECT_TRUE(fs::exists(disk + name + "/" + DataFileName(0, 1))) << name;
  }
}

TEST(RunDirectoryTest, CleanKeepsARunningSave) {
  class CleaningFileSystem final : public FileSystem {
   public:
    explicit CleaningFileSystem(std::string root) : root_(std::move(root)) {}

   private:
    int Make(SystemCall& call, absl::FunctionRef<int()> make) override {
      const absl::string_view name = call.name;
      if (name == "WriteAt" || name == "Sync" || name == "Rename") {
        std::string report;
        EXPECT_TRUE(CleanRunDirectory(root_, report).ok());
        EXPECT_THAT(report, ::testing::Not(HasSubstr("removed")));
      }
      return name == "Sync" ? 0 : make();
    }
    const std::string root_;
  };
  const std::string root = FreshDir("cleaned_meanwhile");
  CleaningFileSystem files(root);
  RunRanks(2, [&](World& world) -> absl::Status {
    RunCheckpoints checkpoints(world, root, {.file_system = &files});
    StepState run(1);
    return checkpoints.Save(run, 1);
  });
  EXPECT_TRUE(Verify(StepDirectory(root, 1)).ok());
}

TEST(RunDirectoryTest, ADamagedStepNamesTheLastWholeOne) {
  const std::string root = FreshDir("damaged");
  SaveSteps(root, {1, 2, 3, 4}, {});
  const auto damage = [&](int64_t step) {
    FlipLastBit(StepDirectory(root, step) + "/" + DataFileName(0, 1));
  };
  const auto load = [&](int64_t step) {
    std::string said;
    RunRanks(2, [&](World& world) -> absl::Status {
      RunCheckpoints checkpoints(world, root);
      StepState run;
      const absl::Status status = checkpoints.Load(run, step);
      CH_EXPECT_EQ(absl::IsDataLoss(status), true);
      if (world.rank() == 1) said = std::string(status.message());
      return absl::OkStatus();
    });
    return said;
  };
  damage(4);
  fs::resize_file(StepDirectory(root, 3) + "/" + kIndexFile, 20);
  EXPECT_THAT(load(4), HasSubstr("step-000004 differs from what was saved"));
  EXPECT_THAT(load(4), HasSubstr("; the last complete one before it is " +
                                 StepDirectory(root, 2)));
  EXPECT_THAT(load(3), HasSubstr("the last complete one before it is " +
                                 StepDirectory(root, 2)));
  damage(2);
  damage(1);
  EXPECT_THAT(load(4), HasSubstr("; no checkpoint before it is complete"));
}

TEST(RunDirectoryTest, LaterStepsAreSetAside) {
  const std::string root = FreshDir("aside");
  SaveSteps(root, {1, 2, 3}, {});
  ASSERT_TRUE(SetAsideLaterSteps(root, 2).ok());
  EXPECT_THAT(StepsIn(root).value(), ElementsAre(1, 2));
  // A job that restarts before its first save loses nothing.
  ASSERT_TRUE(SetAsideLaterSteps(root, 2).ok());
  SaveSteps(root, {3}, {}, /*resumes=*/true);
  ASSERT_TRUE(SetAsideLaterSteps(root, 3).ok());
  const absl::Status again = SetAsideLaterSteps(root, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(again));
  EXPECT_THAT(std::string(again.message()),
              HasSubstr(root + "/step-000003.aside was set aside before"));
  EXPECT_THAT(StepsIn(root).value(), ElementsAre(1, 2, 3));
  fs::rename(root + "/step-000003.aside", root + "/first");
  ASSERT_TRUE(SetAsideLaterSteps(root, 0).ok());
  EXPECT_THAT(StepsIn(root).value(), ::testing::IsEmpty());
  for (const char* name : {"/first", "/step-000003.aside"}) {
    EXPECT_TRUE(Verify(root + name).ok()) << name;
  }
}

TEST(RunDirectoryTest, AnErrorAfterTheSaveReportsTheSave) {
  const std::string root = FreshDir("saved_but");
  SaveSteps(root, {1}, {});
  // A file occupies the name to which the old step would be renamed.
  std::ofstream(root + "/step-000001.removing") << "a file";
  absl::Status got;
  RunRanks(1, [&](World& world) -> absl::Status {
    RunCheckpoints checkpoints(world, root, {.keep = 1});
    StepState run(2);
    CH_RETURN_IF_ERROR(checkpoints.Load(run, 1));
    got = checkpoints.Save(run, 2);
    return absl::OkStatus();
  });
  EXPECT_THAT(
      std::string(got.message()),
      HasSubstr(
          "step-000002 is saved, but an old checkpoint was not removed: "));
  EXPECT_THAT(StepsIn(root).value(), ElementsAre(1, 2));
}

TEST(RunDirectoryTest, ChecksThatTheDirectoryIsWritable) {
  const std::string root = FreshDir("a_file");
  EXPECT_TRUE(CheckRunDirectory(root).ok());
  EXPECT_FALSE(fs::exists(root));
  std::ofstream(root) << "mine";
  EXPECT_THAT(std::string(CheckRunDirectory(root).message()),
              HasSubstr("is not a directory"));
}

TEST(RunDirectoryTest, ReportsAFileWithTheNameOfALaterStep) {
  const std::string root = FreshDir("taken");
  SaveSteps(root, {7}, {});
  fs::create_directories(root + "/step-000009");
  fs::create_directories(root + "/step-000006/mine");
  std::ofstream(root + "/step-000008.txt") << "no step";
  EXPECT_TRUE(CheckRunDirectory(root).ok()) << CheckRunDirectory(root);
  std::ofstream(root + "/step-000009/notes") << "mine";
  EXPECT_THAT(std::string(CheckRunDirectory(root).message()),
              HasSubstr("step-000009"));
  fs::remove_all(root + "/step-000009");
  std::ofstream(root + "/step-000010") << "mine";
  EXPECT_THAT(std::string(CheckRunDirectory(root).message()),
              HasSubstr("step-000010"));
}

// Resumes a run that saves at each step and keeps one checkpoint.
TEST(RunDirectoryTest, DryRunsSaveAndResumeAndChangeNothing) {
  const std::string root = FreshDir("dry_run");
  SaveSteps(root, {3, 5}, {});
  for (const auto& [rank, async] :
       {std::pair(0, false), {2, false}, {0, true}, {2, true}}) {
    const absl::Status status = RunFake(
        {.world_size = 3, .rank = rank},
        [&, rank = rank, async = async](World& world) -> absl::Status {
          RunCheckpoints checkpoints(world, root, {.keep = 1, .async = async});
          CH_ASSIGN_OR_RETURN(const std::optional<int64_t> latest,
                              checkpoints.Latest());
          EXPECT_EQ(latest, 5) << "rank " << rank;
          StepState run;
          CH_RETURN_IF_ERROR(checkpoints.Load(run, 5));
          EXPECT_EQ(run.step(), 5);
          for (const int64_t step : {5, 6, 7}) {
            CH_RETURN_IF_ERROR(checkpoints.Save(run, step));
            checkpoints.WaitUntilCopied();
            CH_RETURN_IF_ERROR(checkpoints.Poll());
          }
          return checkpoints.Wait();
        });
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
    EXPECT_THAT(*StepsIn(root), ElementsAre(3, 5));
    EXPECT_THAT(*UnfinishedSteps(root), ::testing::IsEmpty());
  }
}

TEST(RunDirectoryTest, ADryRunReportsMissingEntries) {
  EXPECT_EQ(RunFake({},
                    [](World& world) {
                      StepState state(absl::InternalError("no state"));
                      return RunCheckpoints(world, "/nowhere").Save(state, 1);
                    }),
            absl::InternalError("no state"));
}

}  // namespace
}  // namespace crosshatch::checkpoint
