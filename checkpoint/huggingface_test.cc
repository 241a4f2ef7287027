// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/huggingface.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/hf_config.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/checkpoint/weights_testutil.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/initializer.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

constexpr char kTied[] = "tests/conformance/llama/tied";
constexpr char kUntied[] = "tests/conformance/llama/gqa";

TEST(HuggingFaceTest, SavesTheLoadedModel) {
  for (const char* source : {kTied, kUntied}) {
    const std::string dir = FreshDir("saved");
    const absl::Status status = StatusOfRanks(1, [&](World& world) {
      CH_ASSIGN_OR_RETURN(const nn::LlamaConfig config, LoadConfig(source));
      nn::Llama model(config);
      CH_RETURN_IF_ERROR(LoadHuggingFace(model, source));
      return SaveHuggingFace(world, model, dir);
    });
    ASSERT_TRUE(status.ok()) << status;
    ExpectSameWeights(source, dir);
    const auto before = LoadConfig(source);
    const auto after = LoadConfig(dir);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(*before, *after);
    EXPECT_FALSE(fs::exists(dir + ".saving"));
  }
}

TEST(HuggingFaceTest, LoadsAndSavesAnyLayout) {
  const std::string dir = FreshDir("sharded");
  const absl::Status status = StatusOfRanks(4, [&](World& world) {
    CH_ASSIGN_OR_RETURN(DeviceMesh mesh,
                        InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}}));
    CH_ASSIGN_OR_RETURN(const nn::LlamaConfig config, LoadConfig(kTied));
    nn::Llama model(config);
    int i = 0;
    for (nn::Parameter* parameter : model.Parameters()) {
      // Each parameter has another layout: rows over both axes in either order,
      // columns over one, replicated over one.
      Layout layout =
          Layout::Replicated(mesh.layout(), parameter->data().ndim());
      layout = layout.WithShard(i % 2, 0);
      if (i % 3 == 0) layout = layout.WithShard(1 - i % 2, 0);
      if (i % 3 == 1) {
        layout = layout.WithShard(1 - i % 2, parameter->data().ndim() - 1);
      }
      ++i;
      const Box box =
          layout.LocalBox(parameter->data().sizes(), *mesh.coordinate());
      parameter->set_data(
          MakeDTensor(Deferred(box.sizes, kFloat32, parameter->name()), mesh,
                      layout, parameter->data().sizes()));
    }
    CH_RETURN_IF_ERROR(LoadHuggingFace(model, kTied));
    return SaveHuggingFace(world, model, dir);
  });
  ASSERT_TRUE(status.ok()) << status;
  ExpectSameWeights(kTied, dir);
}

/// Returns the values of all tensors in `dir`, sorted by name and rounded to
/// `as`. Checks that each is stored as `stored_as`.
std::vector<float> Values(const std::string& dir, DType stored_as, DType as) {
  const auto stored = OpenWeights(dir);
  EXPECT_TRUE(stored.ok()) << stored.status();
  std::vector<float> values;
  for (const auto& [name, tensor] : *stored) {
    EXPECT_EQ(tensor.info().dtype, stored_as) << name;
    const Tensor rounded = ToDType(
        ToDType(FromValues<float>(tensor.info().sizes, ValuesOf(tensor)), as),
        kFloat32);
    const std::vector<float> now = rounded.ToVector<float>();
    values.insert(values.end(), now.begin(), now.end());
  }
  return values;
}

std::string DTypeOfConfig(const std::string& dir) {
  std::ifstream file(dir + "/config.json");
  const nlohmann::json config = nlohmann::json::parse(file);
  EXPECT_EQ(config["dtype"], config["torch_dtype"]);
  return config["dtype"];
}

