// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/sharded_module.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/odd_models_testutil.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/expect.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShardedModuleTest, AnEmbeddingNeedsNoParametersInBackward) {
  OnRanks(
      {{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        nn::Embedding embedding(7, 3);
        embedding.Parameters()[0]->set_data(SmallIntegers({7, 3}, 1));
        CH_RETURN_IF_ERROR(FullyShard(embedding, mesh, Summing()));
        CH_RETURN_IF_ERROR(Configure(embedding, [](Settings& s) {
          s.reshard_after_forward = true;
          s.unshard_in_backward = false;
        }));
        const Tensor tokens = FromValues<int32_t>({3}, {6, 1, 6});
        CH_RETURN_IF_ERROR(Backward(Sum(embedding.Forward(tokens))));
        if (mesh.world().rank() == 0) {
          CH_EXPECT_THAT(log.Take(),
                         ElementsAre("unshard root", "wait root",
                                     "reshard root", "reduce_scatter root"));
        }
        std::vector<float> expected(21, 0.0f);
        for (size_t i = 0; i < 3; ++i) {
          expected[1 * 3 + i] = 2;  // From both ranks.
          expected[6 * 3 + i] = 4;
        }
        CH_EXPECT_EQ(FullGradients(embedding)[0], expected);
        return absl::OkStatus();
      });
}

TEST(ShardedModuleTest, KeepsTheMemoryOfGatheredParameters) {
  OnRanks(
      {{"fsdp", 2}},
      [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
        TestModel model(2, 5, 7, 3);
        model.FillWithIntegers();
        CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
        const auto gathered_bytes = [] {
          return RankContext::Current()
              .allocator()
              .stats()
              .current[static_cast<size_t>(MemoryClass::kGatheredParameter)];
        };
        CH_RETURN_IF_ERROR(
            Configure(model, [&](Settings& s) { s.keep_unsharded = true; }));
        CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, 0)))));
        CH_EXPECT_EQ(gathered_bytes(), 2 * 512 + 128);
        CH_RETURN_IF_ERROR(
            Configure(model, [&](Settings& s) { s.keep_unsharded = false; }));
        CH_EXPECT_EQ(gathered_bytes(), 0);
        return absl::OkStatus();
      },
      3);
}

TEST(ShardedModuleTest, FrozenParametersStayUntilTheirLastUse) {
  Adapters dense;
  CH_CHECK_OK(Backward(Sum(dense.Forward(BatchOf(0, 1, 5)))));
  const Weights expected = FullGradients(dense);
  OnRanks(
      {{"fsdp", 2}},
      [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        Adapters model;
        CH_RETURN_IF_ERROR(FullyShard(model.a, mesh, Summing()));
        CH_RETURN_IF_ERROR(FullyShard(model.b, mesh, Summing()));
        CH_RETURN_IF_ERROR(FullyShard(model, mesh, Summing()));
        const Tensor loss =
            Sum(model.Forward(BatchOf(mesh.world().rank(), 2, 5)));
        log.Take();
        CH_RETURN_IF_ERROR(Backward(loss));
        CH_EXPECT_EQ(FullGradients(model), expected);
        CH_EXPECT_THAT(
            DescribePlan(model),
            HasSubstr("a (f32, frozen): f32 shards, gathered as f32, frozen, "
                      "over 2 ranks; ZeRO-3; separate from a (f32): frozen\n"
                      "  a.frozen.weight [5, 5] dim 0: 0:3 3:5\n"));
        return absl::OkStatus();
      });
}

