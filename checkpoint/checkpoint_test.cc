// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_system_testutil.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns a tensor whose elements depend on its name and their indices.
Tensor Whole(const std::string& name, Shape sizes, DType dtype) {
  std::vector<float> values(static_cast<size_t>(NumElements(sizes)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 113 + name.size() * 128);
  }
  return ToDType(FromValues<float>(sizes, values), dtype);
}

/// The layout of a state: mesh, and placements by name.
struct Case {
  std::string name;
  std::vector<int> mesh;
  std::vector<Placement> matrix;
  std::vector<Placement> vector;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"one", {1}, {Replicate()}, {Replicate()}},
    {"rows", {4}, {Shard(0)}, {Shard(0)}},
    {"columns", {3}, {Shard(1)}, {Replicate()}},
    {"fsdp_tp",
     {2, 2},
     {StridedShard(0, 2), Shard(0)},
     {Shard(0), Replicate()}},
    {"crossed", {2, 3}, {Shard(1), Shard(0)}, {Replicate(), Shard(0)}},
    {"hsdp",
     {2, 1, 3},
     {Replicate(), Replicate(), Shard(0)},
     {Replicate(), Replicate(), Shard(0)}},
    {"four_axes",
     {1, 2, 1, 2},
     {Replicate(), Shard(0), Replicate(), Shard(1)},
     {Shard(0), Replicate(), Replicate(), Shard(0)}},
};

/// Returns the state's whole tensors. Sizes have no common divisors.
std::vector<std::pair<std::string, Tensor>> Wholes() {
  std::vector<std::pair<std::string, Tensor>> wholes;
  for (const auto& [name, sizes, dtype] :
       std::vector<std::tuple<std::string, Shape, DType>>{
           {"model.embed", {13, 7}, kFloat32},
           {"model.head", {7, 5}, kBFloat16},
           {"model.norm", {7}, kFloat32},
           {"model.empty", {0, 3}, kFloat32},
           {"optimizer.m.embed", {13, 7}, kFloat64},
           {"optimizer.step", {2}, kInt64}}) {
    wholes.emplace_back(name, Whole(name, sizes, dtype));
  }
  return wholes;
}

/// Returns the state in the layout of `c`, with its values or zeros.
absl::StatusOr<nn::StateDict> StateOf(const Case& c, const DeviceMesh& mesh,
                                      bool zeros) {
  nn::StateDict state;
  for (const auto& [name, whole] : Wholes()) {
    Tensor values = zeros ? Zeros(whole.sizes(), whole.dtype()) : whole;
    if (name != "optimizer.step") {
      const auto& placements = whole.ndim() == 2 ? c.matrix : c.vector;
      CH_ASSIGN_OR_RETURN(
          const Layout layout,
          Layout::FromPlacements(mesh.layout(), whole.ndim(), placements));
      values = DistributeTensor(values, mesh, layout);
    }
    CH_RETURN_IF_ERROR(state.Add(name, values));
  }
  CH_RETURN_IF_ERROR(state.Add("data.position", zeros ? int64_t{0} : 4096));
  CH_RETURN_IF_ERROR(state.Add("schedule.lr", zeros ? 0.0 : 1.0 / 3));
  CH_RETURN_IF_ERROR(state.Add("seed", std::string(zeros ? "" : "\xff\n")));
  return state;
}

void ExpectWholes(const nn::StateDict& state) {
  for (const auto& [name, whole] : Wholes()) {
    const Tensor got = FullTensor(*state.Get<Tensor>(name));
    CH_EXPECT_EQ(got.ToVector<double>(), whole.ToVector<double>()) << name;
  }
  CH_EXPECT_EQ(*state.Get<int64_t>("data.position"), 4096);
  CH_EXPECT_EQ(*state.Get<double>("schedule.lr"), 1.0 / 3);
  CH_EXPECT_EQ(*state.Get<std::string>("seed"), "\xff\n");
}