TEST(HuggingFaceTest, WritesAndReadsBFloat16) {
  const std::vector<float> exact = Values(kUntied, kFloat32, kFloat32);
  const std::vector<float> rounded = Values(kUntied, kFloat32, kBFloat16);
  EXPECT_NE(exact, rounded);
  const auto resave = [](const std::string& from, DType model_dtype,
                         const std::string& to, const SaveOptions& options) {
    OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const nn::LlamaConfig config, LoadConfig(from));
      nn::Llama model(config);
      model.set_dtype(model_dtype);
      CH_RETURN_IF_ERROR(LoadHuggingFace(model, from));
      return SaveHuggingFace(mesh.world(), model, to, options);
    });
  };
  const std::string halved = FreshDir("halved");
  resave(kUntied, kFloat32, halved, {.dtype = kBFloat16});
  EXPECT_EQ(Values(halved, kBFloat16, kBFloat16), rounded);
  EXPECT_EQ(DTypeOfConfig(halved), "bfloat16");

  // Loads into a float32 model and into a bfloat16 model.
  const std::string widened = FreshDir("widened");
  resave(halved, kFloat32, widened, {});
  EXPECT_EQ(Values(widened, kFloat32, kFloat32), rounded);
  EXPECT_EQ(DTypeOfConfig(widened), "float32");
  const std::string same = FreshDir("same");
  resave(halved, kBFloat16, same, {});
  EXPECT_EQ(Values(same, kBFloat16, kFloat32), rounded);
  EXPECT_EQ(DTypeOfConfig(same), "bfloat16");
  const std::string of_half = FreshDir("of_half");
  resave(kUntied, kBFloat16, of_half, {.dtype = kFloat32});
  EXPECT_EQ(Values(of_half, kFloat32, kFloat32), rounded);
  EXPECT_EQ(DTypeOfConfig(of_half), "float32");
}

/// A matrix, a running mean and a table that follows from the config.
class Normed final : public nn::Module {
 public:
  Normed()
      : weight(MakeParameter("weight", {5, 3}, nn::init::Constant(1))),
        mean(MakeBuffer("mean", {7}, nn::init::Constant(0))),
        count(MakeBuffer("count", {}, nn::init::Constant(0), kInt64)),
        table(MakeBuffer("table", {2}, nn::init::Constant(4), kFloat32,
                         /*persistent=*/false)) {
    NamedParameters();
  }
  const char* type_name() const override { return "Normed"; }

  nn::Parameter& weight;
  nn::Buffer& mean;
  nn::Buffer& count;
  nn::Buffer& table;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override { return {inputs[0]}; }
};

TEST(HuggingFaceTest, KeepsPersistentBuffers) {
  const std::string dir = FreshDir("buffers");
  const WeightNames names = {.rules = {{"*", "net.*"}}};
  RunRanks(2, [&](World& world) -> absl::Status {
    Normed model;
    CH_RETURN_IF_ERROR(model.Materialize({}));
    const NoGrad no_grad;
    FillInPlace(model.mean.data(), 0.5);
    FillInPlace(model.count.data(), 9);
    CH_RETURN_IF_ERROR(SaveWeights(world, model, dir, names, "{}"));
    Normed again;
    CH_RETURN_IF_ERROR(LoadWeights(again, dir, names));
    CH_EXPECT_EQ(again.mean.data().ToVector<float>(),
                 std::vector<float>(7, 0.5));
    CH_EXPECT_EQ(again.count.data().ToVector<int64_t>(),
                 std::vector<int64_t>{9});
    CH_EXPECT_EQ(again.table.data().ToVector<float>(),
                 std::vector<float>(2, 4));
    return absl::OkStatus();
  });
  const auto stored = OpenWeights(dir);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->size(), 3u);
  EXPECT_EQ(stored->count("net.table"), 0u);
  // A file without the buffer is an error.
  const std::string other = FreshDir("no_buffers");
  RunRanks(1, [&](World& world) -> absl::Status {
    nn::Linear linear(3, 5, {.bias = false});
    CH_RETURN_IF_ERROR(linear.Materialize({}));
    CH_RETURN_IF_ERROR(SaveWeights(world, linear, other, names, "{}"));
    Normed model;
    const absl::Status status = LoadWeights(model, other, names);
    CH_EXPECT_TRUE(absl::IsNotFound(status)) << status;
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("net.mean, net.count"));
    return absl::OkStatus();
  });
}

class DamagedDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = FreshDir("damaged");
    fs::create_directories(dir_);
    fs::copy_file(std::string(kTied) + "/config.json", dir_ + "/config.json");
  }

  /// Writes the tied model's weights, each modified by `change`, which omits a
  /// tensor by clearing its name. All elements are zero except the last two
  /// bytes of `extra`.
  template <typename Change>
  void Write(Change change, const TensorInfo* extra = nullptr, char last = 0,
             char before = 0) {
    const auto stored = OpenWeights(kTied);
    ASSERT_TRUE(stored.ok());
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : *stored) {
      TensorInfo info = tensor.info();
      change(info);
      if (!info.name.empty()) infos.push_back(info);
    }
    if (extra != nullptr) infos.push_back(*extra);
    std::vector<std::vector<char>> data;
    std::vector<std::pair<TensorInfo, const void*>> all;
    for (const TensorInfo& info : infos) {
      data.emplace_back(static_cast<size_t>(info.bytes()));
      if (extra != nullptr && info.name == extra->name) {
        data.back().back() = last;
        data.back()[data.back().size() - 2] = before;
      }
      all.push_back({info, data.back().data()});
    }
    WriteSafetensors(dir_ + "/model.safetensors", all);
  }

  absl::Status Load() {
    const auto config = LoadConfig(dir_);
    if (!config.ok()) return config.status();
    nn::Llama model(*config);
    return LoadHuggingFace(model, dir_);
  }

  std::string dir_;
};

