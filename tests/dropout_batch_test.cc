// SPDX-License-Identifier: Apache-2.0

/// \file
/// Dropout on plain tensors, where each data-parallel rank has its own rows,
/// drops the elements that one device drops for the whole batch. Covers all
/// meshes, uneven and empty parts, micro-batches, recomputation and tensor
/// parallelism.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
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
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/layers/dropout.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/near.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTime = 3;
// Sums of at most 21 products in different orders.
constexpr double kRoundings = 64;

// [B, T, 5] to [B, T, 2]; the last dropout sees rows and times as one dim, the
// middle one is split by features under tensor parallelism.
class Net final : public nn::Module {
 public:
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
  nn::Dropout& drop_in_ = Make<nn::Dropout>("drop_in", 0.25);
  nn::Linear& up_ = Make<nn::Linear>("up", 5, 8);
  nn::Dropout& drop_ = Make<nn::Dropout>("drop", 0.5);
  nn::Linear& down_ = Make<nn::Linear>("down", 8, 2);
  nn::Dropout& drop_out_ = Make<nn::Dropout>("drop_out", 0.25);
};

struct Case {
  std::string name;
  /// By micro-batch, the number of rows of each data-parallel rank.
  std::vector<std::vector<int64_t>> parts;
  int tp = 1;
  bool checkpoint = false;
  bool replicate = false;
  /// The replicas of each shard, on a second axis.
  int copies = 1;
};

int64_t SumOf(const std::vector<int64_t>& parts) {
  int64_t sum = 0;
  for (const int64_t part : parts) sum += part;
  return sum;
}

constexpr int64_t kAllRows = 7;

// Returns rows [begin, end) of the whole batch.
Tensor Rows(int64_t begin, int64_t end) {
  return Slice(SmallIntegers({kAllRows, kTime, 5}, 3), 0, begin, end);
}

absl::StatusOr<double> StepOf(Net& model, const Tensor& rows) {
  const Tensor loss = Sum(Square(model.Forward(rows)));
  CH_RETURN_IF_ERROR(Backward(loss));
  return FullTensor(loss).ToVector<double>()[0];
}

absl::StatusOr<Values> GradientsOf(nn::Module& model) {
  Values values;
  for (nn::Parameter* p : model.Parameters()) {
    values.push_back(FullTensor(p->grad()).ToVector<float>());
  }
  return values;
}

// Results of two steps on one device, with the whole batch in one forward.
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
  std::vector<MeshAxis> axes = {{"fsdp", ranks / c.copies}, {"tp", c.tp}};
  std::vector<std::string> batch = {"fsdp"};
  if (c.copies > 1) {
    axes.insert(axes.begin(), {"copies", c.copies});
    batch.insert(batch.begin(), "copies");
  }
  OnMesh(axes, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice(batch));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    Net model;
    fsdp::FullyShardOptions options = {.reduction = {.divide_factor = 1}};
    if (c.tp > 1) {
      options.extension = DTensorExtensions::Create();
      CH_RETURN_IF_ERROR(tp::ParallelizeModule(
          model, tp,
          {{"up", tp::ColwiseParallel()}, {"down", tp::RowwiseParallel()}}));
    }
    if (c.replicate) {
      CH_RETURN_IF_ERROR(fsdp::Replicate(model, fsdp, options));
    } else {
      CH_RETURN_IF_ERROR(fsdp::FullyShard(model.up(), fsdp, options));
      CH_RETURN_IF_ERROR(fsdp::FullyShard(model, fsdp, options));
    }
    if (c.checkpoint) {
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(model.drop()));
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(model));
    }
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
    auto here = static_cast<size_t>(*fsdp.index(0));
    Layout by_rank = Layout::Replicated(fsdp.layout(), 1).WithShard(0, 0);
    if (c.copies > 1) {
      here = here * static_cast<size_t>(fsdp.size(1)) +
             static_cast<size_t>(*fsdp.index(1));
      by_rank = by_rank.WithShard(1, 0);
    }
    for (uint64_t step = 0; step < 2; ++step) {
      nn::SetDropoutStep(model, 11, step);
      for (nn::Parameter* p : model.Parameters()) p->set_grad(Tensor());
      double loss = 0;
      int64_t begin = 0;
      for (const std::vector<int64_t>& parts : c.parts) {
        int64_t first = begin;
        for (size_t r = 0; r < here; ++r) first += parts[r];
        CH_ASSIGN_OR_RETURN(const double of_part,
                            StepOf(model, Rows(first, first + parts[here])));
        loss += of_part;
        begin += SumOf(parts);
      }
      const Tensor losses = FromLocal(
          FromValues<float>({1}, std::vector<float>{static_cast<float>(loss)}),
          fsdp, by_rank, by_rank);
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
             true},
        Case{"hsdp2x2", {{2, 1, 0, 4}}, 1, false, false, 2},
        Case{"hsdp2x2_accumulation",
             {{1, 0, 2, 1}, {1, 1, 0, 1}},
             1,
             false,
             false,
             2}),
    [](const auto& info) { return info.param.name; });

