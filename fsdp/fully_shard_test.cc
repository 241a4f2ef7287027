// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fully_shard.h"

#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/odd_models_testutil.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kDim = 5;
constexpr int kSteps = 2;

Tensor LossOf(TestModel& model, const Tensor& x) {
  return Sum(model.Forward(x));
}

// Trains unsharded on the whole batch; returns the weights.
Weights DenseWeights() {
  TestModel model(3, kDim, 7, 3);
  model.FillWithIntegers();
  for (nn::Parameter* p : model.Parameters()) {
    Tensor(p->data()).set_requires_grad(true);
  }
  for (int step = 0; step < kSteps; ++step) {
    CH_CHECK_OK(Backward(LossOf(model, BatchOf(0, 1, step))));
    IntegerDescent(model);
  }
  return FullWeights(model);
}

absl::Status ShardAll(TestModel& model, const DeviceMesh& mesh,
                      const FullyShardOptions& options) {
  for (auto& block : model.blocks()) {
    CH_RETURN_IF_ERROR(FullyShard(*block, mesh, options));
  }
  return FullyShard(model, mesh, options);
}

struct Case {
  std::vector<MeshAxis> axes;
  FullyShardOptions options;
};

// Trains on a mesh; returns the full weights on rank 0.
Weights ShardedWeights(const Case& c) {
  Weights weights;
  OnMesh(c.axes, [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    TestModel model(3, kDim, 7, 3);
    model.FillWithIntegers();
    FullyShardOptions options = c.options;
    options.reduction.divide_factor = 1;
    CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
    for (int step = 0; step < kSteps; ++step) {
      CH_RETURN_IF_ERROR(
          Backward(LossOf(model, BatchOf(world.rank(), world.size(), step))));
      IntegerDescent(model);
    }
    Weights full = FullWeights(model);
    if (world.rank() == 0) weights = std::move(full);
    return world.context().Synchronize();
  });
  return weights;
}

// fsdp_pairwise_test.cc has the other options.
TEST(FullyShardTest, TrainsAsOneRankDoesOnAnyMesh) {
  const Weights dense = DenseWeights();
  FullyShardOptions ragged;
  ragged.ragged_shard = RaggedShard();
  FullyShardOptions whole;
  whole.ragged_shard = {
      .rows_per_block = [](const nn::Parameter&) { return 1000; }};
  std::vector<std::vector<MeshAxis>> meshes = {{{"replicate", 2}, {"fsdp", 2}},
                                               {{"replicate", 3}, {"fsdp", 1}}};
  for (int ranks = 1; ranks <= 8; ++ranks) meshes.push_back({{"fsdp", ranks}});
  for (const std::vector<MeshAxis>& axes : meshes) {
    for (const FullyShardOptions& options :
         {FullyShardOptions(), ragged, whole}) {
      EXPECT_EQ(ShardedWeights({axes, options}), dense)
          << MeshLayout::Create(axes)->ToString();
    }
  }
}

TEST(FullyShardTest, DescribesRaggedGroups) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    FullyShardOptions options;
    options.ragged_shard = RaggedShard();
    nn::Linear uneven({.in = 16, .out = 6, .bias = true});
    CH_RETURN_IF_ERROR(FullyShard(uneven, mesh, options));
    CH_EXPECT_EQ(DescribePlan(uneven),
                 "root: f32 shards, gathered as f32, gradients reduced as f32, "
                 "over 2 ranks; ZeRO-2, gathered from forward to the end of "
                 "backward; ragged: 2 pieces of 48 to 54 elements\n"
                 "  weight [6, 16] dim 0: 0:3 3:6\n"
                 "  bias [6] dim 0: 0:0 0:6\n");
    CH_EXPECT_EQ(LayoutOf(uneven.weight()->data()).ToString(), "[S(0)@3]");
    nn::Linear even({.in = 16, .out = 8});
    CH_RETURN_IF_ERROR(FullyShard(even, mesh, options));
    CH_EXPECT_THAT(DescribePlan(even),
                   HasSubstr("; ragged: 2 pieces of 64 elements\n"));
    return absl::OkStatus();
  });
}

