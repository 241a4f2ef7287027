// SPDX-License-Identifier: Apache-2.0

// Dropout where each data-parallel rank has its own rows as plain tensors drops
// what one device drops that has the whole batch: on any mesh, of uneven and
// empty parts, in micro-batches, recomputed, beside tensor parallelism.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/checkpoint.h"
#include "crosshatch/nn/dropout.h"
#include "crosshatch/nn/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/near.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kTime = 3;
// Of sums of at most 21 products in other orders.
constexpr double kRoundings = 64;

// [B, T, 5] to [B, T, 2]; the last dropout sees rows and times as one dim, the
// middle one is split by features under tensor parallelism.
class Net final : public nn::Module {
 public:
  Net() {
    RegisterModule("drop_in", drop_in_);
    RegisterModule("up", up_);
    RegisterModule("drop", drop_);
    RegisterModule("down", down_);
    RegisterModule("drop_out", drop_out_);
  }
  const char* type_name() const override { return "Net"; }
  nn::Dropout& drop() { return drop_; }
  nn::Linear& up() { return up_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor hidden =
        drop_.Forward(Gelu(up_.Forward(drop_in_.Forward(inputs[0]))));
    const Tensor out = down_.Forward(hidden);
    const Tensor flat = Reshape(out, {out.size(0) * kTime, 2});
    return {Reshape(drop_out_.Forward(flat), {out.size(0), kTime, 2})};
  }

 private:
  nn::Dropout drop_in_{0.25};
  nn::Linear up_{5, 8};
  nn::Dropout drop_{0.5};
  nn::Linear down_{8, 2};
  nn::Dropout drop_out_{0.25};
};

struct Case {
  std::string name;
  /// Of each micro-batch of a step, the rows of each data-parallel rank.
  std::vector<std::vector<int64_t>> parts;
  int tp = 1;
  bool checkpoint = false;
  bool replicate = false;
};

int64_t SumOf(const std::vector<int64_t>& parts) {
  int64_t sum = 0;
  for (const int64_t part : parts) sum += part;
  return sum;
}

constexpr int64_t kAllRows = 7;

// Rows [begin, end) of the whole batch.
Tensor Rows(int64_t begin, int64_t end) {
  return Slice(SmallIntegers({kAllRows, kTime, 5}, 3), 0, begin, end);
}

// The loss of a step, a sum over rows.
absl::StatusOr<double> StepOf(Net& model, const Tensor& rows) {
  const Tensor loss = Sum(Square(model.Forward(rows)));
  CH_RETURN_IF_ERROR(Backward(loss));
  return FullTensor(loss).ToVector<double>()[0];
}

absl::StatusOr<Values> GradientsOf(Net& model) {
  Values values;
  for (nn::Parameter* p : model.Parameters()) {
    values.push_back(FullTensor(p->grad()).ToVector<float>());
  }
  return values;
}

// Two steps on one device, each the whole batch in one forward.
struct Reference {
  std::vector<double> losses;
  std::vector<Values> gradients;
};

absl::StatusOr<Reference> OnOneDevice() {
  Net model;
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
  Reference reference;
  for (uint64_t step = 0; step < 2; ++step) {
    nn::SetDropoutStep(model, 11, step);
    for (nn::Parameter* p : model.Parameters()) p->set_grad(Tensor());
    CH_ASSIGN_OR_RETURN(reference.losses.emplace_back(),
                        StepOf(model, Rows(0, kAllRows)));
    CH_ASSIGN_OR_RETURN(reference.gradients.emplace_back(), GradientsOf(model));
  }
  return reference;
}

class DropoutBatchTest : public ::testing::TestWithParam<Case> {};