// A gated block: each row uses it or not. It calls one Dropout several times
// per forward, and is not called if no row uses it.
class Gated final : public nn::Module {
 public:
  explicit Gated(int calls) : calls_(calls) {}

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor y = inputs[0];
    for (int call = 0; call < calls_; ++call) {
      y = drop_.Forward(linear_.Forward(y));
    }
    return {y};
  }

 private:
  const int calls_;
  nn::Linear& linear_ = Make<nn::Linear>("linear", 5, 5);
  nn::Dropout& drop_ = Make<nn::Dropout>("drop", 0.5);
};

constexpr int kBlocks = 2;

class GatedNet final : public nn::Module {
 public:
  explicit GatedNet(uint64_t seed) : seed_(seed) {
    for (int b = 0; b < kBlocks; ++b) {
      blocks_.push_back(
          &Make<Gated>("blocks." + std::to_string(b), Hash(b) % 3 + 1));
    }
  }
  Gated& block(int b) { return *blocks_[static_cast<size_t>(b)]; }
  /// Sets the first row of the following forwards.
  void set_first_row(int64_t first) { first_row_ = first; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    for (int b = 0; b < kBlocks; ++b) {
      std::vector<float> takes;
      for (int64_t row = 0; row < inputs[0].size(0); ++row) {
        takes.push_back(Hash(kBlocks + b + kBlocks * (first_row_ + row)) % 2);
      }
      if (std::find(takes.begin(), takes.end(), 1.0f) == takes.end()) continue;
      const Tensor gate = FromValues<float>({inputs[0].size(0), 1, 1},
                                            absl::MakeConstSpan(takes));
      x = x + gate * block(b).Forward(x);
    }
    return {out_.Forward(x)};
  }

 private:
  uint64_t Hash(int64_t i) const {
    return ((seed_ + 1) * 0x9e3779b97f4a7c15u *
            (2 * static_cast<uint64_t>(i) + 1)) >>
           33;
  }

  const uint64_t seed_;
  std::vector<Gated*> blocks_;
  nn::Linear& out_ = Make<nn::Linear>("out", 5, 2);
  int64_t first_row_ = 0;
};

TEST(DropoutBatchLawTest, SkippedAndRepeatedCallsDropAsOnOneDevice) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    GatedNet one(seed);
    ASSERT_TRUE(one.Materialize({.seed = 5}).ok());
    nn::SetDropoutStep(one, 11, seed);
    ASSERT_TRUE(Backward(Sum(Square(one.Forward(Rows(0, kAllRows))))).ok());
    Values expected;
    for (nn::Parameter* p : one.Parameters()) {
      expected.push_back(p->grad().defined() ? p->grad().ToVector<float>()
                                             : std::vector<float>());
    }
    const int ranks = 2 + static_cast<int>(seed % 2);
    OnMesh({{"fsdp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      GatedNet model(seed);
      const fsdp::FullyShardOptions options = {
          .reduction = {.divide_factor = 1}};
      for (int b = 0; b < kBlocks; ++b) {
        CH_RETURN_IF_ERROR(fsdp::FullyShard(model.block(b), mesh, options));
      }
      CH_RETURN_IF_ERROR(fsdp::FullyShard(model, mesh, options));
      CH_RETURN_IF_ERROR(fsdp::Configure(model, [](fsdp::Settings& settings) {
        settings.reduce_unused_params = true;
      }));
      CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
      nn::SetDropoutStep(model, 11, seed);
      // One row at a time, on alternating ranks.
      for (int64_t first = 0; first < kAllRows; first += ranks) {
        const int64_t begin =
            std::min<int64_t>(kAllRows, first + *mesh.index(0));
        const int64_t end = std::min<int64_t>(kAllRows, begin + 1);
        model.set_first_row(begin);
        CH_RETURN_IF_ERROR(
            Backward(Sum(Square(model.Forward(Rows(begin, end))))));
      }
      CH_ASSIGN_OR_RETURN(Values gradients, GradientsOf(model));
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (expected[i].empty()) gradients[i].clear();
      }
      ExpectNear(gradients, expected, kRoundings);
      return absl::OkStatus();
    });
  }
}