TEST(FullyShardTest, RefusesRaggedShardsThatItCannotMake) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) {
    nn::Linear linear({.in = 16, .out = 6});
    FullyShardOptions options;
    options.ragged_shard = RaggedShard();
    options.shard_dim = [](const nn::Parameter&) { return -1; };
    CH_EXPECT_EQ(std::string(FullyShard(linear, mesh, options).message()),
                 "FullyShard: FullyShardOptions::shard_dim gives dim -1 of "
                 "parameter weight, but ragged_shard cuts dim 0; set one of "
                 "the two");
    options.shard_dim = nullptr;
    options.ragged_shard->rows_per_block = [](const nn::Parameter&) {
      return 0;
    };
    CH_EXPECT_EQ(std::string(FullyShard(linear, mesh, options).message()),
                 "FullyShard: RaggedShard::rows_per_block of parameter weight "
                 "is 0; it must be at least 1");
  });
}

TEST(FullyShardTest, TakesTheFirstRanksValues) {
  TestModel first(2, kDim, 7, 3);
  first.FillWithIntegers();
  const Weights expected = FullWeights(first);
  for (const std::vector<MeshAxis>& axes : std::vector<std::vector<MeshAxis>>{
           {{"fsdp", 3}}, {{"replicate", 2}, {"fsdp", 2}}}) {
    for (const bool others_have_values : {true, false}) {
      for (const bool offload : {false, true}) {
        const auto body = [&](const DeviceMesh& mesh) -> absl::Status {
          World& world = mesh.world();
          TestModel model(2, kDim, 7, 3);
          if (world.rank() == 0) {
            model.FillWithIntegers();
          } else if (others_have_values) {
            for (nn::Parameter* p : model.Parameters()) {
              p->set_data(SmallIntegers(p->data().sizes(), 50 + world.rank()));
            }
          }
          const Tensor mine = model.Parameters()[0]->data();
          FullyShardOptions options;
          options.sync_from_first_rank = true;
          options.cpu_offload = offload;
          CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
          CH_EXPECT_EQ(FullWeights(model), expected) << world.rank();
          // The program's own tensor keeps its values.
          if (world.rank() > 0 && others_have_values) {
            CH_EXPECT_EQ(mine.ToVector<float>(),
                         SmallIntegers(mine.sizes(), 50 + world.rank())
                             .ToVector<float>());
          }
          return world.context().Synchronize();
        };
        for (const uint64_t seed : {0, 1}) {
          OnMesh(axes, body, {.test = {.adversarial_seed = seed}});
        }
      }
    }
  }
}

using MovedBytes = std::map<std::string, std::vector<int64_t>>;

// Returns the calls and bytes of each kind on each communicator.
MovedBytes Moved(World& world) {
  MovedBytes moved;
  for (const auto& group : world.groups()) {
    std::vector<int64_t>& counts = moved[group->Describe()];
    for (const auto& count : group->stats().by_kind) {
      counts.push_back(count.calls);
      counts.push_back(count.bytes);
    }
  }
  return moved;
}

// A dry run of any rank counts the bytes that a real run moves and leases.
TEST(FullyShardTest, DryRunsCountValuesFromTheFirstRank) {
  for (const std::vector<MeshAxis>& axes : std::vector<std::vector<MeshAxis>>{
           {{"fsdp", 3}}, {{"replicate", 2}, {"fsdp", 2}}}) {
    const int ranks = axes.size() == 1 ? 3 : 4;
    for (const bool others_have_values : {true, false}) {
      SCOPED_TRACE(others_have_values);
      std::vector<MovedBytes> moved(static_cast<size_t>(ranks));
      std::vector<int64_t> peaks(static_cast<size_t>(ranks));
      std::vector<MovedBytes> dry_moved = moved;
      std::vector<int64_t> dry_peaks = peaks;
      const auto run = [&](World& world, std::vector<MovedBytes>& to,
                           std::vector<int64_t>& to_peaks) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh, InitDeviceMesh(world, axes));
        TestModel model(2, kDim, 7, 3);
        if (world.rank() == 0 || others_have_values) model.FillWithIntegers();
        FullyShardOptions options;
        options.sync_from_first_rank = true;
        CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
        const auto rank = static_cast<size_t>(world.rank());
        to[rank] = Moved(world);
        to_peaks[rank] = world.context().allocator().stats().peak_total;
        return world.context().Synchronize();
      };
      ASSERT_TRUE(StatusOfRanks(ranks, [&](World& world) {
                    return run(world, moved, peaks);
                  }).ok());
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_TRUE(
            RunFake({.world_size = ranks, .rank = rank}, [&](World& world) {
              return run(world, dry_moved, dry_peaks);
            }).ok());
      }
      EXPECT_EQ(dry_moved, moved);
      EXPECT_EQ(dry_peaks, peaks);
    }
  }
}

