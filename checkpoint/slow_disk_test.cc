// SPDX-License-Identifier: Apache-2.0

/// \file
/// A disk that is busy for longer than the timeout of collectives: no rank is
/// reported lost, and the save completes.

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/huggingface.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/expect.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

constexpr int kRanks = 3;
/// Long enough for ranks on a busy machine.
constexpr absl::Duration kTimeout = absl::Seconds(2);
/// A lost rank is detected within 9/8 of the timeout.
constexpr absl::Duration kBusy = absl::Milliseconds(2500);

// A disk on which the first of some calls is slow.
class SlowFileSystem final : public FileSystem {
 public:
  // `slow` is the beginning of the call's name.
  explicit SlowFileSystem(const char* slow) : slow_(slow) {}

  bool was_slow() const { return was_slow_; }

 private:
  int Make(SystemCall& call, absl::FunctionRef<int()> make) override {
    if (!was_slow_ && absl::StartsWith(call.name, slow_)) {
      was_slow_ = true;
      std::this_thread::sleep_for(absl::ToChronoMilliseconds(kBusy));
    }
    return make();
  }

  const char* const slow_;
  bool was_slow_ = false;
};

struct Case {
  std::string name;
  const char* slow;
  int rank;  // The rank with the slow disk.
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class SlowDiskTest : public ::testing::TestWithParam<Case> {
 protected:
  // Runs `save` on ranks, one of which has a slow disk.
  void ExpectSaves(const std::function<absl::Status(World&, const std::string&,
                                                    FileSystem&)>& save) {
    RunRanks(kRanks,
             [&](World& world) -> absl::Status {
               const bool is_slow = world.rank() == GetParam().rank;
               SlowFileSystem slow(GetParam().slow);
               CH_RETURN_IF_ERROR(
                   save(world, dir_, is_slow ? slow : FileSystem::Real()));
               CH_EXPECT_EQ(slow.was_slow(), is_slow);
               return absl::OkStatus();
             },
             {.timeout = kTimeout});
  }

  const std::string dir_ = ::testing::TempDir() + "slow_disk_" +
                           ::testing::UnitTest::GetInstance()
                               ->current_test_info()
                               ->test_suite_name() +
                           GetParam().name;
};

class SlowDiskOfModelTest : public SlowDiskTest {};

TEST_P(SlowDiskOfModelTest, IsWaitedFor) {
  ExpectSaves([](World& world, const std::string& dir,
                 FileSystem& files) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"fsdp", world.size()}}));
    nn::Llama model({.dim = 8, .layers = 1, .heads = 2, .ffn = 8});
    CH_RETURN_IF_ERROR(fsdp::FullyShard(model, mesh));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 1}));
    return SaveHuggingFace(world, model, dir, {.file_system = &files});
  });
  EXPECT_TRUE(LoadConfig(dir_).ok());
}

class SlowDiskOfCheckpointTest : public SlowDiskTest {};

TEST_P(SlowDiskOfCheckpointTest, IsWaitedFor) {
  ExpectSaves([](World& world, const std::string& dir,
                 FileSystem& files) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"fsdp", world.size()}}));
    CH_ASSIGN_OR_RETURN(const Layout layout,
                        Layout::FromPlacements(mesh.layout(), 2, {Shard(0)}));
    nn::StateDict state;
    CH_RETURN_IF_ERROR(
        state.Add("w", DistributeTensor(Ones({7, 5}), mesh, layout)));
    CH_RETURN_IF_ERROR(
        SaveCheckpoint(world, state, dir, {.file_system = &files}));
    return LoadCheckpoint(world, state, dir);
  });
}

// The last rank only writes its parts, by Write or WriteAt. The first commits.
const Case kCases[] = {{"Write", "Write", kRanks - 1},
                       {"Sync", "Sync", kRanks - 1},
                       {"Rename", "RenameToNew", 0}};

INSTANTIATE_TEST_SUITE_P(All, SlowDiskOfModelTest, ::testing::ValuesIn(kCases),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(All, SlowDiskOfCheckpointTest,
                         ::testing::ValuesIn(kCases),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace crosshatch::checkpoint