TEST_F(DamagedDirectoryTest, NamesMissingTensors) {
  Write([](TensorInfo& info) {
    if (info.name == "model.layers.1.mlp.up_proj.weight") info.name = "";
  });
  const absl::Status status = Load();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.layers.1.mlp.up_proj.weight"));
}

TEST_F(DamagedDirectoryTest, NamesUnexpectedTensors) {
  const TensorInfo extra = {"model.layers.7.mlp.up_proj.bias", kFloat32, {5}};
  Write([](TensorInfo&) {}, &extra);
  const absl::Status status = Load();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("does not have: model.layers.7.mlp.up_proj.bias"));
}

TEST_F(DamagedDirectoryTest, TakesTheHeadOfATiedModelIfItIsTheEmbedding) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    TensorInfo extra = {"lm_head.weight", dtype, {257, 48}};
    Write([](TensorInfo&) {}, &extra);
    EXPECT_TRUE(Load().ok()) << Load();
    Write([](TensorInfo&) {}, &extra, 1);
    absl::Status status = Load();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("a lm_head.weight that differs from "
                          "model.embed_tokens.weight"));
    extra.sizes = {257, 47};
    Write([](TensorInfo&) {}, &extra);
    status = Load();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST_F(DamagedDirectoryTest, NamesAWrongShapeAndDtype) {
  Write([](TensorInfo& info) {
    if (info.name == "model.norm.weight") info.sizes = {47};
  });
  absl::Status status = Load();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("\"model.norm.weight\" has shape [47], and the model's "
                        "is [48]"));
  Write([](TensorInfo& info) {
    if (info.name == "model.norm.weight") info.dtype = kInt32;
  });
  status = Load();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has dtype I32"));
}

TEST_F(DamagedDirectoryTest, ReadsOtherFloatsAndOldLeftovers) {
  const TensorInfo extra = {
      "model.layers.0.self_attn.rotary_emb.inv_freq", kFloat32, {6}};
  Write([](TensorInfo& info) { info.dtype = kBFloat16; }, &extra);
  EXPECT_TRUE(Load().ok()) << Load();
}

// In every dtype, the last byte makes an infinity or a NaN.
TEST_F(DamagedDirectoryTest, NamesNonFiniteTensors) {
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    const TensorInfo bad = {"model.norm.weight", dtype, {48}};
    const auto others = [](TensorInfo& info) {
      if (info.name == "model.norm.weight") info.name = "";
    };
    Write(others, &bad, 0x01);
    EXPECT_TRUE(Load().ok()) << Load();
    Write(others, &bad, dtype == kFloat16 ? 0x7C : 0x7F,
          static_cast<char>(dtype == kFloat16 ? 0x00 : 0xF0));
    // The error poisons the rank.
    const absl::Status status =
        StatusOfRanks(1, [&](World&) { return Load(); });
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("/model.safetensors: tensor \"model.norm.weight\" "
                          "contains values that are not finite"));
  }
}

TEST_F(DamagedDirectoryTest, ReportsAnEmptyDirectory) {
  EXPECT_TRUE(absl::IsNotFound(Load()));
  std::ofstream(dir_ + "/model.safetensors") << "short";
  EXPECT_TRUE(absl::IsDataLoss(Load()));
}

// The experts belong to single ranks; a save would write only rank 0's.
TEST(SaveTest, NamesParametersThatDifferBetweenRanks) {
  const std::string dir = FreshDir("own");
  RunRanks(2, [&](World& world) -> absl::Status {
    nn::Llama model({.dim = 8, .layers = 1, .heads = 2, .ffn = 8, .vocab = 5});
    CH_RETURN_IF_ERROR(
        model.Materialize({.seed = world.rank() == 0 ? 1u : 2u}));
    const absl::Status status = SaveHuggingFace(world, model, dir);
    CH_EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("\"embed_tokens.weight\" [0:5, 0:8] on rank 1 "
                             "holds other values than on rank 0"));
    return absl::OkStatus();
  });
  EXPECT_FALSE(fs::exists(dir));
}

