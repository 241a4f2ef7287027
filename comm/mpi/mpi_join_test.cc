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
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  CH_ASSIGN_OR_RETURN(auto comm, world.Group("all", all, "comm"));
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
  for (int job = 0; job < 2; ++job) {
    const absl::Status status = RunMpi(AddUp, {.join = &join});
    if (status.ok()) continue;
    std::cerr << "rank " << join.rank << ": " << status << "\n";
    return 1;
  }
  return 0;
}

std::set<std::string> NameServerFiles() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/tmp")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("crosshatch-mpi-")) found.insert(name);
  }
  return found;
}

TEST(MpiJoinTest, ProcessesFindOneAnotherAndLeaveNothingBehind) {
  const std::set<std::string> before = NameServerFiles();
  std::string store = testing::TempDir() + "/store-XXXXXX";
  ASSERT_NE(mkdtemp(store.data()), nullptr);
  setenv(kStore, store.c_str(), /*overwrite=*/1);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    setenv(kRank, absl::StrCat(rank).c_str(), /*overwrite=*/1);
    std::string program = std::filesystem::read_symlink("/proc/self/exe");
    char* const arguments[] = {program.data(), nullptr};
    pid_t process = 0;
    ASSERT_EQ(posix_spawn(&process, program.c_str(), nullptr, nullptr,
                          arguments, environ),
              0);
    processes.push_back(process);
  }
  unsetenv(kRank);
  for (pid_t process : processes) {
    int status = -1;
    ASSERT_EQ(waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_EQ(NameServerFiles(), before);
  std::filesystem::remove_all(store);
}

}  // namespace
}  // namespace crosshatch

int main(int argc, char** argv) {
  if (std::getenv(crosshatch::kRank) != nullptr) return crosshatch::RunRank();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