void Save(const Case& c, const std::string& dir) {
  OnMesh(MeshAxes(c.mesh), [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const nn::StateDict state, StateOf(c, mesh, false));
    const int rank = mesh.world().rank();
    SaveStats stats;
    CH_RETURN_IF_ERROR(
        SaveCheckpoint(mesh.world(), state, dir, {.stats = &stats}));
    CH_ASSIGN_OR_RETURN(const SavePlan plan, PlanOf(mesh.world(), state));
    CH_EXPECT_EQ(stats.bytes_written, plan.BytesOf(rank));
    CH_EXPECT_EQ(stats.files, plan.FileOf(rank) < 0 ? 0 : 1);
    // The size of the elements in the file, after its header.
    int64_t in_file = 0;
    if (stats.files == 1) {
      const std::string file =
          absl::StrCat(dir, "/", plan.index.files[plan.FileOf(rank)]);
      uint64_t header = 0;
      std::ifstream(file).read(reinterpret_cast<char*>(&header), 8);
      in_file = static_cast<int64_t>(fs::file_size(file) - header) - 8;
    }
    CH_EXPECT_EQ(stats.bytes_written, in_file);
    return absl::OkStatus();
  });
}

/// Returns the bytes that a rank needs of the stored state.
int64_t BytesNeeded(const nn::StateDict& state) {
  int64_t bytes = 0;
  for (const auto& [name, whole] : Wholes()) {
    bytes +=
        LocalTensor(*state.Get<Tensor>(name)).numel() * SizeOf(whole.dtype());
  }
  return bytes;
}

class CheckpointPairTest
    : public ::testing::TestWithParam<std::tuple<Case, Case>> {};

TEST_P(CheckpointPairTest, IsTheSameStateOnAnotherMesh) {
  const auto& [from, to] = GetParam();
  const std::string dir = FreshDir(absl::StrCat("pair_", from.name, to.name));
  Save(from, dir);
  OnMesh(MeshAxes(to.mesh), [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(nn::StateDict state, StateOf(to, mesh, true));
    LoadStats stats;
    CH_RETURN_IF_ERROR(
        LoadCheckpoint(mesh.world(), state, dir, {.stats = &stats}));
    ExpectWholes(state);
    CH_EXPECT_EQ(stats.bytes_read, BytesNeeded(state));
    CH_EXPECT_EQ(stats.bytes_hashed, stats.bytes_read);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointPairTest,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::ValuesIn(kCases)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_to_" +
                                  std::get<1>(info.param).name;
                         });

TEST(CheckpointTest, HashesDoNotDependOnTheMesh) {
  std::vector<uint64_t> expected;
  for (const Case& c : kCases) {
    const std::string dir = FreshDir("hashes_" + c.name);
    Save(c, dir);
    const auto index = ReadIndex(dir);
    ASSERT_TRUE(index.ok()) << index.status();
    std::vector<uint64_t> hashes;
    for (const IndexedTensor& tensor : index->tensors) {
      hashes.push_back(tensor.hash.value());
    }
    if (expected.empty()) expected = hashes;
    EXPECT_EQ(hashes, expected) << c.name;
  }
}

TEST(CheckpointTest, TheFilesHoldEachElementOnce) {
  const std::string dir = FreshDir("once");
  Save(kCases[5], dir);
  const auto index = ReadIndex(dir);
  ASSERT_TRUE(index.ok()) << index.status();
  int64_t bytes = 0;
  for (const std::string& file : index->files) {
    const auto opened = SafetensorsFile::Open(dir + "/" + file);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ((*opened)->metadata().at("format"), "pt");
    for (const TensorInfo& info : (*opened)->tensors()) bytes += info.bytes();
  }
  EXPECT_EQ(bytes, index->bytes());
  // There are no other files.
  const auto files = std::distance(fs::directory_iterator(dir), {});
  EXPECT_EQ(files, static_cast<int64_t>(index->files.size()) + 1);
}

/// Loads `dir` on two ranks; returns the status of each.
std::vector<absl::Status> LoadOn2(const std::string& dir,
                                  const LoadCheckpointOptions& options = {}) {
  std::vector<absl::Status> got(2);
  const Case c = {"", {2}, {Shard(0)}, {Shard(0)}};
  OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(nn::StateDict state, StateOf(c, mesh, true));
    got[mesh.world().rank()] =
        LoadCheckpoint(mesh.world(), state, dir, options);
    return absl::OkStatus();
  });
  EXPECT_EQ(got[0], got[1]);
  return got;
}

TEST(CheckpointTest, EveryRankReportsAFlippedBit) {
  CH_SKIP_ON(TestEngine::kMpi, "changes files between jobs, as one process");
  const std::string dir = FreshDir("flipped");
  Save(kCases[1], dir);
  FlipLastBit(dir + "/" + DataFileName(3, 4));
  const absl::Status status = LoadOn2(dir)[0];
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("differs from what was saved"), HasSubstr("saved as")));
  EXPECT_TRUE(LoadOn2(dir, {.verify = false})[0].ok());
}