TEST(ShardedModuleTest, TiedParametersBelongToTheLowestCommonAncestor) {
  Tied dense;
  CH_CHECK_OK(Backward(Sum(dense.Forward(BatchOf(0, 1, 5)))));
  const Weights expected = FullGradients(dense);
  for (const Axes& axes :
       std::vector<Axes>{{{"fsdp", 3}}, {{"replicate", 2}, {"fsdp", 2}}}) {
    OnRanks(axes, [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
      Tied model;
      CH_RETURN_IF_ERROR(FullyShard(model.first, mesh, Summing()));
      CH_RETURN_IF_ERROR(FullyShard(model.middle, mesh, Summing()));
      CH_RETURN_IF_ERROR(FullyShard(model.last, mesh, Summing()));
      CH_RETURN_IF_ERROR(FullyShard(model, mesh, Summing()));
      const World& world = mesh.world();
      CH_RETURN_IF_ERROR(
          Backward(Sum(model.Forward(BatchOf(world.rank(), world.size(), 5)))));
      CH_EXPECT_EQ(FullGradients(model), expected);
      const std::string plan = DescribePlan(model);
      CH_EXPECT_THAT(plan, HasSubstr("first.weight [5, 5] dim 0: 0:"));
      CH_EXPECT_THAT(plan, HasSubstr(", tied with last.weight\n"));
      CH_EXPECT_THAT(plan,
                     HasSubstr("  (first.weight: tied, in the group of the "
                               "lowest common ancestor)\n"));
      return absl::OkStatus();
    });
  }
}

TEST(ShardedModuleTest, SeveralModulesAreOneGroup) {
  TestModel dense(3, 5, 7, 3);
  dense.FillWithIntegers();
  CH_CHECK_OK(Backward(Sum(dense.Forward(BatchOf(0, 1, 5)))));
  const Weights expected = FullGradients(dense);
  OnRanks(
      {{"fsdp", 2}},
      [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        TestModel model(3, 5, 7, 3);
        model.FillWithIntegers();
        nn::Module* const first = model.blocks()[0].get();
        nn::Module* const second = model.blocks()[1].get();
        CH_EXPECT_THAT(
            std::string(FullyShard({first, first}, mesh).message()),
            HasSubstr("the TestBlock blocks.0 is in the list twice"));
        CH_RETURN_IF_ERROR(FullyShard({first, second}, mesh, Summing()));
        CH_RETURN_IF_ERROR(FullyShard(model, mesh, Summing()));
        const int rank = mesh.world().rank();
        CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(rank, 2, 5)))));
        if (rank == 0) {
          CH_EXPECT_THAT(
              log.Take(),
              ElementsAre("unshard root", "unshard blocks", "wait root",
                          "wait blocks", "reshard blocks", "unshard blocks",
                          "reduce_scatter root", "reshard root", "wait blocks",
                          "reduce_scatter blocks", "reshard blocks"));
        }
        CH_EXPECT_EQ(FullGradients(model), expected);
        // Runs the first module only. The root frees the modules that stay
        // gathered.
        CH_ASSIGN_OR_RETURN(auto root, ShardedModule::Of(model));
        NoGrad no_grad;
        root.Run({BatchOf(0, 1, 1)}, [&](TensorSpan inputs) {
          return TensorList{first->Forward(inputs[0])};
        });
        if (rank == 0) {
          CH_EXPECT_THAT(
              log.Take(),
              ElementsAre("unshard root", "unshard blocks", "wait root",
                          "wait blocks", "reshard root", "reshard blocks"));
        }
        return absl::OkStatus();
      });
}

TEST(ShardedModuleTest, IgnoredParametersStayAsTheyAre) {
  OnRanks({{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
    TestModel model(1, 5, 7, 3);
    model.FillWithIntegers();
    FullyShardOptions options = Summing();
    nn::Parameter* const ignored = model.Parameters()[1];
    options.ignored_params = {ignored};
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
    CH_EXPECT_FALSE(ignored->data().is_distributed());
    CH_EXPECT_THAT(DescribePlan(model),
                   HasSubstr("  (blocks.0.up.bias: ignored)\n"));
    CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, 0)))));
    CH_EXPECT_FALSE(ignored->grad().is_distributed());
    return absl::OkStatus();
  });
}