TEST_P(DropoutBatchTest, IsThatOfOneDevice) {
  const Case& c = GetParam();
  const absl::StatusOr<Reference> reference = OnOneDevice();
  ASSERT_TRUE(reference.ok()) << reference.status();
  const int ranks = static_cast<int>(c.parts[0].size());
  OnMesh({{"fsdp", ranks}, {"tp", c.tp}},
         [&](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
           CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
           Net model;
           fsdp::FullyShardOptions options = {.gradient_divide_factor = 1};
           if (c.tp > 1) {
             options.extension = DTensorExtensions::Create();
             CH_RETURN_IF_ERROR(
                 tp::ParallelizeModule(model, tp,
                                       {{"up", tp::ColwiseParallel()},
                                        {"down", tp::RowwiseParallel()}}));
           }
           if (c.replicate) {
             CH_RETURN_IF_ERROR(fsdp::Replicate(model, fsdp, options));
           } else {
             CH_RETURN_IF_ERROR(fsdp::FullyShard(model.up(), fsdp, options));
             CH_RETURN_IF_ERROR(fsdp::FullyShard(model, fsdp, options));
           }
           if (c.checkpoint) {
             CH_RETURN_IF_ERROR(nn::Checkpoint(model.drop()));
             CH_RETURN_IF_ERROR(nn::Checkpoint(model));
           }
           CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
           const auto here = static_cast<size_t>(*fsdp.index(0));
           for (uint64_t step = 0; step < 2; ++step) {
             nn::SetDropoutStep(model, 11, step);
             for (nn::Parameter* p : model.Parameters()) p->set_grad(Tensor());
             double loss = 0;
             int64_t begin = 0;
             for (const std::vector<int64_t>& parts : c.parts) {
               int64_t first = begin;
               for (size_t r = 0; r < here; ++r) first += parts[r];
               CH_ASSIGN_OR_RETURN(
                   const double of_part,
                   StepOf(model, Rows(first, first + parts[here])));
               loss += of_part;
               begin += SumOf(parts);
             }
             const Tensor losses = FromLocal(
                 FromValues<float>(
                     {1}, std::vector<float>{static_cast<float>(loss)}),
                 fsdp, Layout::Replicated(fsdp.layout(), 1).WithShard(0, 0),
                 Layout::Replicated(fsdp.layout(), 1).WithShard(0, 0));
             const auto all = FullTensor(losses).ToVector<double>();
             double sum = 0;
             for (const double of_rank : all) sum += of_rank;
             const double expected = reference->losses[step];
             CH_EXPECT_NEAR(sum, expected, 64 * 0x1p-24 * expected) << step;
             CH_ASSIGN_OR_RETURN(const Values gradients, GradientsOf(model));
             ExpectNear(gradients, reference->gradients[step], kRoundings);
           }
           return absl::OkStatus();
         });
}

INSTANTIATE_TEST_SUITE_P(
    All, DropoutBatchTest,
    ::testing::Values(
        Case{"fsdp2", {{4, 3}}}, Case{"fsdp2_one_has_none", {{0, 7}}},
        Case{"fsdp3", {{3, 3, 1}}}, Case{"fsdp3_middle_has_none", {{5, 0, 2}}},
        Case{"replicate2", {{2, 5}}, 1, false, true},
        Case{"accumulation", {{2, 1}, {0, 2}, {1, 1}}},
        Case{"accumulation3", {{1, 0, 2}, {2, 1, 1}}},
        Case{"recomputed", {{4, 3}}, 1, true},
        Case{"recomputed_accumulation", {{2, 1}, {1, 3}}, 1, true},
        Case{"tp2", {{7}}, 2}, Case{"fsdp2_tp2", {{4, 3}}, 2},
        Case{"fsdp3_tp2_recomputed_accumulation",
             {{1, 0, 2}, {2, 1, 1}},
             2,
             true}),
    [](const auto& info) { return info.param.name; });

// Whoever splits the batch in another way says which rows a forward has.
TEST(DropoutBatchScopeTest, HoldsInsteadOfWhatShardingTells) {
  const absl::StatusOr<Reference> reference = OnOneDevice();
  ASSERT_TRUE(reference.ok()) << reference.status();
  OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    Net model;
    CH_RETURN_IF_ERROR(
        fsdp::FullyShard(model, mesh, {.gradient_divide_factor = 1}));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
    nn::SetDropoutStep(model, 11, 0);
    // The first rank has the last rows.
    const bool first = *mesh.index(0) == 0;
    const int64_t begin = first ? 4 : 0;
    const int64_t end = first ? kAllRows : 4;
    const nn::BatchRowsScope rows(
        {.first = begin, .here = end - begin, .total = kAllRows});
    CH_RETURN_IF_ERROR(StepOf(model, Rows(begin, end)).status());
    CH_ASSIGN_OR_RETURN(const Values gradients, GradientsOf(model));
    ExpectNear(gradients, reference->gradients[0], kRoundings);
    return absl::OkStatus();
  });
}

// A Dropout that nobody tells of its rows says so rather than drop alike.
TEST(DropoutBatchDeathTest, OutsideOfShardedModules) {
  const auto run = [] {
    OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
      Net model;
      CH_RETURN_IF_ERROR(fsdp::FullyShard(model.up(), mesh));
      CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
      nn::SetDropoutStep(model, 11, 0);
      return StepOf(model, Rows(0, 2)).status();
    });
  };
  EXPECT_DEATH(run(),
               "Dropout \"drop_in\" does not know which rows of the "
               "batch it has.*FullyShard on the whole model");
}

}  // namespace
}  // namespace crosshatch