// Each rank would write to the offsets of its own options.
TEST(SaveTest, RefusesDifferentFileLayouts) {
  const std::string dir = FreshDir("otherwise");
  const WeightNames as_is = {.rules = {{"*", "*"}}};
  const WeightNames renamed = {.rules = {{"*", "model.*"}}};
  const WeightNames wrong = {.rules = {{"*", "*.*"}}};
  const struct {
    SaveOptions options;  // The options of rank 1, as `names`.
    WeightNames names;
    std::string why;
  } cases[] = {
      {{.dtype = kBFloat16}, as_is, "location of bias"},
      {{.max_file_bytes = 1}, as_is, "location of bias"},
      {{}, renamed, "location of bias"},
      {{.dtype = kInt64}, as_is, "on rank 1: weights cannot be saved as"},
      {{.max_file_bytes = -1}, as_is, "on rank 1: SaveOptions::max_"},
      {{}, wrong, "on rank 1: "},
  };
  for (const auto& c : cases) {
    RunRanks(2, [&](World& world) -> absl::Status {
      nn::Linear model(3, 4, {.bias = true});
      CH_RETURN_IF_ERROR(model.Materialize({.seed = 1}));
      const bool is_other = world.rank() == 1;
      const absl::Status status =
          SaveWeights(world, model, dir, is_other ? c.names : as_is, "{}",
                      is_other ? c.options : SaveOptions());
      CH_EXPECT_FALSE(status.ok());
      CH_EXPECT_THAT(std::string(status.message()), HasSubstr(c.why));
      return absl::OkStatus();
    });
    EXPECT_FALSE(fs::exists(dir)) << c.why;
  }
}

/// Detects writes that extend a file.
class FixedLengthFileSystem final : public FileSystem {
 public:
  bool grew() const { return grew_; }

 private:
  int Make(SystemCall& call, absl::FunctionRef<int()> make) override {
    if (call.bytes > 0 && call.name == absl::string_view("WriteAt") &&
        call.offset + call.bytes > lseek(call.fd, 0, SEEK_END)) {
      grew_ = true;
    }
    return make();
  }

  std::atomic<bool> grew_ = false;
};

// On a network file system, an extending write may fill a page with zeros over
// data of another machine.
TEST(SaveTest, FilesAreAsLongAsTheyWillBeBeforeRanksWrite) {
  const std::string dir = FreshDir("length");
  FixedLengthFileSystem files;
  RunRanks(2, [&](World& world) -> absl::Status {
    nn::Linear model(3, 4, {.bias = true});
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 1}));
    return SaveWeights(world, model, dir, {.rules = {{"*", "*"}}}, "{}",
                       {.max_file_bytes = 1, .file_system = &files});
  });
  EXPECT_TRUE(fs::exists(dir + "/model-00002-of-00002.safetensors"));
  EXPECT_FALSE(files.grew());
}

TEST(SaveTest, EveryRankReportsARefusal) {
  const std::string dir = FreshDir("occupied");
  fs::create_directories(dir);
  std::ofstream(dir + "/notes") << "keep";
  std::vector<absl::Status> saved(2);
  RunRanks(2, [&](World& world) {
    nn::LlamaConfig config;
    config.dim = 8;
    config.heads = 2;
    config.layers = 1;
    config.ffn = 8;
    config.vocab = 8;
    nn::Llama model(config, world.device());
    saved[world.rank()] = SaveHuggingFace(world, model, dir);
    return SaveHuggingFace(world, model, dir, {.overwrite = true});
  });
  for (const absl::Status& refused : saved) {
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(dir));
  }
  EXPECT_TRUE(absl::IsAlreadyExists(CheckSaveDirectory(dir)));
  EXPECT_TRUE(CheckSaveDirectory(dir, {.overwrite = true}).ok());
  EXPECT_TRUE(fs::exists(dir + "/notes"));
  EXPECT_TRUE(fs::exists(dir + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(dir + ".saving"));
}

TEST(SaveTest, ADryRunHasNothingToSave) {
  const absl::Status status = RunFake({}, [&](World& world) {
    nn::LlamaConfig config;
    nn::Llama model(config);
    CH_RETURN_IF_ERROR(model.Materialize({}));
    const absl::Status saved = SaveHuggingFace(world, model, FreshDir("dry"));
    EXPECT_TRUE(absl::IsFailedPrecondition(saved)) << saved;
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(LoadTest, ADryRunChecksFiles) {
  const absl::Status status = RunFake({}, [&](World&) {
    CH_ASSIGN_OR_RETURN(const nn::LlamaConfig config, LoadConfig(kUntied));
    nn::Llama model(config);
    EXPECT_FALSE(LoadHuggingFace(model, kTied).ok());
    return LoadHuggingFace(model, kUntied);
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace crosshatch::checkpoint