// Some gradients are dropped, some replaced and some missing.
TEST(ShardedModuleTest, AccumulatesIntoExistingGradients) {
  TestModel dense(1, 5, 7, 3);
  dense.FillWithIntegers();
  const Tensor x = BatchOf(0, 1, 2);
  const auto disturb = [](TestModel& model) {
    std::vector<nn::Parameter*> p = model.Parameters();
    NoGrad no_grad;
    p[0]->set_grad(Tensor());
    p[2]->set_grad(Mul(p[2]->grad(), 3.0));
  };
  for (int i = 0; i < 3; ++i) {
    CH_CHECK_OK(Backward(Sum(dense.Forward(x))));
    if (i < 2) disturb(dense);
    // A backward that reaches only the blocks.
    CH_CHECK_OK(Backward(Sum(dense.blocks()[0]->Forward(x))));
  }
  const Weights expected = FullGradients(dense);
  for (const uint64_t seed : {0, 7}) {
    OnRanks(
        {{"fsdp", 2}},
        [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
          TestModel model(1, 5, 7, 3);
          model.FillWithIntegers();
          // A mean, because both ranks compute the same.
          FullyShardOptions options;
          options.reshard_after_forward = false;
          CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
          CH_ASSIGN_OR_RETURN(auto root, ShardedModule::Of(model));
          for (int i = 0; i < 3; ++i) {
            CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(x))));
            if (i < 2) disturb(model);
            const TensorList y = root.Run({x}, [&](TensorSpan inputs) {
              return TensorList{model.blocks()[0]->Forward(inputs[0])};
            });
            CH_RETURN_IF_ERROR(Backward(Sum(y[0])));
          }
          CH_EXPECT_EQ(FullGradients(model), expected);
          return absl::OkStatus();
        },
        seed);
  }
}

TEST(ShardedModuleTest, SeveralRootsAndOtherEntryPoints) {
  const auto build = [](TestModel& model, int64_t salt) {
    for (nn::Parameter* p : model.Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), ++salt));
    }
  };
  TestModel dense_a(1, 5, 7, 5), dense_b(1, 5, 7, 3);
  build(dense_a, 0);
  build(dense_b, 9);
  CH_CHECK_OK(
      Backward(Sum(dense_b.Forward(dense_a.Forward(BatchOf(0, 1, 1))))));
  // Read on this thread, because streams of other threads do not wait for its
  // stream.
  const Weights expected_a = FullGradients(dense_a);
  const Weights expected_b = FullGradients(dense_b);
  for (const bool share : {false, true}) {
    OnRanks(
        {{"fsdp", 2}},
        [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
          TestModel a(1, 5, 7, 5), b(1, 5, 7, 3);
          build(a, 0);
          build(b, 9);
          CH_RETURN_IF_ERROR(ShardAll(a, mesh, Summing()));
          CH_RETURN_IF_ERROR(ShardAll(b, mesh, Summing()));
          if (share) CH_RETURN_IF_ERROR(ShareCommContext({&a, &b}));
          CH_ASSIGN_OR_RETURN(auto entry, ShardedModule::Of(b));
          const Tensor x = a.Forward(BatchOf(mesh.world().rank(), 2, 1));
          const TensorList y = entry.Run({x}, [&](TensorSpan inputs) {
            return TensorList{b.Forward(inputs[0])};
          });
          CH_RETURN_IF_ERROR(Backward(Sum(y[0])));
          CH_EXPECT_EQ(FullGradients(a), expected_a);
          CH_EXPECT_EQ(FullGradients(b), expected_b);
          return absl::OkStatus();
        },
        13);
  }
}

// Returns the input of a Linear [1, 1] without bias, whose gradient it is.
Tensor Column(float value) { return FromValues<float>({1, 1}, {value}); }