TEST(FullyShardTest, LeavesDeferredParametersToMaterialize) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    TestModel model(1, kDim, 7, 3);
    if (world.rank() == 1) model.FillWithIntegers();
    FullyShardOptions options;
    options.sync_from_first_rank = true;
    CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
    TestModel alone(1, kDim, 7, 3);
    CH_RETURN_IF_ERROR(alone.Materialize({.seed = 3}));
    CH_EXPECT_EQ(FullWeights(model), FullWeights(alone));
    return world.context().Synchronize();
  });
}

TEST(FullyShardTest, TakesParametersOfAnyStrides) {
  for (const int dim : {0, 1}) {
    OnMesh({{"fsdp", 3}}, [&](const DeviceMesh& mesh) -> absl::Status {
      nn::Linear linear(7, 5);
      const Tensor transposed = Transpose(SmallIntegers({7, 5}, 2), 0, 1);
      CH_EXPECT_FALSE(transposed.is_contiguous());
      linear.weight()->set_data(transposed);
      FullyShardOptions options;
      options.shard_dim = [dim](const nn::Parameter&) { return dim; };
      CH_RETURN_IF_ERROR(FullyShard(linear, mesh, options));
      const std::vector<float> values =
          Contiguous(transposed).ToVector<float>();
      CH_EXPECT_EQ(FullTensor(linear.weight()->data()).ToVector<float>(),
                   values);
      const Tensor x = SmallIntegers({4, 7}, 1);
      CH_EXPECT_EQ(linear.Forward(x).ToVector<float>(),
                   MatMul(x, Transpose(transposed, 0, 1)).ToVector<float>());
      return absl::OkStatus();
    });
  }
}

TEST(FullyShardTest, LogsEventsInOrder) {
  LineSink sink(EventKind::kFsdp);
  std::vector<std::string> first;
  std::vector<std::string> second;
  const absl::Status status = StatusOfRanks(
      2,
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"fsdp", 2}}));
        TestModel model(2, kDim, 7, 3);
        model.FillWithIntegers();
        CH_RETURN_IF_ERROR(ShardAll(model, mesh, {}));
        for (std::vector<std::string>* lines : {&first, &second}) {
          CH_RETURN_IF_ERROR(
              Backward(LossOf(model, BatchOf(world.rank(), 2, 0))));
          if (world.rank() == 0) *lines = sink.Take();
        }
        return absl::OkStatus();
      },
      {.sinks = {&sink, nullptr}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(
      first, ElementsAre(
                 "unshard head", "unshard blocks.0", "wait head",
                 "unshard blocks.1", "wait blocks.0", "reshard blocks.0",
                 "wait blocks.1", "reshard blocks.1",
                 // Backward: the root's parameters are still unsharded.
                 "unshard blocks.1", "reduce_scatter head", "reshard head",
                 "unshard blocks.0", "wait blocks.1", "reduce_scatter blocks.1",
                 "reshard blocks.1", "wait blocks.0", "reduce_scatter blocks.0",
                 "reshard blocks.0"));
  EXPECT_EQ(first, second);
}

