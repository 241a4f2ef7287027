// SPDX-License-Identifier: Apache-2.0

/// \file
/// Gather hooks: with hooks that lose nothing, training is bitwise the same.

#include "crosshatch/fsdp/gather_hooks.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/expect.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

/// Float8 values and a scale for each row: two tensors of different dtypes.
/// Small integers survive.
class ByRow final : public GatherHooks {
 public:
  std::vector<Input> Inputs(ShapeView piece) const override {
    Shape scales(piece.begin(), piece.end());
    if (scales.size() > 1) scales.back() = 1;
    return {{kFloat8E4M3, Shape(piece.begin(), piece.end())},
            {kFloat32, scales}};
  }
  void PreAllGather(const Tensor& shard, TensorSpan inputs) const override {
    const bool is_matrix = shard.ndim() > 1;
    const Float8Values made =
        ToFloat8(is_matrix ? shard : Unsqueeze(shard, 1), kFloat8E4M3, {1},
                 /*power_of_two=*/true);
    CopyInPlace(inputs[0], Reshape(made.values, shard.sizes()));
    CopyInPlace(inputs[1], Reshape(made.inverse_scale, inputs[1].sizes()));
  }
  bool has_post_all_gather() const override { return true; }
  void PostAllGather(TensorSpan gathered,
                     const Tensor& unsharded) const override {
    CopyInPlace(unsharded, Mul(ToDType(gathered[0], kFloat32), gathered[1]));
  }
};

/// Twice the values, for forward to use as they are, and the sum of each row.
class Doubled final : public GatherHooks {
 public:
  explicit Doubled(DType dtype_of_sums) : dtype_of_sums_(dtype_of_sums) {}
  std::vector<Input> Inputs(ShapeView piece) const override {
    return {{kFloat32, Shape(piece.begin(), piece.end())},
            {dtype_of_sums_, {piece[0], 1}}};
  }
  void PreAllGather(const Tensor& shard, TensorSpan inputs) const override {
    CopyInPlace(inputs[0], Mul(shard, 2.0));
    CopyInPlace(inputs[1],
                ToDType(Sum(shard, {1}, /*keepdim=*/true), dtype_of_sums_));
  }
  TensorList Extras(TensorSpan gathered) const override {
    return {gathered[1]};
  }

 private:
  const DType dtype_of_sums_;
};

/// Returns hooks for the matrices of a model, or for all its parameters.
auto HooksFor(std::shared_ptr<const GatherHooks> hooks, bool all) {
  return [hooks = std::move(hooks), all](const nn::Parameter& parameter) {
    return all || parameter.data().ndim() > 1 ? hooks : nullptr;
  };
}

struct Case {
  std::string name;
  Axes axes;
  std::function<void(FullyShardOptions&)> set = [](FullyShardOptions&) {};
  bool keeps_memory = false;
  bool all = false;
};

std::vector<Case> Cases() {
  const auto late = [](FullyShardOptions& o) {
    o.reshard_after_forward = false;
  };
  const auto ragged = [](FullyShardOptions& o) {
    o.ragged_shard = RaggedShard{};
  };
  return {
      {"alone", {{"fsdp", 1}}},
      {"two", {{"fsdp", 2}}},
      {"all parameters", {{"fsdp", 2}}, [](FullyShardOptions&) {}, false, true},
      {"empty shards", {{"fsdp", 6}}},
      {"replicas", {{"replicate", 2}, {"fsdp", 2}}},
      {"unsharded until backward", {{"fsdp", 3}}, late},
      {"kept memory", {{"fsdp", 2}}, [](FullyShardOptions&) {}, true},
      {"ragged", {{"fsdp", 3}}, ragged},
  };
}

/// Returns rank 0's weights after three steps.
Weights Train(const Case& c, bool hooked, uint64_t seed,
              std::vector<std::string>* lines) {
  Weights weights;
  OnRanks(
      c.axes,
      [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        TestModel model(2, 5, 7, 3);
        model.FillWithIntegers();
        FullyShardOptions options = Summing();
        c.set(options);
        if (hooked) {
          options.gather_hooks = HooksFor(std::make_shared<ByRow>(), c.all);
        }
        CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
        CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
        if (c.keeps_memory) {
          CH_RETURN_IF_ERROR(
              Configure(model, [](Settings& s) { s.keep_unsharded = true; }));
        }
        Job job{model, mesh, root, log};
        for (int step = 0; step < 3; ++step) {
          CH_RETURN_IF_ERROR(Backward(job.Loss(step)));
          IntegerDescent(model);
        }
        const Weights all = FullWeights(model);
        if (mesh.world().rank() == 0) {
          weights = all;
          if (lines != nullptr) *lines = log.Take();
        }
        return absl::OkStatus();
      },
      seed);
  return weights;
}

TEST(GatherHooksTest, TrainingIsTheSame) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const Weights expected = Train(c, false, 0, nullptr);
    EXPECT_EQ(Train(c, true, 0, nullptr), expected);
    EXPECT_EQ(Train(c, true, 3, nullptr), expected);
  }
}