TEST(CheckpointTest, ReportsAMissingFileBeforeReading) {
  CH_SKIP_ON(TestEngine::kMpi, "changes files between jobs, as one process");
  const std::string dir = FreshDir("missing");
  Save(kCases[1], dir);
  // The last rank but one wrote it, and only the second of two ranks reads it.
  fs::remove(dir + "/" + DataFileName(2, 4));
  const absl::Status status = LoadOn2(dir)[0];
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("on rank 1: "),
                    HasSubstr("state-00003-of-00004.safetensors is missing")));
}

TEST(CheckpointTest, AFileOfAnotherCheckpointIsFound) {
  CH_SKIP_ON(TestEngine::kMpi, "changes files between jobs, as one process");
  const std::string dir = FreshDir("mixed");
  Save(kCases[1], dir);
  const std::string other = FreshDir("mixed_other");
  Save(kCases[4], other);
  fs::copy_file(other + "/" + DataFileName(1, 6),
                dir + "/" + DataFileName(1, 4),
                fs::copy_options::overwrite_existing);
  const absl::Status status = LoadOn2(dir)[0];
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("lacks \"model."));
}

TEST(CheckpointTest, ReportsMissingHashes) {
  CH_SKIP_ON(TestEngine::kMpi, "changes files between jobs, as one process");
  const std::string dir = FreshDir("unhashed");
  Save(kCases[0], dir);
  const auto index = ReadIndex(dir);
  CheckpointIndex without = *index;
  for (IndexedTensor& tensor : without.tensors) tensor.hash.reset();
  std::ofstream(dir + "/" + kIndexFile) << *FormatIndex(without);
  const absl::Status status = LoadOn2(dir)[0];
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no hashes"));
  EXPECT_TRUE(LoadOn2(dir, {.verify = false})[0].ok());
}

/// Loads the sample into a state after `change`; returns the status.
/// \param check receives the loaded state.
absl::Status LoadInto(
    const std::function<void(nn::StateDict&)>& change,
    const LoadCheckpointOptions& options = {},
    const std::function<void(const nn::StateDict&)>& check = nullptr) {
  const std::string dir = FreshDir("sample");
  Save(kCases[0], dir);
  absl::Status got;
  OnMesh({{"a", 1}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(nn::StateDict state, StateOf(kCases[0], mesh, true));
    nn::StateDict changed = state;
    change(changed);
    got = LoadCheckpoint(mesh.world(), changed, dir, options);
    if (!got.ok()) {
      CH_EXPECT_EQ(
          FullTensor(*state.Get<Tensor>("model.norm")).ToVector<float>(),
          std::vector<float>(7, 0));
      CH_EXPECT_EQ(*state.Get<int64_t>("data.position"), 0);
    } else if (check != nullptr) {
      check(changed);
    }
    return absl::OkStatus();
  });
  return got;
}

