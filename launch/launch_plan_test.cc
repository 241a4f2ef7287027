// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_plan.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

const Environment& TwoProcesses() {
  static const auto& environment = *new Environment{{"RANK", "1"},
                                                    {"WORLD_SIZE", "2"},
                                                    {"MASTER_ADDR", "a"},
                                                    {"MASTER_PORT", "5"}};
  return environment;
}

/// "mpi 1/2", or the error.
std::string Plan(const RunOptions& options, const Environment& environment) {
  const auto plan = PlanLaunch(options, environment);
  if (!plan.ok()) return std::string(plan.status().message());
  if (const absl::Status wrong = CheckPlan(*plan, options); !wrong.ok()) {
    return std::string(wrong.message());
  }
  static constexpr const char* kNames[] = {"auto", "local", "mpi", "fake"};
  return absl::StrCat(kNames[static_cast<int>(plan->backend)], " ",
                      plan->info.rank, "/", plan->ranks);
}

TEST(LaunchPlanTest, AutoFollowsTheEnvironment) {
  EXPECT_EQ(Plan({}, {}), "local 0/1");
  EXPECT_EQ(Plan({.ranks = 4}, {}), "local 0/4");
  EXPECT_EQ(Plan({}, TwoProcesses()), "mpi 1/2");
  EXPECT_EQ(Plan({.ranks = 2}, TwoProcesses()), "mpi 1/2");
}

TEST(LaunchPlanTest, AskedForBackendsCount) {
  EXPECT_EQ(Plan({.backend = Backend::kLocal, .ranks = 4}, TwoProcesses()),
            "local 0/4");
  EXPECT_EQ(Plan({.backend = Backend::kFake, .ranks = 8}, TwoProcesses()),
            "fake 0/8");
  EXPECT_EQ(Plan({.backend = Backend::kMpi}, TwoProcesses()), "mpi 1/2");
}

TEST(LaunchPlanTest, LocalDoesNotReadWhatItDoesNotNeed) {
  EXPECT_EQ(Plan({.backend = Backend::kLocal}, {{"RANK", "x"}}), "local 0/1");
}

TEST(LaunchPlanTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(Plan({.ranks = 4, .ranks_from = "--mesh=fsdp:4"}, TwoProcesses()),
            "--mesh=fsdp:4 needs 4 ranks, and a launcher of processes started "
            "2 processes: start 4, or change --mesh=fsdp:4");
  EXPECT_EQ(Plan({.backend = Backend::kMpi, .ranks = 4}, {}),
            "--backend=mpi: nobody started this process as a rank: use mpirun "
            "-np 4, srun or torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT");
  EXPECT_EQ(Plan({.timeout = absl::ZeroDuration()}, {}),
            "--timeout: must be above zero");
  EXPECT_EQ(Plan({.start_timeout = -absl::Seconds(1)}, {}),
            "--start_timeout: must be above zero");
  EXPECT_EQ(Plan({.heartbeat_timeout = absl::ZeroDuration()}, {}),
            "--heartbeat_timeout: must be above zero");
  // What no flag says, and what --tf32 says: one rule for both.
  EXPECT_EQ(Plan({.device = Device::Kind::kMeta}, {}),
            "RunOptions::device is kMeta: must be kCpu or kCuda. A run without "
            "elements is a dry run: RunOptions::backend = Backend::kFake, "
            "--backend=fake");
  EXPECT_EQ(Plan({.device = Device::Kind::kCpu, .cuda = {.tf32 = true}}, {}),
            "--tf32 is for --device=cuda: the CPU multiplies float32 as it is. "
            "Leave out --tf32 (RunOptions::cuda.tf32), or compute on CUDA");
  EXPECT_EQ(Plan({.device = Device::Kind::kCuda, .cuda = {.tf32 = true}}, {}),
            "local 0/1");
  EXPECT_EQ(Plan({.transport = DataTransport::kUcx}, {}),
            "--transport is for ranks that are processes, and these are not");
  EXPECT_EQ(Plan({.transport = DataTransport::kMpi}, TwoProcesses()),
            "--transport=mpi: MPI cannot join processes that a launcher of "
            "processes started; use mpirun, srun --mpi=pmix, or "
            "--transport=ucx");
  EXPECT_EQ(Plan({.ranks = -1}, {}), "the program needs -1 ranks");
  EXPECT_EQ(Plan({}, {{"RANK", "x"}, {"WORLD_SIZE", "1"}}),
            "RANK=x: must be a rank from 0 to 0, since WORLD_SIZE=1");
}

TEST(LaunchPlanTest, BackendsHaveNames) {
  EXPECT_EQ(*ParseBackend("auto", "--b"), Backend::kAuto);
  EXPECT_EQ(*ParseBackend("local", "--b"), Backend::kLocal);
  EXPECT_EQ(*ParseBackend("mpi", "--b"), Backend::kMpi);
  EXPECT_EQ(*ParseBackend("fake", "--b"), Backend::kFake);
  EXPECT_EQ(std::string(ParseBackend("nccl", "--b").status().message()),
            "--b=nccl: must be auto, local, mpi or fake");
  EXPECT_EQ(*ParseTransport("auto", "--t"), DataTransport::kAuto);
  EXPECT_EQ(*ParseTransport("mpi", "--t"), DataTransport::kMpi);
  EXPECT_EQ(*ParseTransport("ucx", "--t"), DataTransport::kUcx);
  EXPECT_EQ(std::string(ParseTransport("tcp", "--t").status().message()),
            "--t=tcp: must be auto, mpi or ucx");
}

}  // namespace
}  // namespace crosshatch
