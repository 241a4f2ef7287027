// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/offline.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/file_system_testutil.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/checkpoint/weights_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Returns 0, 1, 2, ... except for one element, `odd`.
Tensor Counting(Shape sizes, double odd) {
  std::vector<float> values(static_cast<size_t>(NumElements(sizes)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  values[5] = static_cast<float>(odd);
  return FromValues<float>(sizes, values);
}

/// Saves a model and a step on two by two ranks; returns the directory.
std::string Save(const std::string& name, double odd = 5, int64_t step = 7) {
  const std::string dir = FreshDir(name);
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(
        const Layout layout,
        Layout::FromPlacements(mesh.layout(), 2, {Shard(0), Shard(1)}));
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add(
        "model.w", DistributeTensor(Counting({5, 7}, odd), mesh, layout)));
    CH_RETURN_IF_ERROR(state.Add("model.lm_head.weight", Counting({3, 2}, 5)));
    CH_RETURN_IF_ERROR(state.Add("model.none", Zeros({0, 2})));
    CH_RETURN_IF_ERROR(state.Add("optimizer.n", Zeros({4}, kInt64)));
    CH_RETURN_IF_ERROR(state.Add("step", step));
    return SaveCheckpoint(mesh.world(), state, dir);
  });
  return dir;
}

TEST(OfflineTest, InspectsByTheIndexAlone) {
  const std::string dir = Save("inspected");
  for (int i = 0; i < 4; ++i) fs::remove(dir + "/" + DataFileName(i, 4));
  const auto text = Inspect(dir);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text,
              AllOf(HasSubstr("4 tensors, 196 bytes in 4 files of 4 ranks; 1 "
                              "values\nstep = 7\n"),
                    HasSubstr("model.w: f32[5, 7], 4 cells, "),
                    HasSubstr("model.none: f32[0, 2], 0 cells, "),
                    HasSubstr("optimizer.n: i64[4], 1 cell, ")));
}

TEST(OfflineTest, VerifiesEveryFile) {
  const std::string dir = Save("verified");
  EXPECT_EQ(Verify(dir).value(), dir + " is as saved: 4 tensors, 196 bytes\n");
  FlipLastBit(dir + "/" + DataFileName(1, 4));
  fs::remove(dir + "/" + DataFileName(3, 4));
  const absl::Status status = Verify(dir).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("state-00004-of-00004.safetensors is missing"));
  FlipLastBit(dir + "/" + DataFileName(1, 4));
  fs::copy(Save("verified_other") + "/" + DataFileName(3, 4), dir);
  FlipLastBit(dir + "/" + DataFileName(1, 4));
  EXPECT_THAT(std::string(Verify(dir).status().message()),
              HasSubstr("\" differs from what was saved (hash "));
}

TEST(OfflineTest, DiffPrintsDifferences) {
  const std::string a = Save("diff_a");
  EXPECT_EQ(Diff(a, a).value(), "");
  EXPECT_EQ(Diff(a, Save("diff_b", 5.25, 8)).value(),
            "model.w: 1 of 35 elements differ, most by 0.25, at [0, 5]\n"
            "step: 7 against 8\n");
  const std::string c = FreshDir("diff_c");
  RunRanks(1, [&](World& world) -> absl::Status {
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("model.w", Zeros({5, 6})));
    CH_RETURN_IF_ERROR(state.Add("step", 7.0));
    return SaveCheckpoint(world, state, c);
  });
  EXPECT_EQ(Diff(a, c).value(),
            "model.lm_head.weight: f32[3, 2] against missing\n"
            "model.none: f32[0, 2] against missing\n"
            "model.w: f32[5, 7] against f32[5, 6]\n"
            "optimizer.n: i64[4] against missing\n"
            "step: 7 against 7.0\n");
}

TEST(OfflineTest, ReshardsToAnyNumberOfRanks) {
  const std::string from = Save("reshard_from");
  for (const int ranks : {1, 3, 8}) {
    const std::string to = FreshDir(absl::StrCat("reshard_", ranks));
    const absl::Status status = Reshard(from, to, ranks);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Diff(from, to).value(), "");
    EXPECT_TRUE(Verify(to).ok());
    const auto index = ReadIndex(to);
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(index->ranks, ranks);
    // Chunks of 5 rows: ceil(5 / ranks) each.
    EXPECT_EQ(index->Find("model.w")->num_cells(), ranks == 8 ? 5 : ranks);
    EXPECT_TRUE(absl::IsAlreadyExists(Reshard(from, to, ranks)));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Reshard(from, from + "_", 0)));
}

TEST(OfflineTest, DoesNotRewriteDamagedData) {
  const std::string from = Save("damaged_from");
  FlipLastBit(from + "/" + DataFileName(0, 4));
  const std::string to = FreshDir("damaged_to");
  EXPECT_TRUE(absl::IsDataLoss(Reshard(from, to, 2)));
  EXPECT_TRUE(absl::IsDataLoss(ConvertToHuggingFace(from, to)));
  EXPECT_FALSE(fs::exists(to));
  EXPECT_FALSE(fs::exists(to + ".saving"));
}