TEST(GatherHooksTest, TheLogHasThemOnlyWhereThereAreSome) {
  const Case two = {"two", {{"fsdp", 2}}};
  std::vector<std::string> lines;
  Train(two, false, 0, &lines);
  EXPECT_THAT(lines, Not(Contains(HasSubstr("all_gather"))));
  Train(two, true, 0, &lines);
  for (const char* what : {"pre_all_gather", "post_all_gather"}) {
    EXPECT_THAT(lines, Contains(HasSubstr(what)));
    // Vectors have none, and are a group of their own.
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [&](const std::string& line) {
                              return line.find(what) == 0 &&
                                     line.find("hooked") == std::string::npos;
                            }),
              0);
  }
}

TEST(GatherHooksTest, ForwardComputesWithTheGatheredTensor) {
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    OnRanks({{"fsdp", 2}},
            [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
              nn::Linear linear(3, 5);
              linear.weight()->set_data(SmallIntegers({5, 3}, 1));
              const Tensor x = SmallIntegers({4, 3}, 2);
              const Tensor weight = Clone(linear.weight()->data().Detach());
              FullyShardOptions options = Summing();
              options.reshard_after_forward = false;
              options.gather_hooks =
                  HooksFor(std::make_shared<Doubled>(dtype), /*all=*/true);
              CH_RETURN_IF_ERROR(FullyShard(linear, mesh, options));
              const Tensor y = linear.Forward(x);
              CH_EXPECT_EQ(y.ToVector<float>(),
                           Linear(x, Mul(weight, 2.0)).ToVector<float>());
              const TensorList& extras = linear.weight()->gathered_extras();
              CH_EXPECT_EQ(extras.size(), 1u);
              CH_EXPECT_EQ(extras[0].ToVector<float>(),
                           Sum(weight, {1}).ToVector<float>());
              return Backward(Sum(y));
            });
  }
}

/// Violates one rule of Inputs.
class Wrong final : public GatherHooks {
 public:
  using Make = std::function<std::vector<Input>(ShapeView)>;
  explicit Wrong(Make make, bool post = true)
      : make_(std::move(make)), post_(post) {}
  std::vector<Input> Inputs(ShapeView piece) const override {
    return make_(piece);
  }
  void PreAllGather(const Tensor&, TensorSpan) const override {}
  bool has_post_all_gather() const override { return post_; }

 private:
  const Make make_;
  const bool post_;
};

void ExpectError(
    std::shared_ptr<const GatherHooks> hooks, const std::string& text,
    const std::function<void(FullyShardOptions&)>& set =
        [](FullyShardOptions&) {}) {
  OnRanks({{"fsdp", 2}}, [&](const DeviceMesh& mesh, LineSink&) {
    nn::Linear linear(3, 5);
    linear.weight()->set_data(SmallIntegers({5, 3}, 1));
    linear.NamedParameters();
    FullyShardOptions options;
    options.gather_hooks = HooksFor(hooks, /*all=*/true);
    set(options);
    const absl::Status status = FullyShard(linear, mesh, options);
    CH_EXPECT_TRUE(status.code() == absl::StatusCode::kInvalidArgument);
    CH_EXPECT_TRUE(std::string(status.message()).find(text) !=
                   std::string::npos)
        << status;
    CH_EXPECT_TRUE(!linear.weight()->data().is_distributed());
    return absl::OkStatus();
  });
}

TEST(GatherHooksTest, ErrorsNameTheParameterAndTheRule) {
  ExpectError(std::make_shared<Wrong>(
                  [](ShapeView) { return std::vector<GatherHooks::Input>(); }),
              "hooks of parameter weight of local shape [5, 3] gather no "
              "tensors");
  ExpectError(std::make_shared<Wrong>([](ShapeView piece) {
                return std::vector<GatherHooks::Input>(
                    static_cast<size_t>(piece[0]), {kFloat32, {1, 1}});
              }),
              "gather 5 tensors of the whole and 3 of a piece");
  ExpectError(std::make_shared<Wrong>([](ShapeView piece) {
                return std::vector<GatherHooks::Input>{
                    {kFloat32, {piece[0], piece[0]}}};
              }),
              "gather f32[3, 3] of rank 0's piece, which is no part of "
              "f32[5, 5] along dim 0");
  // A block of five rows, but the shards have 3 and 2 rows.
  ExpectError(std::make_shared<Wrong>([](ShapeView piece) {
                return std::vector<GatherHooks::Input>{
                    {kFloat32, {(piece[0] + 4) / 5, 1}}};
              }),
              "cut shards at whole blocks");
  ExpectError(
      std::make_shared<Wrong>(
          [](ShapeView piece) {
            return std::vector<GatherHooks::Input>{{kFloat32, {piece[0]}}};
          },
          /*post=*/false),
      "gather f32[5] to compute with; override has_post_all_gather");
  ExpectError(std::make_shared<ByRow>(), "cpu_offload",
              [](FullyShardOptions& o) { o.cpu_offload = true; });
  ExpectError(std::make_shared<ByRow>(), "post_forward_mesh_size",
              [](FullyShardOptions& o) { o.post_forward_mesh_size = 2; });
}

}  // namespace
}  // namespace crosshatch::fsdp