TEST(FullyShardTest, RefusesInvalidArguments) {
  OnMesh({{"a", 1}, {"replicate", 1}, {"fsdp", 2}},
         [&](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
           TestModel model(1, kDim, 7, 3);
           const auto message = [&](const DeviceMesh& m,
                                    FullyShardOptions options) {
             return std::string(FullyShard(model, m, options).message());
           };
           CH_EXPECT_THAT(message(mesh, {}),
                          HasSubstr("not mesh(a=1, replicate=1, fsdp=2)"));
           CH_ASSIGN_OR_RETURN(const DeviceMesh swapped,
                               mesh.Slice({"fsdp", "replicate"}));
           CH_EXPECT_THAT(message(swapped, {.replicate_axis = "a"}),
                          HasSubstr("replicate_axis \"a\" is no axis of "
                                    "mesh(fsdp=2, replicate=1)"));
           CH_EXPECT_THAT(message(fsdp, {.replicate_axis = "fsdp"}),
                          HasSubstr("replicate_axis \"fsdp\" is the only axis "
                                    "of mesh(fsdp=2)"));
           CH_EXPECT_THAT(message(fsdp, {.replicate_axis = "replicate"}),
                          HasSubstr("replicate_axis \"replicate\" is no axis "
                                    "of mesh(fsdp=2)"));
           FullyShardOptions options;
           options.shard_dim = [](const nn::Parameter&) { return 1; };
           CH_EXPECT_THAT(
               message(fsdp, options),
               HasSubstr("parameter blocks.0.up.bias of shape [7] cannot be "
                         "sharded on dim 1"));
           const auto with = [](MixedPrecisionPolicy precision) {
             FullyShardOptions options;
             options.mixed_precision = std::move(precision);
             return options;
           };
           for (const DType dtype : {kInt32, kInt64, kBool}) {
             const std::string is = std::string(" is ") + Name(dtype);
             CH_EXPECT_THAT(message(fsdp, with({.param_dtype = dtype})),
                            HasSubstr("MixedPrecisionPolicy::param_dtype" + is +
                                      " for parameter blocks.0.up."));
             CH_EXPECT_THAT(
                 message(fsdp, with({.param_dtype_override =
                                         [dtype](const nn::Parameter& p)
                                         -> std::optional<DType> {
                           if (p.name() != "head.weight") return std::nullopt;
                           return dtype;
                         }})),
                 HasSubstr("param_dtype_override" + is +
                           " for parameter head.weight"));
             CH_EXPECT_THAT(message(fsdp, with({.reduce_dtype = dtype})),
                            HasSubstr("reduce_dtype" + is + ", which"));
             CH_EXPECT_THAT(message(fsdp, with({.output_dtype = dtype})),
                            HasSubstr("output_dtype" + is + ", which"));
           }
           // After the errors, a correct call succeeds: nothing has changed.
           CH_RETURN_IF_ERROR(FullyShard(model, fsdp, {}));
           CH_EXPECT_THAT(message(fsdp, {}),
                          HasSubstr("this TestModel is sharded already"));
           CH_EXPECT_THAT(
               DescribePlan(model),
               HasSubstr("  blocks.0.up.weight [7, 5] dim 0: 0:4 4:7\n"));
           return absl::OkStatus();
         });
}

// Roles follow from replicate_axis, not from the names or order of axes.
TEST(FullyShardTest, ReplicatesOverTheAxisThatIsNamed) {
  OnMesh({{"x", 2}, {"to_replicate", 2}},
         [&](const DeviceMesh& mesh) -> absl::Status {
           const auto plan = [&](const std::string& replicate) {
             TestModel model(1, kDim, 7, 3);
             model.FillWithIntegers();
             CH_CHECK_OK(ShardAll(model, mesh, {.replicate_axis = replicate}));
             const auto layout = [&](int i) {
               return LayoutOf(model.Parameters()[0]->data())
                   .WithReplicate(i)
                   .ToString();
             };
             const int shard =
                 *MeshOf(model.Parameters()[0]->data())
                      .layout()
                      .AxisIndex(replicate == "to_replicate" ? "x"
                                                             : "to_replicate");
             // Without the sharding axis, no dim is split.
             CH_EXPECT_THAT(layout(shard), ::testing::Not(HasSubstr("S(")));
             CH_EXPECT_THAT(layout(1 - shard), HasSubstr("S("));
             return DescribePlan(model);
           };
           CH_EXPECT_EQ(plan("x"), plan(""));
           CH_EXPECT_EQ(plan("x"), plan("to_replicate"));
           return absl::OkStatus();
         });
}

