// SPDX-License-Identifier: Apache-2.0

// Pipeline stages with different numbers of ranks and layers save one
// checkpoint, and other stages read it.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLayers = 5;

struct Stage {
  std::vector<int> ranks;
  int64_t begin;  // Its first layer.
  int64_t end;
};

// Returns divisions of 5 layers into stages on some of 5 ranks each.
std::vector<std::vector<Stage>> Cuts() {
  return {{{{0, 1}, 0, 3}, {{4, 2, 3}, 3, 5}},
          {{{0, 1, 2, 3, 4}, 0, 5}},
          {{{3}, 0, 1}, {{0, 4}, 1, 2}, {{1, 2}, 2, 5}},
          {{{0}, 0, 1}, {{1}, 1, 2}, {{2}, 2, 3}, {{3}, 3, 4}, {{4}, 4, 5}}};
}

// Returns a layer's tensor of `size` elements.
Tensor Values(int64_t layer, int64_t size) {
  std::vector<float> values;
  for (int64_t i = 0; i < size; ++i) {
    values.push_back(static_cast<float>(layer * 1000 + i * 7 + size));
  }
  return FromValues<float>({size}, values);
}

struct Program {
  World* world = nullptr;  // The stage's.
  nn::StateDict state;
};

// Returns this rank's state in `stages`: of each layer a sharded, a replicated
// and a plain tensor, and a step that all stages have.
absl::StatusOr<Program> ProgramOf(World& world,
                                  const std::vector<Stage>& stages,
                                  bool filled) {
  Program program;
  for (const Stage& stage : stages) {
    const absl::StatusOr<World*> own = world.Subset(stage.ranks);
    if (!own.ok()) continue;
    program.world = *own;
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(**own, {{"fsdp", (*own)->size()}}));
    const Layout whole = Layout::Replicated(mesh.layout(), 1);
    for (int64_t layer = stage.begin; layer < stage.end; ++layer) {
      const auto values = [&](int64_t size) {
        return filled ? Values(layer, size) : Zeros({size});
      };
      const std::string name = absl::StrCat("layers.", layer);
      CH_RETURN_IF_ERROR(program.state.Add(
          name + ".weight",
          DistributeTensor(values(7), mesh, whole.WithShard(0, 0))));
      CH_RETURN_IF_ERROR(program.state.Add(
          name + ".norm", DistributeTensor(values(3), mesh, whole)));
      CH_RETURN_IF_ERROR(program.state.Add(name + ".bias", Clone(values(2))));
    }
  }
  CH_RETURN_IF_ERROR(program.state.Add("step", int64_t{filled ? 12 : 0}));
  CH_RETURN_IF_ERROR(program.state.Add("best", std::nan("")));
  return program;
}

void ExpectFilled(const nn::StateDict& state, const std::vector<Stage>& stages,
                  int world_rank) {
  for (const Stage& stage : stages) {
    bool here = false;
    for (const int rank : stage.ranks) here = here || rank == world_rank;
    for (int64_t layer = stage.begin; here && layer < stage.end; ++layer) {
      const std::string name = absl::StrCat("layers.", layer);
      for (const auto& [part, size] :
           {std::pair<std::string, int64_t>{".weight", 7},
            {".norm", 3},
            {".bias", 2}}) {
        const auto tensor = state.Get<Tensor>(name + part);
        CH_EXPECT_OK(tensor.status());
        if (!tensor.ok()) continue;
        CH_EXPECT_EQ(FullTensor(*tensor).ToVector<float>(),
                     Values(layer, size).ToVector<float>())
            << name << part;
      }
    }
  }
  CH_EXPECT_EQ(*state.Get<int64_t>("step"), 12);
}