TEST(ShardedModuleTest, AccumulatesInTheReduceDType) {
  for (const DType reduce : {kFloat32, kBFloat16}) {
    for (const int ranks : {1, 2}) {
      OnRanks({{"fsdp", ranks}},
              [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                nn::Linear linear(1, 1);
                linear.weight()->set_data(Column(1));
                FullyShardOptions options;
                options.mixed_precision = {.param_dtype = kBFloat16,
                                           .reduce_dtype = reduce,
                                           .output_dtype = kFloat32};
                CH_RETURN_IF_ERROR(FullyShard(linear, mesh, options));
                for (const float x : {256.0f, 1.0f}) {
                  CH_RETURN_IF_ERROR(Configure(linear, [&](Settings& s) {
                    s.requires_gradient_sync = x == 1.0f;
                  }));
                  const Tensor y = linear.Forward(Column(x));
                  CH_EXPECT_EQ(y.dtype(), kFloat32);
                  CH_EXPECT_EQ(linear.weight()->gathered().dtype(), kBFloat16);
                  CH_RETURN_IF_ERROR(Backward(Sum(y)));
                }
                // bfloat16 has 8 bits, so 256 + 1 is 256.
                CH_EXPECT_EQ(FullGradients(linear)[0][0],
                             reduce == kFloat32 ? 257.0f : 256.0f);
                CH_EXPECT_EQ(linear.weight()->grad().dtype(), kFloat32);
                return absl::OkStatus();
              });
    }
  }
}

TEST(ShardedModuleTest, SumsInFloat16NeitherOverflowNorVanish) {
  for (const bool force_sum : {false, true}) {
    OnRanks({{"replicate", 2}, {"fsdp", 2}},
            [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
              nn::Linear linear(1, 1);
              linear.weight()->set_data(Column(1));
              FullyShardOptions options;
              options.mixed_precision.reduce_dtype = kFloat16;
              options.reduction.force_sum = force_sum;
              CH_RETURN_IF_ERROR(FullyShard(linear, mesh, options));
              for (const float x : {40000.0f, 0x1p-20f}) {
                CH_RETURN_IF_ERROR(Backward(Sum(linear.Forward(Column(x)))));
                const float mean = FullGradients(linear)[0][0];
                // The sum of four times 40000 exceeds 65504 and overflows if
                // not divided.
                if (force_sum && x > 1) {
                  CH_EXPECT_TRUE(std::isinf(mean));
                } else {
                  CH_EXPECT_EQ(mean, x);
                }
                linear.weight()->set_grad(Tensor());
              }
              return absl::OkStatus();
            });
  }
}

TEST(ShardedModuleTest, ParametersChooseTheirDType) {
  OnRanks({{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
    TestModel model(1, 5, 7, 3);
    model.FillWithIntegers();
    FullyShardOptions options;
    options.mixed_precision.param_dtype = kBFloat16;
    options.mixed_precision.param_dtype_override =
        [](const nn::Parameter& p) -> std::optional<DType> {
      if (p.data().ndim() == 1) return kFloat32;
      return std::nullopt;
    };
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, options));
    for (nn::Parameter* p : model.Parameters()) {
      CH_EXPECT_EQ(p->gathered().dtype(),
                   p->data().ndim() == 1 ? kFloat32 : kBFloat16);
    }
    CH_EXPECT_THAT(
        DescribePlan(model),
        HasSubstr("root (f32 as f32): f32 shards, gathered as f32,"));
    return absl::OkStatus();
  });
}

// A table of integers without gradients.
class Table final : public nn::Module {
 public:
  Table() {
    auto table = std::make_shared<nn::Parameter>(Shape{3, 2}, kFloat32,
                                                 nn::Initializer{});
    table->set_requires_grad(false);
    table->set_data(
        FromValues<int32_t>({3, 2}, {1, 257, 65537, -3, 16777217, 0}));
    RegisterParameter("table", table);
  }
  const char* type_name() const override { return "Table"; }

 protected:
  TensorList ForwardImpl(TensorSpan) override {
    return {Clone(own_parameters()[0].second->Get())};
  }
};

TEST(ShardedModuleTest, IntegersAreGatheredAsTheyAre) {
  const std::vector<int32_t> expected = Table().Call({})[0].ToVector<int32_t>();
  OnRanks({{"fsdp", 2}},
          [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
            Table table;
            FullyShardOptions options;
            options.mixed_precision.param_dtype = kBFloat16;
            CH_RETURN_IF_ERROR(FullyShard(table, mesh, options));
            const Tensor gathered = table.Call({})[0];
            CH_EXPECT_EQ(gathered.dtype(), kInt32);
            CH_EXPECT_EQ(gathered.ToVector<int32_t>(), expected);
            return absl::OkStatus();
          });
}