// A program that splits the batch itself sets the rows of a forward.
TEST(DropoutBatchScopeTest, OverridesTheRowsOfSharding) {
  const absl::StatusOr<Reference> reference = OnOneDevice();
  ASSERT_TRUE(reference.ok()) << reference.status();
  OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    Net model;
    CH_RETURN_IF_ERROR(
        fsdp::FullyShard(model, mesh, {.reduction = {.divide_factor = 1}}));
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

// Of positions [T], in front or not or not there, and x [rows, T, 5] to
// [rows, T, 2].
class WithPositions final : public nn::Module {
 public:
  /// \param flat whether dropout treats rows and times as one dim
  explicit WithPositions(bool flat) : flat_(flat) {}

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor up =
        up_.Forward(inputs[0].ndim() == 3 ? inputs[0] : inputs[1]);
    return {drop_.Forward(flat_ ? Flatten(up, 0, 1) : up)};
  }

 private:
  const bool flat_;
  nn::Linear& up_ = Make<nn::Linear>("up", 5, 2);
  nn::Dropout& drop_ = Make<nn::Dropout>("drop", 0.5);
};

// Runs two steps of a WithPositions on each rank's rows.
absl::Status StepsOf(const DeviceMesh& mesh, const std::vector<int64_t>& parts,
                     bool flat, const std::function<TensorList(Tensor)>& inputs,
                     std::optional<nn::BatchRows> rows = std::nullopt) {
  WithPositions model(flat);
  CH_RETURN_IF_ERROR(fsdp::FullyShard(model, mesh));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
  const auto here = static_cast<size_t>(*mesh.index(0));
  std::optional<nn::BatchRowsScope> scope;
  if (rows.has_value()) scope.emplace(*rows);
  for (uint64_t step = 0; step < 2; ++step) {
    nn::SetDropoutStep(model, 11, step);
    const Tensor x = SmallIntegers({parts[here], kTime, 5}, 3);
    CH_RETURN_IF_ERROR(Backward(Sum(model.Call(inputs(x))[0])));
  }
  return absl::OkStatus();
}

// The first input determines the row count. If it is no batch and ranks have
// different row counts, the step is an error, because ranks would drop the same
// elements.
TEST(DropoutBatchErrorsTest, TheFirstInputIsNoBatch) {
  const auto positions_first = [](const Tensor& x) -> TensorList {
    return {Arange(kTime, kInt64), x};
  };
  const auto run = [&](const std::vector<int64_t>& parts) {
    return StatusOfRanks(2, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(world, {{"fsdp", 2}}));
      return StepsOf(mesh, parts, false, positions_first);
    });
  };
  EXPECT_THAT(
      std::string(run({6, 3}).message()),
      HasSubstr("drop (Dropout) in WithPositions draws for rows that are 2 of "
                "its input's batch dim on rank 0 and 1 on rank 1: the first "
                "input's rows are taken as the batch, i64[3] on "));
  EXPECT_THAT(
      std::string(run({0, 3}).message()),
      HasSubstr("0 of its input's batch dim on rank 0 and 1 on rank 1"));
  // With equal row counts the result is right.
  EXPECT_EQ(run({6, 6}), absl::OkStatus());
  OnMesh({{"fsdp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    // Two ways to fix it.
    const bool first = *mesh.index(0) == 0;
    CH_RETURN_IF_ERROR(StepsOf(
        mesh, {6, 3}, false, positions_first,
        nn::BatchRows{
            .first = first ? 0 : 6, .here = first ? 6 : 3, .total = 9}));
    return StepsOf(mesh, {6, 3}, false, [&](const Tensor& x) -> TensorList {
      return {x, Arange(kTime, kInt64), x};
    });
  });
}

TEST(DropoutBatchErrorsTest, RowsMayBePaddedToOtherLengths) {
  OnMesh({{"fsdp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    return StepsOf(mesh, {2, 3}, true, [&](const Tensor& x) -> TensorList {
      return {*mesh.index(0) == 0 ? x : Slice(x, 1, 0, kTime - 1)};
    });
  });
}

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