std::string Directory(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

TEST(StageCheckpointTest, StagesSaveOneAndOtherStagesReadIt) {
  const std::vector<std::vector<Stage>> cuts = Cuts();
  for (size_t from = 0; from < cuts.size(); ++from) {
    const std::string dir = Directory(absl::StrCat("stages-", from));
    RunRanks(5, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const Program saved,
                          ProgramOf(world, cuts[from], /*filled=*/true));
      SaveStats stats;
      CH_RETURN_IF_ERROR(SaveCheckpoint(
          world, saved.state, dir,
          {.overwrite = true, .union_of_ranks = true, .stats = &stats}));
      CH_EXPECT_EQ(stats.files, 1);
      const std::string async = dir + "-async";
      AsyncCheckpointer saver(world, {.union_of_ranks = true});
      CH_RETURN_IF_ERROR(saver.Save(saved.state, async, /*overwrite=*/true));
      CH_RETURN_IF_ERROR(saver.Wait());
      for (const std::vector<Stage>& to : cuts) {
        CH_ASSIGN_OR_RETURN(Program loaded,
                            ProgramOf(world, to, /*filled=*/false));
        LoadStats read;
        CH_RETURN_IF_ERROR(LoadCheckpoint(*loaded.world, loaded.state,
                                          &to == &cuts[from] ? async : dir,
                                          {.partial = true, .stats = &read}));
        CH_EXPECT_TRUE(read.missing.empty());
        ExpectFilled(loaded.state, to, world.rank());
      }
      return absl::OkStatus();
    });
  }
}

TEST(StageCheckpointTest, ErrorsNameTheEntryOnEveryRank) {
  struct Case {
    const char* says;
    void (*change)(World& world, nn::StateDict& state);
  };
  const Case cases[] = {
      {"\"layers.0.bias\" is in the states of ranks whose other entries differ",
       [](World& world, nn::StateDict& state) {
         if (world.rank() < 2) return;
         CH_EXPECT_OK(state.Add("layers.0.bias", Ones({2})));
       }},
      {"\"layers.3.norm\" is on mesh(fsdp=3, ranks=[4,2,3]), but of its ranks "
       "only 2 have a state with these names",
       [](World& world, nn::StateDict& state) {
         if (world.rank() != 2) return;
         CH_EXPECT_OK(state.Add("another", Ones({2})));
       }},
      {"the value \"step\" differs between ranks",
       [](World& world, nn::StateDict& state) {
         if (world.rank() >= 2) *state.Find("step") = int64_t{13};
       }},
      {"ranks have different states: step = 12 on rank 0, step = 13 on rank 1",
       [](World& world, nn::StateDict& state) {
         if (world.rank() == 1) *state.Find("step") = int64_t{13};
       }},
      {"\"layers.3.bias\" [0:2] on rank 3 holds other values than on rank 2",
       [](World& world, nn::StateDict& state) {
         if (world.rank() == 2) *state.Find("layers.3.bias") = Ones({2});
       }},
      {"\"layers.4.bias\" is an undefined tensor",
       [](World& world, nn::StateDict& state) {
         if (world.rank() == 3) *state.Find("layers.4.bias") = Tensor();
       }},
  };
  for (const Case& c : cases) {
    RunRanks(5, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(Program program,
                          ProgramOf(world, Cuts()[0], /*filled=*/true));
      c.change(world, program.state);
      const std::string message(SaveCheckpoint(world, program.state,
                                               Directory("refused"),
                                               {.union_of_ranks = true})
                                    .message());
      CH_EXPECT_THAT(message, HasSubstr(c.says));
      return absl::OkStatus();
    });
  }
}

// Only rank 1 would compare its replica with rank 0's.
TEST(StageCheckpointTest, AStageCannotReadOtherStagesTensors) {
  const std::string dir = Directory("beyond");
  RunRanks(2, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(World* const stage, world.Subset({world.rank()}));
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"all", 2}}));
    nn::StateDict state;
    CH_RETURN_IF_ERROR(
        state.Add("w", DistributeTensor(Ones({3}), mesh,
                                        Layout::Replicated(mesh.layout(), 1))));
    CH_RETURN_IF_ERROR(SaveCheckpoint(world, state, dir, {.overwrite = true}));
    const absl::Status status = LoadCheckpoint(*stage, state, dir);
    CH_EXPECT_TRUE(absl::IsInvalidArgument(status));
    CH_EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(absl::StrCat(
            "\"w\" is on mesh(all=2), whose rank ", 1 - world.rank(),
            " is not in the world that loads it (ranks ", world.rank(), ")")));
    return LoadCheckpoint(world, state, dir);
  });
}

TEST(StageCheckpointTest, DifferentNamesNeedUnionOfRanks) {
  RunRanks(5, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const Program program,
                        ProgramOf(world, Cuts()[0], /*filled=*/true));
    const absl::Status status =
        SaveCheckpoint(world, program.state, Directory("refused"));
    CH_EXPECT_TRUE(absl::IsFailedPrecondition(status));
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("ranks have different states"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::checkpoint