// Two ranks share one model. The second rank's error names the first rank.
TEST(FullyShardTest, NamesTheRankThatShardedASharedModel) {
  std::promise<TestModel*> sharded;
  std::promise<void> released;
  RunRanks(2, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"each", 2}, {"fsdp", 1}}));
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    if (world.rank() == 0) {
      TestModel model(1, 5, 7, 3);
      const absl::Status status = FullyShard(model, fsdp, {});
      sharded.set_value(&model);
      released.get_future().wait();
      return status;
    }
    TestModel& shared = *sharded.get_future().get();
    const absl::Status status = FullyShard(shared, fsdp, {});
    CH_EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("this TestModel is sharded already, by rank 0: each rank "
                  "must make its own model, inside its function"));
    released.set_value();
    return absl::OkStatus();
  });
}

// A chain of Linears [5, 5].
class Three final : public nn::Module {
 public:
  Three() : first(5, 5), middle(5, 5), last(5, 5) {
    RegisterModule("first", first);
    RegisterModule("middle", middle);
    RegisterModule("last", last);
    int64_t salt = 3;
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers({5, 5}, ++salt));
    }
  }
  const char* type_name() const override { return "Three"; }
  nn::Linear first, middle, last;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {last.Forward(middle.Forward(first.Forward(inputs[0])))};
  }
};

// The root's gradients are complete before that of the module below it, which
// passes through a frozen parameter of the root.
TEST(FullyShardTest, FrozenParametersStayForGradientsThatPassThroughThem) {
  Three plain;
  plain.middle.weight()->set_requires_grad(false);
  ASSERT_TRUE(Backward(Sum(plain.Forward(SmallIntegers({4, 5}, 1)))).ok());
  const std::vector<float> expected =
      plain.first.weight()->grad().ToVector<float>();
  for (const bool frozen_at_first : {true, false}) {
    OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
      World& world = mesh.world();
      Three model;
      model.middle.weight()->set_requires_grad(!frozen_at_first);
      CH_RETURN_IF_ERROR(FullyShard(model.first, mesh));
      CH_RETURN_IF_ERROR(FullyShard(model, mesh));
      model.middle.weight()->set_requires_grad(false);
      CH_RETURN_IF_ERROR(
          Backward(Sum(model.Forward(SmallIntegers({4, 5}, 1)))));
      const NoGrad no_grad;
      CH_EXPECT_EQ(FullTensor(model.first.weight()->grad()).ToVector<float>(),
                   expected);
      CH_EXPECT_FALSE(model.middle.weight()->grad().defined());
      return world.context().Synchronize();
    });
  }
}

// The tied parameter belongs to the common ancestor, which ignores it.
TEST(FullyShardTest, ATiedParameterMayBeIgnored) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    Tied model;
    model.first.weight()->set_requires_grad(false);
    FullyShardOptions options;
    options.ignored_params = {model.first.weight().get()};
    CH_RETURN_IF_ERROR(FullyShard(model.first, mesh));
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
    CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(SmallIntegers({4, 5}, 1)))));
    CH_EXPECT_FALSE(model.first.weight()->data().is_distributed());
    CH_EXPECT_TRUE(model.middle.weight()->grad().defined());
    return world.context().Synchronize();
  });
}

// Hooks that a program installed before FullyShard.
TEST(FullyShardTest, HooksOfOthersSeeUnshardedParameters) {
  OnMesh({{"fsdp", 2}},
         [](const DeviceMesh& mesh) -> absl::Status {
           nn::Linear linear(5, 3);
           linear.weight()->set_data(SmallIntegers({3, 5}, 1));
           const std::vector<float> values =
               linear.weight()->data().ToVector<float>();
           int calls = 0;
           const auto look = [&] {
             ++calls;
             CH_EXPECT_EQ(
                 ToDType(linear.weight()->Get(), kFloat32).ToVector<float>(),
                 values);
           };
           linear.AddPreHook([&](nn::Module&, TensorList& inputs) {
             look();
             CH_EXPECT_EQ(inputs[0].dtype(), kBFloat16);
           });
           linear.AddPostHook(
               [&](nn::Module&, TensorSpan, TensorList&) { look(); });
           FullyShardOptions options;
           options.reshard_after_forward = true;
           options.mixed_precision.param_dtype = kBFloat16;
           CH_RETURN_IF_ERROR(FullyShard(linear, mesh, options));
           linear.Forward(BatchOf(0, 1, 0));
           CH_EXPECT_EQ(calls, 2);
           return absl::OkStatus();
         },
         {.test = {.adversarial_seed = 3}});
}

}  // namespace
}  // namespace crosshatch::fsdp