TEST(OfflineTest, BlocksOfLargeTensorsAreAllOfThem) {
  // 21 MB, more than a block: in rows, and in parts of one row.
  const std::string from = FreshDir("large");
  RunRanks(2, [&](World& world) -> absl::Status {
    nn::StateDict state;
    CH_RETURN_IF_ERROR(state.Add("model.rows", Counting({3, 1'750'000}, 1)));
    CH_RETURN_IF_ERROR(state.Add("model.row", Counting({1, 5'250'001}, 2)));
    return SaveCheckpoint(world, state, from);
  });
  const std::string to = FreshDir("large_again");
  const absl::Status status = Reshard(from, to, 2);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Diff(from, to).value(), "");
}

TEST(OfflineTest, ConvertsToOneHuggingFaceFileOrSeveral) {
  const std::string from = Save("convert_from");
  for (const int64_t most : {1'000'000, 100}) {
    const std::string to = FreshDir(absl::StrCat("convert_", most));
    const absl::Status status =
        ConvertToHuggingFace(from, to, {.max_file_bytes = most});
    ASSERT_TRUE(status.ok()) << status;
    const auto stored = OpenWeights(to);
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(stored->size(), 3u);
    // Names of modules; only a family has others in files.
    EXPECT_EQ(stored->count("lm_head.weight"), 1u);
    EXPECT_EQ(stored->count("none"), 1u);
    const std::vector<float> values = ValuesOf(stored->at("w"));
    ASSERT_EQ(values.size(), 35u);
    for (int i = 0; i < 35; ++i) EXPECT_EQ(values[i], i);
  }
  EXPECT_TRUE(fs::exists(::testing::TempDir() +
                         "convert_100/model-00002-of-00002.safetensors"));
  EXPECT_TRUE(absl::IsNotFound(ConvertToHuggingFace(
      from, FreshDir("convert_none"), {.prefix = "other."})));
}

// Phi-3's parameters are separate in a run and merged in files.
TEST(OfflineTest, ConvertsByTheNamesOfAFamily) {
  const auto save = [](const std::string& name,
                       const std::vector<std::pair<std::string, Shape>>& of) {
    const std::string dir = FreshDir(name);
    OnMesh({2}, [&](const DeviceMesh& mesh) -> absl::Status {
      nn::StateDict state;
      float first = 0;
      for (const auto& [tensor, sizes] : of) {
        std::vector<float> values(static_cast<size_t>(NumElements(sizes)));
        for (float& value : values) value = first++;
        CH_RETURN_IF_ERROR(state.Add(
            tensor,
            DistributeTensor(FromValues<float>(sizes, values), mesh,
                             Layout::Replicated(mesh.layout(),
                                                static_cast<int>(sizes.size()))
                                 .WithShard(0, 0))));
      }
      return SaveCheckpoint(mesh.world(), state, dir);
    });
    return dir;
  };
  const std::string at = "model.layers.7.self_attn.";
  const ConvertOptions phi3 = {.names = LlamaNames(nn::LlamaFamily::kPhi3)};
  const std::string to = FreshDir("merged");
  const absl::Status status =
      ConvertToHuggingFace(save("apart", {{at + "q_proj.weight", {5, 2}},
                                          {at + "k_proj.weight", {3, 2}},
                                          {at + "v_proj.weight", {3, 2}},
                                          {"model.norm.weight", {2}},
                                          {"model.lm_head.weight", {1, 2}}}),
                           to, phi3);
  ASSERT_TRUE(status.ok()) << status;
  const auto stored = OpenWeights(to);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->size(), 3u);
  EXPECT_EQ(stored->count("lm_head.weight"), 1u);
  EXPECT_EQ(stored->count("model.norm.weight"), 1u);
  const StoredTensor& merged = stored->at(at + "qkv_proj.weight");
  ASSERT_EQ(merged.info().sizes, Shape({11, 2}));
  const std::vector<float> values = ValuesOf(merged);
  for (int i = 0; i < 22; ++i) EXPECT_EQ(values[i], i);

  const auto refusal = [&](const std::vector<std::pair<std::string, Shape>>& of,
                           const ConvertOptions& options) {
    return std::string(ConvertToHuggingFace(save("refused", of),
                                            FreshDir("refused_to"), options)
                           .message());
  };
  const std::string no_keys = "the parts of tensor \"" + at +
                              "qkv_proj.weight\" cannot be merged: no tensor "
                              "is part 1";
  EXPECT_EQ(
      refusal({{at + "q_proj.weight", {5, 2}}, {at + "v_proj.weight", {3, 2}}},
              phi3),
      no_keys);
  // Also if the last parts are missing.
  EXPECT_EQ(refusal({{at + "q_proj.weight", {5, 2}}}, phi3), no_keys);
  EXPECT_THAT(refusal({{"model.layers.0.mlp.gate_proj.weight", {4, 2}}}, phi3),
              HasSubstr("gate_up_proj.weight\" cannot be merged: no tensor"));
  EXPECT_THAT(refusal({{at + "q_proj.weight", {5, 2}},
                       {at + "k_proj.weight", {3, 4}},
                       {at + "v_proj.weight", {3, 2}}},
                      phi3),
              HasSubstr("k_proj.weight is f32[3, 4]"));
  EXPECT_THAT(refusal({{"model.a", {2}}, {"model.b", {2}}},
                      {.names = WeightNames{.rules = {{"*", "one"}}}}),
              HasSubstr("tensor \"one\" cannot be merged: a and b are both"));
  EXPECT_THAT(refusal({{"model.a", {2, 2}}},
                      {.names = WeightNames{.rules = {{"a", "t", 0, true}}}}),
              HasSubstr("\"model.a\" would have to be transposed"));
}

}  // namespace
}  // namespace crosshatch::checkpoint