TEST(ShardedModuleTest, ReducesGradientsOfAnEarlierBackward) {
  for (const bool freezes : {true, false}) {
    TestModel dense(2, 5, 7, 3);
    dense.FillWithIntegers();
    const auto freeze = [freezes](TestModel& model) {
      for (nn::Parameter* p : model.blocks()[0]->Parameters()) {
        if (freezes) p->set_requires_grad(false);
      }
    };
    const auto later = [freezes](TestModel& model, const Tensor& x) {
      return Sum(freezes ? model.Forward(x) : model.blocks()[1]->Forward(x));
    };
    CH_CHECK_OK(Backward(Sum(dense.Forward(BatchOf(0, 1, 5)))));
    freeze(dense);
    CH_CHECK_OK(Backward(later(dense, BatchOf(0, 1, 6))));
    const Weights expected = FullGradients(dense);
    for (const bool within_replicas : {false, true}) {
      OnRanks(
          {{"replicate", 2}, {"fsdp", 2}},
          [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
            TestModel model(2, 5, 7, 3);
            model.FillWithIntegers();
            CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
            const int rank = mesh.world().rank();
            const auto reduce = [&](bool all) {
              return Configure(model, [&](Settings& s) {
                (within_replicas ? s.requires_all_reduce
                                 : s.requires_gradient_sync) = all;
              });
            };
            CH_RETURN_IF_ERROR(reduce(false));
            CH_RETURN_IF_ERROR(
                Backward(Sum(model.Forward(BatchOf(rank, 4, 5)))));
            for (nn::Parameter* p : model.Parameters()) {
              CH_EXPECT_EQ(p->gradient_is_pending(), true) << p->name();
            }
            CH_RETURN_IF_ERROR(reduce(true));
            freeze(model);
            CH_RETURN_IF_ERROR(Backward(later(model, BatchOf(rank, 4, 6))));
            CH_EXPECT_EQ(FullGradients(model), expected)
                << "frozen " << freezes << ", within replicas "
                << within_replicas;
            for (nn::Parameter* p : model.Parameters()) {
              CH_EXPECT_EQ(p->gradient_is_pending(), false) << p->name();
            }
            for (nn::Parameter* p : model.Parameters()) p->set_grad(Tensor());
            CH_EXPECT_EQ(
                RankContext::Current()
                    .allocator()
                    .stats()
                    .current[static_cast<size_t>(MemoryClass::kGradient)],
                0);
            return absl::OkStatus();
          },
          3);
    }
  }
}

TEST(ShardedModuleTest, AHandleOutlivesTheTreeItIsOf) {
  TestModel dense(2, 5, 7, 3);
  dense.FillWithIntegers();
  CH_CHECK_OK(Backward(Sum(dense.Forward(BatchOf(0, 1, 5)))));
  OnRanks(
      {{"fsdp", 2}},
      [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
        TestModel model(2, 5, 7, 3);
        model.FillWithIntegers();
        CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
        CH_ASSIGN_OR_RETURN(auto root, ShardedModule::Of(model));
        CH_RETURN_IF_ERROR(Configure(
            model, [&](Settings& s) { s.manual_finalization = true; }));
        const int rank = mesh.world().rank();
        CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(rank, 2, 5)))));
        ReductionHandle handle = root.FinalizeBackward();
        CH_RETURN_IF_ERROR(ShareCommContext({&model}));  // Another tree.
        handle.Wait();
        CH_EXPECT_EQ(FullGradients(model), FullGradients(dense));
        for (nn::Parameter* p : model.Parameters()) {
          CH_EXPECT_EQ(p->gradient_is_pending(), false) << p->name();
        }
        return absl::OkStatus();
      },
      5);
}

// Replaces the data of every parameter by new values in the same layout.
void Replace(nn::Module& model, int64_t salt) {
  for (nn::Parameter* p : model.Parameters()) {
    const Tensor values = SmallIntegers(p->data().sizes(), ++salt);
    p->set_data(
        p->data().is_distributed()
            ? DistributeTensor(values, MeshOf(p->data()), LayoutOf(p->data()))
            : values);
  }
}

