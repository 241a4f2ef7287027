// SPDX-License-Identifier: Apache-2.0
//
// Processes that no mpirun started find one another. This program starts itself
// again, once for each rank.

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int kRanks = 3;
constexpr const char* kRank = "CROSSHATCH_JOIN_TEST_RANK";
constexpr const char* kStore = "CROSSHATCH_JOIN_TEST_STORE";
constexpr const char* kStay = "CROSSHATCH_JOIN_TEST_STAY";

/// A file for each key.
std::string PathOf(std::string key) {
  for (char& c : key) c = c == '/' ? '_' : c;
  return absl::StrCat(std::getenv(kStore), "/", key);
}

absl::Status Put(const std::string& key, const std::string& value) {
  const std::string path = PathOf(key);
  std::ofstream(path + ".new") << value;
  std::filesystem::rename(path + ".new", path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Get(const std::string& key) {
  while (!std::filesystem::exists(PathOf(key))) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  std::ifstream file(PathOf(key));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Sums that the ranks know, small and large.
absl::Status AddUp(World& world) {
  CH_ASSIGN_OR_RETURN(auto comm, world.Group("all", world.AllRanks(), "comm"));
  for (int64_t count : {int64_t{1}, int64_t{1} << 20}) {
    std::vector<float> data(static_cast<size_t>(count),
                            static_cast<float>(world.rank() + 1));
    CH_RETURN_IF_ERROR(AllReduce(*comm, data.data(), count, kFloat32,
                                 ReduceOp::kSum,
                                 world.context().SideStream("comm"), "sum"));
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    for (float value : data) {
      if (value != 6.0f) {
        return absl::DataLossError(absl::StrCat(value, " instead of 6"));
      }
    }
  }
  return absl::OkStatus();
}

/// What each of the processes does.
int RunRank() {
  const MpiJoin join{.rank = std::atoi(std::getenv(kRank)),
                     .size = kRanks,
                     .put = Put,
                     .get = Get};
  const auto blobs = ExchangeByMpi(absl::StrCat("of ", join.rank), &join);
  if (!blobs.ok() || blobs->size() != kRanks || (*blobs)[2] != "of 2") {
    std::cerr << "rank " << join.rank << ": " << blobs.status() << "\n";
    return 1;
  }
  if (std::getenv(kStay) != nullptr) {
    std::ofstream(PathOf(absl::StrCat("stays", join.rank))) << "x";
    pause();
  }
  for (int job = 0; job < 2; ++job) {
    const absl::Status status = RunMpi(AddUp, {.join = &join});
    if (status.ok()) continue;
    std::cerr << "rank " << join.rank << ": " << status << "\n";
    return 1;
  }
  return 0;
}

/// Processes that have `text` in their file of that name below /proc.
std::set<pid_t> ProcessesWith(const char* name, const std::string& text) {
  std::set<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t process = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &process)) continue;
    std::ifstream file(entry.path() / name);
    const std::string found_text(std::istreambuf_iterator<char>(file), {});
    if (absl::StrContains(found_text, text)) found.insert(process);
  }
  return found;
}

/// MPI's daemons and servers whose files lie below `directory`.
std::set<pid_t> HelpersIn(const std::string& directory) {
  return ProcessesWith("environ", "tmpdir_base=" + directory);
}

class MpiJoinTest : public testing::Test {
 protected:
  void SetUp() override {
    store_ = testing::TempDir() + "/store-XXXXXX";
    ASSERT_NE(mkdtemp(store_.data()), nullptr);
    setenv(kStore, store_.c_str(), /*overwrite=*/1);
    // Not below the test's directory: the names of sockets are short.
    files_ = "/tmp/ch-XXXXXX";
    ASSERT_NE(mkdtemp(files_.data()), nullptr);
    setenv("TMPDIR", files_.c_str(), /*overwrite=*/1);
    // MPI names files by numbers of processes, which tests in sandboxes have in
    // common.
    setenv("OMPI_MCA_btl_vader_backing_directory", store_.c_str(),
           /*overwrite=*/1);
    // As in a step of Slurm's, which does not speak with MPI.
    setenv("SLURM_NODELIST", "n1", /*overwrite=*/1);
    setenv("SLURM_JOBID", "3", /*overwrite=*/1);
    setenv("SLURM_STEP_ID", "0", /*overwrite=*/1);
  }
  void TearDown() override {
    std::filesystem::remove_all(store_);
    std::filesystem::remove_all(files_);
  }

