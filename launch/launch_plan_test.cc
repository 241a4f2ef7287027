// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_plan.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Environment& TwoProcesses() {
  static const auto& environment = *new Environment{{"RANK", "1"},
                                                    {"WORLD_SIZE", "2"},
                                                    {"MASTER_ADDR", "a"},
                                                    {"MASTER_PORT", "5"}};
  return environment;
}

/// "processes 1/2", or the error.
std::string Plan(const RunOptions& options, const Environment& environment) {
  const auto plan = PlanLaunch(options, environment);
  if (!plan.ok()) return std::string(plan.status().message());
  if (const absl::Status wrong = CheckPlan(*plan, options); !wrong.ok()) {
    return std::string(wrong.message());
  }
  static constexpr const char* kNames[] = {"auto", "local", "processes",
                                           "fake"};
  return absl::StrCat(kNames[static_cast<int>(plan->engine)], " ",
                      plan->info.rank, "/", plan->ranks);
}

TEST(LaunchPlanTest, AutoFollowsTheEnvironment) {
  EXPECT_EQ(Plan({}, {}), "local 0/1");
  EXPECT_EQ(Plan({.ranks = 4}, {}), "local 0/4");
  EXPECT_EQ(Plan({}, TwoProcesses()), "processes 1/2");
  EXPECT_EQ(Plan({.ranks = 2}, TwoProcesses()), "processes 1/2");
}

TEST(LaunchPlanTest, ARequestedEngineCounts) {
  EXPECT_EQ(Plan({.engine = EngineKind::kLocal, .ranks = 4}, TwoProcesses()),
            "local 0/4");
  EXPECT_EQ(Plan({.engine = EngineKind::kFake, .ranks = 8}, TwoProcesses()),
            "fake 0/8");
  EXPECT_EQ(Plan({.engine = EngineKind::kProcesses}, TwoProcesses()),
            "processes 1/2");
}

TEST(LaunchPlanTest, LocalReadsNoVariables) {
  EXPECT_EQ(Plan({.engine = EngineKind::kLocal}, {{"RANK", "x"}}), "local 0/1");
}

TEST(LaunchPlanTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(Plan({.ranks = 4, .ranks_from = "--mesh=fsdp:4"}, TwoProcesses()),
            "--mesh=fsdp:4 needs 4 ranks, and a launcher of processes started "
            "2 processes: start 4, or change --mesh=fsdp:4");
  EXPECT_EQ(Plan({.engine = EngineKind::kProcesses, .ranks = 4}, {}),
            "--engine=processes: no launcher started this process as a rank: "
            "use mpirun "
            "-np 4, srun or torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT");
  EXPECT_EQ(Plan({.job = {.timeout = absl::ZeroDuration()}}, {}),
            "--timeout: must be above zero");
  EXPECT_EQ(Plan({.start_timeout = -absl::Seconds(1)}, {}),
            "--start_timeout: must be above zero");
  EXPECT_EQ(Plan({.heartbeat_timeout = absl::ZeroDuration()}, {}),
            "--heartbeat_timeout: must be above zero");
  // The plan also checks options without a flag, and --tf32.
  EXPECT_EQ(Plan({.device = Device::Kind::kMeta}, {}),
            "RunOptions::device is kMeta: must be kCpu or kCuda. A run without "
            "elements is a dry run: RunOptions::engine = EngineKind::kFake, "
            "--engine=fake");
  EXPECT_EQ(Plan({.device = Device::Kind::kCpu, .cuda = {.tf32 = true}}, {}),
            "--tf32 is for --device=cuda: the CPU multiplies in float32. "
            "Omit --tf32 (RunOptions::cuda.tf32), or compute on CUDA");
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

std::string Compare(const RunOptions& mine, const RunOptions& of_first) {
  const absl::Status status =
      CheckAgreed(AgreedText(mine), AgreedText(of_first));
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(AgreedOptionsTest, NamesWhatDiffersAndOnlyThat) {
  EXPECT_EQ(Compare({}, {}), "");
  EXPECT_EQ(
      Compare({.job = {.timeout = absl::Seconds(1)}, .log_prefix = true}, {}),
      "");
  EXPECT_EQ(Compare({.nccl = {.deterministic = true}}, {}),
            "it runs with --device=cpu --deterministic, and rank 0 with "
            "--device=cpu: start all ranks with the same");
  EXPECT_EQ(Compare({.agreed = {"--lr=0.1", "--steps=3", "no --model"}},
                    {.agreed = {"--lr=0.2", "--steps=3", "a --model"}}),
            "it runs with --lr=0.1 no --model, and rank 0 with --lr=0.2 a "
            "--model: start all ranks with the same");
}

TEST(AgreedOptionsTest, LinesOfAValueAreNoOptions) {
  EXPECT_EQ(Compare({.agreed = {"--prompt=a\nb", "--seed=1"}},
                    {.agreed = {"--prompt=a", "--seed=1"}}),
            "it runs with --prompt=a\\nb, and rank 0 with --prompt=a: start "
            "all ranks with the same");
  EXPECT_EQ(Compare({.agreed = {"a\nb"}}, {.agreed = {"a", "b"}}),
            "it runs with a\\nb nothing more, and rank 0 with a b: start all "
            "ranks with the same");
}

// The CPU and an emulated device stand for devices 0 and 1.
absl::StatusOr<const DeviceBackend*> OneOfTwo(int index) {
  if (index == 0) return &CpuBackend();
  if (index == 1) return *CudaBackend(0);
  return absl::NotFoundError("no more");
}

TEST(FindDevicesTest, CollectsAsManyAsThereAre) {
  const DeviceBackend* const a = &CpuBackend();
  const DeviceBackend* const b = *CudaBackend(0);
  EXPECT_THAT(*CollectDevices(OneOfTwo, 1), ElementsAre(a));
  EXPECT_THAT(*CollectDevices(OneOfTwo, 2), ElementsAre(a, b));
  EXPECT_THAT(*CollectDevices(OneOfTwo, 5), ElementsAre(a, b));
  EXPECT_THAT(*FindDevices({}, 3), IsEmpty());
  EXPECT_THAT(*FindDevices({.job = {.backends = {b}}}, 3), ElementsAre(b));
}

TEST(FindDevicesTest, ReportsWhyThereIsNone) {
  const auto none = CollectDevices(
      [](int) { return absl::NotFoundError("no CUDA device"); }, 2);
  EXPECT_EQ(none.status(),
            absl::NotFoundError("--device=cuda: no CUDA device"));
  // A device that exists and cannot be used is not skipped.
  const auto second = CollectDevices(
      [](int index) -> absl::StatusOr<const DeviceBackend*> {
        if (index == 0) return &CpuBackend();
        return absl::FailedPreconditionError("cuda:1 is too old");
      },
      2);
  EXPECT_EQ(std::string(second.status().message()),
            "--device=cuda: cuda:1 is too old");
}

TEST(FindDevicesTest, ADryRunNeedsNoDevice) {
  EXPECT_EQ(*DryRunDevice({}), nullptr);
  EXPECT_EQ(*DryRunDevice({.device = Device::Kind::kCuda,
                           .job = {.backends = {*CudaBackend(0)}}}),
            *CudaBackend(0));
}

}  // namespace
}  // namespace crosshatch