TEST(ShardedModuleTest, ComputesWithDataThatWasReplaced) {
  TestModel dense(2, 5, 7, 3);
  for (const int64_t salt : {20, 30}) {
    Replace(dense, salt);
    CH_CHECK_OK(Backward(Sum(dense.Forward(BatchOf(0, 1, 5)))));
    IntegerDescent(dense);
  }
  const Weights expected = FullWeights(dense);
  for (const uint64_t seed : {0, 4, 5, 6}) {
    for (const bool offload : {false, true}) {
      OnRanks(
          {{"fsdp", 2}},
          [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
            TestModel model(2, 5, 7, 3);
            FullyShardOptions options = Summing();
            options.cpu_offload = offload;
            CH_RETURN_IF_ERROR(ShardAll(model, mesh, options));
            const int rank = mesh.world().rank();
            // The first replacement is for shards without memory.
            for (const int64_t salt : {20, 30}) {
              Replace(model, salt);
              CH_RETURN_IF_ERROR(
                  Backward(Sum(model.Forward(BatchOf(rank, 2, 5)))));
              IntegerDescent(model);
            }
            CH_EXPECT_EQ(FullWeights(model), expected) << "seed " << seed;
            return absl::OkStatus();
          },
          seed);
    }
  }
}

TEST(ShardedModuleTest, APartMayRunBeforeTheRoot) {
  TestModel dense(2, 5, 7, 3);
  dense.FillWithIntegers();
  CH_CHECK_OK(Backward(Sum(dense.blocks()[0]->Forward(BatchOf(0, 1, 5)))));
  CH_CHECK_OK(Backward(Sum(dense.Forward(BatchOf(0, 1, 6)))));
  const Weights expected = FullGradients(dense);
  for (const bool reduces_first : {true, false}) {
    OnRanks(
        {{"fsdp", 2}},
        [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
          TestModel model(2, 5, 7, 3);
          model.FillWithIntegers();
          CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
          nn::Module& block = *model.blocks()[0];
          const int rank = mesh.world().rank();
          // The block is the root of its own tree until the model runs.
          CH_RETURN_IF_ERROR(Configure(block, [&](Settings& s) {
            s.requires_gradient_sync = reduces_first;
          }));
          CH_RETURN_IF_ERROR(Backward(Sum(block.Forward(BatchOf(rank, 2, 5)))));
          CH_RETURN_IF_ERROR(Configure(
              block, [&](Settings& s) { s.requires_gradient_sync = true; }));
          CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(rank, 2, 6)))));
          CH_EXPECT_EQ(FullGradients(model), expected);
          return absl::OkStatus();
        },
        3);
  }
}

TEST(ShardedModuleTest, UnusedParametersKeepNoGradient) {
  const auto use = [] { return BranchUse::kSkipped; };
  Conditional dense(use);
  CH_CHECK_OK(Backward(Sum(dense.Forward(BatchOf(0, 1, 5)))));
  const Weights expected = FullGradients(dense);
  EXPECT_TRUE(expected[1].empty());
  for (const bool apart : {false, true}) {
    OnRanks({{"replicate", 2}, {"fsdp", 2}},
            [&](const DeviceMesh& mesh, LineSink&) -> absl::Status {
              Conditional model(use);
              if (apart) {
                CH_RETURN_IF_ERROR(FullyShard(model.b, mesh, Summing()));
              }
              CH_RETURN_IF_ERROR(FullyShard(model, mesh, Summing()));
              for (int step = 0; step < 2; ++step) {
                CH_RETURN_IF_ERROR(Backward(
                    Sum(model.Forward(BatchOf(mesh.world().rank(), 4, 5)))));
                CH_EXPECT_FALSE(model.b.weight()->grad().defined());
                CH_EXPECT_EQ(FullGradients(model), expected);
                for (nn::Parameter* p : model.Parameters()) {
                  p->set_grad(Tensor());
                }
              }
              return absl::OkStatus();
            });
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