TEST(CheckpointTest, NamesMismatches) {
  CH_SKIP_ON(TestEngine::kMpi, "changes files between jobs, as one process");
  const struct {
    const char* name;
    nn::StateValue value;
    const char* says;
  } cases[] = {
      {"model.norm", Tensor(Zeros({8}, kFloat32)),
       "\"model.norm\" has shape [7], and the state's is [8]"},
      {"model.norm", Tensor(Zeros({7}, kFloat64)),
       "\"model.norm\" is f32, and the state's is f64; "},
      {"model.norm", int64_t{1}, "\"model.norm\" is a tensor, but"},
      {"model.norm", Tensor(), "\"model.norm\" is an undefined tensor"},
      {"data.position", 1.0, "\"data.position\" has a different type"},
      {"data.position", Tensor(Zeros({}, kInt64)),
       "\"data.position\" has a different type"},
      {"more", int64_t{1}, "lacks more"},
  };
  for (const auto& c : cases) {
    const absl::Status status = LoadInto([&](nn::StateDict& state) {
      if (state.Find(c.name) == nullptr) {
        ASSERT_TRUE(state.Add(c.name, c.value).ok());
      }
      *state.Find(c.name) = c.value;
    });
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
}

Tensor WholeOf(const std::string& name) {
  for (const auto& [own, tensor] : Wholes()) {
    if (own == name) return tensor;
  }
  return Tensor();
}

Tensor LocalOf(const nn::StateDict& state, const std::string& name) {
  return LocalTensor(std::get<Tensor>(*state.Find(name)));
}

TEST(CheckpointTest, ConvertsAndLoadsPartiallyIfRequested) {
  CH_SKIP_ON(TestEngine::kMpi, "changes files between jobs, as one process");
  // To more bits, to fewer, from fewer.
  EXPECT_TRUE(
      LoadInto(
          [](nn::StateDict& state) {
            *state.Find("model.norm") = Zeros({7}, kFloat64);
            *state.Find("model.embed") = Zeros({13, 7}, kBFloat16);
            *state.Find("model.head") = Zeros({7, 5}, kFloat32);
          },
          {.convert_dtype = true},
          [](const nn::StateDict& got) {
            for (const char* name :
                 {"model.norm", "model.embed", "model.head"}) {
              const Tensor tensor = LocalOf(got, name);
              CH_EXPECT_EQ(
                  tensor.ToVector<double>(),
                  ToDType(WholeOf(name), tensor.dtype()).ToVector<double>())
                  << name;
            }
          })
          .ok());
  // A part of the stored entries, and one more.
  const auto few = [](nn::StateDict& state) {
    nn::StateDict part;
    ASSERT_TRUE(part.Add("model.norm", *state.Find("model.norm")).ok());
    ASSERT_TRUE(part.Add("more", int64_t{7}).ok());
    ASSERT_TRUE(part.Add("most", Full({2}, 3.0)).ok());
    state = part;
  };
  LoadStats stats;
  EXPECT_TRUE(LoadInto(few, {.partial = true, .stats = &stats},
                       [](const nn::StateDict& got) {
                         CH_EXPECT_EQ(
                             LocalOf(got, "model.norm").ToVector<float>(),
                             WholeOf("model.norm").ToVector<float>());
                         CH_EXPECT_EQ(LocalOf(got, "most").ToVector<float>(),
                                      std::vector<float>(2, 3));
                         CH_EXPECT_EQ(*got.Get<int64_t>("more"), 7);
                       })
                  .ok());
  EXPECT_EQ(stats.bytes_read, 7 * 4);
  const auto unexpected =
      ElementsAre("data.position", "model.embed", "model.empty", "model.head",
                  "optimizer.m.embed", "optimizer.step", "schedule.lr", "seed");
  EXPECT_THAT(stats.missing, ElementsAre("more", "most"));
  EXPECT_THAT(stats.unexpected, unexpected);
  stats = {};
  const absl::Status status = LoadInto(few, {.stats = &stats});
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("lacks more, most"),
                    HasSubstr("data.position, model.embed, model.empty and 5 "
                              "more")));
  EXPECT_THAT(stats.missing, ElementsAre("more", "most"));
  EXPECT_THAT(stats.unexpected, unexpected);
}

TEST(CheckpointTest, StatesThatDifferBetweenRanksAreRefused) {
  const std::string dir = FreshDir("differ");
  RunRanks(3, [&](World& world) -> absl::Status {
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("same", int64_t{1}));
    CH_RETURN_IF_ERROR(
        state.Add("step", int64_t{world.rank() == 2 ? 101 : 100}));
    const absl::Status status = SaveCheckpoint(world, state, dir);
    CH_EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("step = 100 on rank 0, step = 101 on rank 2"));
    return absl::OkStatus();
  });
  EXPECT_FALSE(fs::exists(dir));
}

TEST(CheckpointTest, PartialTensorsAreRefusedByName) {
  const std::string dir = FreshDir("partial");
  OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    nn::StateDict state;
    const Layout layout =
        Layout::Replicated(mesh.layout(), 1).WithPartial(0, ReduceOp::kSum);
    CH_RETURN_IF_ERROR(
        state.Add("sum", MakeDTensor(Zeros({4}, kFloat32), mesh, layout, {4})));
    CH_EXPECT_THAT(
        std::string(SaveCheckpoint(mesh.world(), state, dir).message()),
        HasSubstr("\"sum\" is partial"));
    return absl::OkStatus();
  });
  EXPECT_FALSE(fs::exists(dir));
}

/// Returns a state that each slice of a mesh {"dp", 2}, {"tp", 3} has.
absl::StatusOr<nn::StateDict> StateOnSlice(const DeviceMesh& mesh, bool zeros) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  return StateOf(kCases[1], tp, zeros);
}