  /// Of each process a directory, while it is there.
  int NumDirectories() const {
    return static_cast<int>(
        std::distance(std::filesystem::directory_iterator(files_), {}));
  }

  /// Starts one process for each rank.
  void Start() {
    for (int rank = 0; rank < kRanks; ++rank) {
      setenv(kRank, absl::StrCat(rank).c_str(), /*overwrite=*/1);
      std::string program = std::filesystem::read_symlink("/proc/self/exe");
      char* const arguments[] = {program.data(), nullptr};
      pid_t process = 0;
      ASSERT_EQ(posix_spawn(&process, program.c_str(), nullptr, nullptr,
                            arguments, environ),
                0);
      processes_.push_back(process);
    }
    unsetenv(kRank);
  }

  /// As Start; they have joined, and wait to be killed.
  void StartAndStay() {
    setenv(kStay, "1", /*overwrite=*/1);
    Start();
    unsetenv(kStay);
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(Get(absl::StrCat("stays", rank)).ok());
    }
  }

  void KillAll() {
    for (pid_t process : processes_) {
      kill(process, SIGKILL);
      ASSERT_EQ(waitpid(process, nullptr, 0), process);
    }
  }

  /// What is left after the processes goes soon; how it ended is for the caller
  /// to ask.
  static void Await(absl::FunctionRef<bool()> is_gone) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!is_gone() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));
    }
  }

  /// They go after the processes have.
  void AwaitNoDirectories() const {
    Await([&] { return NumDirectories() == 0; });
    EXPECT_EQ(NumDirectories(), 0);
  }

  std::string store_;
  std::string files_;
  std::vector<pid_t> processes_;
};

TEST_F(MpiJoinTest, ProcessesFindOneAnotherAndLeaveNothingBehind) {
  Start();
  for (pid_t process : processes_) {
    int status = -1;
    ASSERT_EQ(waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  AwaitNoDirectories();
}

TEST_F(MpiJoinTest, LeavesNoDaemonThatDoesNotEnd) {
  ASSERT_NO_FATAL_FAILURE(StartAndStay());
  EXPECT_EQ(NumDirectories(), kRanks);
  const std::set<pid_t> helpers = HelpersIn(files_);
  // A daemon for each, and rank 0's server.
  EXPECT_GE(helpers.size(), static_cast<size_t>(kRanks) + 1);
  for (pid_t helper : helpers) kill(helper, SIGSTOP);
  ASSERT_NO_FATAL_FAILURE(KillAll());
  AwaitNoDirectories();
  EXPECT_EQ(HelpersIn(files_), std::set<pid_t>());
}

/// As where Slurm's epilog removes a job's files.
TEST_F(MpiJoinTest, LeavesNothingWhereItsFilesAreGone) {
  ASSERT_NO_FATAL_FAILURE(StartAndStay());
  // The shells that mind them, and what these have started.
  EXPECT_GE(ProcessesWith("cmdline", files_ + "/").size(),
            static_cast<size_t>(kRanks));
  std::filesystem::remove_all(files_);
  ASSERT_NO_FATAL_FAILURE(KillAll());
  Await([&] {
    return HelpersIn(files_).empty() &&
           ProcessesWith("cmdline", files_ + "/").empty();
  });
  EXPECT_EQ(HelpersIn(files_), std::set<pid_t>());
  EXPECT_EQ(ProcessesWith("cmdline", files_ + "/"), std::set<pid_t>());
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) {
  if (std::getenv(crosshatch::kRank) != nullptr) return crosshatch::RunRank();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