TEST(CheckpointTest, SavesEachSliceOnce) {
  const std::string dir = FreshDir("slices");
  OnMesh({{"dp", 2}, {"tp", 3}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const nn::StateDict state, StateOnSlice(mesh, false));
    CH_RETURN_IF_ERROR(SaveCheckpoint(mesh.world(), state, dir));
    CH_ASSIGN_OR_RETURN(nn::StateDict other, StateOnSlice(mesh, true));
    CH_RETURN_IF_ERROR(LoadCheckpoint(mesh.world(), other, dir));
    ExpectWholes(other);
    return absl::OkStatus();
  });
  const auto index = ReadIndex(dir);
  ASSERT_TRUE(index.ok()) << index.status();
  int64_t bytes = 0;
  for (const auto& [name, whole] : Wholes()) {
    bytes += whole.numel() * SizeOf(whole.dtype());
  }
  EXPECT_EQ(index->bytes(), bytes);
  EXPECT_EQ(index->files.size(), 6u) << "both slices write";
  OnMesh({{"a", 4}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(nn::StateDict state, StateOf(kCases[1], mesh, true));
    CH_RETURN_IF_ERROR(LoadCheckpoint(mesh.world(), state, dir));
    ExpectWholes(state);
    return absl::OkStatus();
  });
}

TEST(CheckpointTest, SavesTensorsOfEachMeshOnce) {
  const std::string dir = FreshDir("meshes");
  RunRanks(4, [&](World& world) -> absl::Status {
    // Every rank creates both meshes and has its state on its own.
    CH_ASSIGN_OR_RETURN(DeviceMesh mesh,
                        InitDeviceMesh(world, {{"tp", 2}}, {0, 2}));
    CH_ASSIGN_OR_RETURN(const DeviceMesh other,
                        InitDeviceMesh(world, {{"tp", 2}}, {3, 1}));
    if (world.rank() % 2 == 1) mesh = other;
    for (const bool zeros : {false, true}) {
      CH_ASSIGN_OR_RETURN(nn::StateDict state, StateOf(kCases[1], mesh, zeros));
      CH_RETURN_IF_ERROR(zeros ? LoadCheckpoint(world, state, dir)
                               : SaveCheckpoint(world, state, dir));
      if (zeros) ExpectWholes(state);
    }
    return absl::OkStatus();
  });
}

// Experts with the same names that belong to single ranks or slices.
TEST(CheckpointTest, CopiesThatDifferAreRefusedByName) {
  const std::string dir = FreshDir("copies");
  OnMesh({{"dp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    const auto slice = (*mesh.coordinate())[0];
    nn::StateDict on_slices;
    CH_RETURN_IF_ERROR(on_slices.Add(
        "experts.w",
        DistributeTensor(Full({5, 2}, slice + 1.0, kFloat32), tp,
                         *Layout::FromPlacements(tp.layout(), 2, {Shard(0)}))));
    absl::Status status = SaveCheckpoint(mesh.world(), on_slices, dir);
    CH_EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("\"experts.w\" [0:3, 0:2] on rank 2 holds other "
                             "values than on rank 0"));
    nn::StateDict plain;
    CH_RETURN_IF_ERROR(plain.Add(
        "expert", Full({3}, mesh.world().rank() == 3 ? 1.0 : 2.0, kFloat32)));
    status = SaveCheckpoint(mesh.world(), plain, dir);
    CH_EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("\"expert\" [0:3] on rank 3 holds other values than on rank "
                  "0"));
    return absl::OkStatus();
  });
  EXPECT_FALSE(fs::exists(dir));
  EXPECT_FALSE(fs::exists(dir + ".saving"));
}

TEST(CheckpointTest, OverwritesADirectoryIfRequested) {
  const std::string dir = FreshDir("replaced");
  Save(kCases[1], dir);
  std::ofstream(dir + "/notes") << "mine";
  RunRanks(2, [&](World& world) -> absl::Status {
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("step", int64_t{7}));
    CH_EXPECT_TRUE(absl::IsAlreadyExists(SaveCheckpoint(world, state, dir)));
    return SaveCheckpoint(world, state, dir, {.overwrite = true});
  });
  EXPECT_EQ(ReadIndex(dir)->values.size(), 1u);
  EXPECT_TRUE(fs::exists(dir + "/notes"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), {}), 2);
}

TEST(CheckpointTest, ReportsADirectoryWithoutACheckpoint) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  const absl::Status status = LoadOn2(::testing::TempDir() + "nowhere")[0];
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

}  // namespace
}  // namespace crosshatch::checkpoint
