// SPDX-License-Identifier: Apache-2.0

/// \file
/// Attention and MLP split by heads and units on any number of ranks. Grouped
/// queries: fewer key heads or fewer heads than ranks, separate and merged
/// projections, Llama and a program's own model, with and without FSDP; three
/// steps of AdamW equal those of one rank, and replicated key heads need no
/// gather. Projections merged into one matrix, as in many models (q, k and v,
/// or gate and up): each part stays split by heads for either order of rows,
/// and nothing is gathered.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/near.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kVocab = 11;
constexpr int64_t kDim = 12;
constexpr int64_t kWidth = 4;  // Of a head.

enum class Kind { kLlama, kApart, kInARow, kByUnits };

struct Case {
  const char* name;
  Kind kind;
  int64_t heads;
  int64_t kv_heads;
  int fsdp;
  int tp;
  /// Whether implicit redistributions are forbidden, for Llama. Then no keys
  /// are gathered.
  bool forbids = true;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// [grouped_attention]
// A program's own attention. It derives the number of heads from the outputs of
// its projections, because a rank has only some of them.
class Attention final : public nn::Module {
 public:
  Attention(int64_t dim, int64_t heads, int64_t kv_heads, int64_t width)
      : width_(width),
        q_(dim, heads * width, {.stddev = 0.3}),
        k_(dim, kv_heads * width, {.stddev = 0.3}),
        v_(dim, kv_heads * width, {.stddev = 0.3}),
        out_(heads * width, dim, {.stddev = 0.3}) {
    RegisterModule("q", q_);
    RegisterModule("k", k_);
    RegisterModule("v", v_);
    RegisterModule("out", out_);
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const auto heads = [&](nn::Linear& projection) {
      const Tensor y = projection.Forward(inputs[0]);
      return View(y, {y.size(0), y.size(1), y.size(2) / width_, width_});
    };
    const Tensor y = CausalAttention(heads(q_), heads(k_), heads(v_), 0.5);
    return {out_.Forward(View(y, {y.size(0), y.size(1), y.size(2) * width_}))};
  }

 private:
  const int64_t width_;
  nn::Linear q_;
  nn::Linear k_;
  nn::Linear v_;
  nn::Linear out_;
};

// Returns a plan that keeps the query heads of a key head together. With more
// ranks than key heads, it splits query heads individually and replicates key
// heads.
tp::ParallelPlan PlanOf(int64_t heads, int64_t kv_heads, int64_t width) {
  const int64_t group = heads / kv_heads * width;
  const tp::Style keys =
      tp::ColwiseParallel({.unit = width, .query_heads = heads});
  return {
      {"attention.q", tp::ColwiseParallel({.unit = group, .subunit = width})},
      {"attention.k", keys},
      {"attention.v", keys},
      {"attention.out",
       tp::RowwiseParallel({.unit = group, .subunit = width})}};
}
// [/grouped_attention]

// Merges queries, keys and values in one projection. Its rows are in three
// blocks, or in units of a key head's queries, the key and the value.
class MergedAttention final : public nn::Module {
 public:
  explicit MergedAttention(const Case& c)
      : case_(c), group_(c.heads / c.kv_heads) {}

  static tp::ParallelPlan Plan(const Case& c, const std::string& prefix) {
    const int64_t group = c.heads / c.kv_heads;
    const bool by_units = c.kind == Kind::kByUnits;
    return {{prefix + "qkv",
             tp::ColwiseParallel(
                 {.unit = by_units ? (group + 2) * kWidth : kWidth})},
            {prefix + "out",
             tp::RowwiseParallel(
                 {.unit = group * kWidth, .subunit = by_units ? 0 : kWidth})}};
  }

  // Returns the layouts of the parts in the last forward.
  const std::vector<std::string>& layouts() const { return layouts_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor merged = qkv_.Forward(inputs[0]);
    const int64_t kv = case_.kv_heads * kWidth;
    TensorList parts =
        case_.kind == Kind::kByUnits
            ? SplitUnits(merged, {group_ * kWidth, kWidth, kWidth}, -1)
            : Split(merged, {case_.heads * kWidth, kv, kv}, -1);
    layouts_.clear();
    for (Tensor& part : parts) {
      if (part.is_distributed()) {
        layouts_.push_back(LayoutOf(part).ToString());
      }
      part = View(part,
                  {part.size(0), part.size(1), part.size(2) / kWidth, kWidth});
    }
    const Tensor y = CausalAttention(parts[0], parts[1], parts[2], 0.5);
    return {out_.Forward(View(y, {y.size(0), y.size(1), y.size(2) * kWidth}))};
  }

 private:
  const Case case_;
  const int64_t group_;
  nn::Linear& qkv_ = Make<nn::Linear>(
      "qkv", {.in = kDim,
              .out = (case_.heads + 2 * case_.kv_heads) * kWidth,
              .bias = true,
              .stddev = 0.3});
  nn::Linear& out_ = Make<nn::Linear>(
      "out", {.in = case_.heads * kWidth, .out = kDim, .stddev = 0.3});
  std::vector<std::string> layouts_;
};

// Gate and up are merged by units. The norms have no style.
class OwnModel final : public nn::Module {
 public:
  explicit OwnModel(const Case& c)
      : attention_(c.kind == Kind::kApart
                       ? static_cast<nn::Module&>(Make<Attention>(
                             "attention", kDim, c.heads, c.kv_heads, kWidth))
                       : Make<MergedAttention>("attention", c)) {}

  static tp::ParallelPlan Plan(const Case& c) {
    tp::ParallelPlan plan = c.kind == Kind::kApart
                                ? PlanOf(c.heads, c.kv_heads, kWidth)
                                : MergedAttention::Plan(c, "attention.");
    plan.insert(plan.end(),
                {{"embed", tp::RowwiseParallel()},
                 {"gate_up", tp::ColwiseParallel({.unit = 2 * kInnerUnit})},
                 {"down", tp::RowwiseParallel({.unit = kInnerUnit})},
                 {"head", tp::ColwiseParallel()}});
    return plan;
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = embed_.Forward(inputs[0]);
    x = Add(x, attention_.Forward(norm_.Forward(x)));
    const TensorList parts = SplitUnits(gate_up_.Forward(mlp_norm_.Forward(x)),
                                        {kInnerUnit, kInnerUnit}, -1);
    return {head_.Forward(Add(x, down_.Forward(SwiGlu(parts[0], parts[1]))))};
  }

 private:
  static constexpr int64_t kInnerUnit = 3;
  static constexpr int64_t kInner = 15;

  nn::Embedding& embed_ = Make<nn::Embedding>("embed", kVocab, kDim, 0.5);
  nn::RmsNorm& norm_ = Make<nn::RmsNorm>("norm", kDim, 1e-5);
  nn::Module& attention_;
  nn::RmsNorm& mlp_norm_ = Make<nn::RmsNorm>("mlp_norm", kDim, 1e-5);
  nn::Linear& gate_up_ = Make<nn::Linear>(
      "gate_up", {.in = kDim, .out = 2 * kInner, .stddev = 0.3});
  nn::Linear& down_ =
      Make<nn::Linear>("down", {.in = kInner, .out = kDim, .stddev = 0.3});
  nn::Linear& head_ =
      Make<nn::Linear>("head", {.in = kDim, .out = kVocab, .stddev = 0.3});
};

nn::LlamaConfig LlamaOf(const Case& c) {
  return {.dim = kWidth * c.heads,
          .layers = 2,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .ffn = 7,
          .vocab = kVocab,
          .initializer_stddev = 0.3};
}

std::unique_ptr<nn::Module> Make(const Case& c) {
  if (c.kind != Kind::kLlama) return std::make_unique<OwnModel>(c);
  return std::make_unique<nn::Llama>(LlamaOf(c));
}

absl::Status Spread(const Case& c, const DeviceMesh& mesh, nn::Module& model) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
  CH_RETURN_IF_ERROR(
      c.kind == Kind::kLlama
          ? tp::ParallelizeModule(model, tp, tp::LlamaPlan(LlamaOf(c)))
          : tp::ParallelizeModule(model, tp, OwnModel::Plan(c),
                                  {.replicate_rest = true}));
  if (fsdp.size() == 1) return absl::OkStatus();
  return fsdp::FullyShard(model, fsdp,
                          {.extension = DTensorExtensions::Create()});
}

// The first of two FSDP ranks has two of the three rows, the second has one.
Tensor Tokens(int64_t begin, int64_t end, int64_t shift) {
  constexpr int64_t kLength = 5;
  std::vector<int32_t> ids;
  for (int64_t i = begin * kLength; i < end * kLength; ++i) {
    ids.push_back(static_cast<int32_t>((i * i + 3 * i + shift) % kVocab));
  }
  return FromValues<int32_t>({end - begin, kLength}, ids);
}

// Returns the losses of three steps, then the weights. AdamW's large eps keeps
// differences of small gradients small.
absl::StatusOr<Values> Train(nn::Module& model,
                             const std::optional<DeviceMesh>& fsdp) {
  int64_t begin = 0;
  int64_t end = 3;
  if (fsdp.has_value() && fsdp->size() == 2) {
    (*fsdp->index(0) == 0 ? end : begin) = 2;
  }
  nn::CrossEntropyLossOptions loss_options;
  loss_options.label_smoothing = 0.1;
  if (fsdp.has_value()) loss_options.mean_over = fsdp;
  nn::AdamW optimizer(model.Parameters(),
                      {.lr = 0.01, .eps = 0.01, .weight_decay = 0.1});
  Values values;
  for (int step = 0; step < 3; ++step) {
    const Tensor loss =
        nn::CrossEntropyLoss(model.Forward(Tokens(begin, end, step)),
                             Tokens(begin, end, step + 1), loss_options);
    CH_RETURN_IF_ERROR(Backward(loss));
    double mean = 0;
    if (fsdp.has_value()) {
      CH_ASSIGN_OR_RETURN(mean, nn::MeanOverAxis(loss, *fsdp));
    } else {
      mean = loss.ToVector<float>()[0];
    }
    values.push_back({static_cast<float>(mean)});
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
  }
  for (nn::Parameter* p : model.Parameters()) {
    values.push_back(FullTensor(p->data()).ToVector<float>());
  }
  return values;
}

// Gradients are below 1, sums of some 200 products in different orders. An
// update divides that error by eps. The largest element of each tensor is above
// one half.
constexpr double kRoundings = 2 * (3 * 200 + 16);

class GroupedHeadsTest : public ::testing::TestWithParam<Case> {};

TEST_P(GroupedHeadsTest, TrainsAsOneRankDoes) {
  const Case& c = GetParam();
  const std::unique_ptr<nn::Module> one = Make(c);
  ASSERT_TRUE(one->Materialize({.seed = 3}).ok());
  const absl::StatusOr<Values> expected = Train(*one, std::nullopt);
  ASSERT_TRUE(expected.ok()) << expected.status();
  OnMesh({{"fsdp", c.fsdp}, {"tp", c.tp}},
         [&](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
           const std::unique_ptr<nn::Module> model = Make(c);
           CH_RETURN_IF_ERROR(Spread(c, mesh, *model));
           CH_RETURN_IF_ERROR(model->Materialize({.seed = 3}));
           const ImplicitRedistributionScope scope(
               c.kind == Kind::kLlama && c.forbids
                   ? ImplicitRedistribution::kForbid
                   : ImplicitRedistribution::kAllow);
           CH_ASSIGN_OR_RETURN(const Values values, Train(*model, fsdp));
           ExpectNear(values, *expected, kRoundings);
           return absl::OkStatus();
         });
}

INSTANTIATE_TEST_SUITE_P(
    All, GroupedHeadsTest,
    ::testing::Values(
        Case{"llama_kv2_tp4", Kind::kLlama, 4, 2, 1, 4},
        Case{"llama_kv1_tp4", Kind::kLlama, 4, 1, 1, 4},
        Case{"llama_kv2_fsdp2_tp4", Kind::kLlama, 8, 2, 2, 4},
        Case{"llama_kv1_fsdp2_tp3", Kind::kLlama, 3, 1, 2, 3},
        // Ranks that share queries in other ways gather keys.
        Case{"llama_kv2_tp3", Kind::kLlama, 4, 2, 1, 3, false},
        Case{"llama_heads2_fsdp2_tp4", Kind::kLlama, 2, 1, 2, 4, false},
        Case{"apart_kv2_tp4", Kind::kApart, 4, 2, 1, 4},
        Case{"apart_kv1_fsdp2_tp2", Kind::kApart, 2, 1, 2, 2},
        Case{"apart_kv2_fsdp2_tp4", Kind::kApart, 8, 2, 2, 4},
        Case{"apart_kv3_fsdp2_tp2", Kind::kApart, 6, 3, 2, 2},
        Case{"apart_heads2_tp4", Kind::kApart, 2, 2, 1, 4},
        Case{"in_a_row_kv2_fsdp2_tp2", Kind::kInARow, 4, 2, 2, 2},
        Case{"in_a_row_kv2_fsdp2_tp4", Kind::kInARow, 8, 2, 2, 4},
        Case{"by_units_kv3_fsdp2_tp2", Kind::kByUnits, 6, 3, 2, 2},
        Case{"by_units_kv2_fsdp2_tp4", Kind::kByUnits, 4, 2, 2, 4}),
    [](const auto& info) { return info.param.name; });

// Computes results and gradients. Counts the communication of the results
// before gathering them.
absl::Status StepOf(nn::Module& model, TensorList& results) {
  Tensor x = SmallIntegers({2, 5, kDim}, 1);
  x.set_requires_grad(true);
  const Tensor y = model.Forward(x);
  CH_RETURN_IF_ERROR(Backward(Sum(Tanh(y))));
  results = {y, x.grad()};
  for (nn::Parameter* p : model.Parameters()) results.push_back(p->grad());
  return absl::OkStatus();
}

Values WholeOf(const TensorList& results) {
  Values values;
  for (const Tensor& t : results) {
    values.push_back(FullTensor(t).ToVector<float>());
  }
  return values;
}

// Sums of at most some 60 products in different orders.
constexpr double kMergedRoundings = 200;

int64_t Calls(const DeviceMesh& mesh, CollectiveKind kind) {
  int64_t calls = 0;
  for (const auto& communicator : mesh.communicators()) {
    calls += communicator->stats().by_kind[static_cast<int>(kind)].calls;
  }
  return calls;
}

class MergedProjectionTest : public ::testing::TestWithParam<Case> {};

TEST_P(MergedProjectionTest, StaysSplitByHeads) {
  const Case& c = GetParam();
  MergedAttention one(c);
  ASSERT_TRUE(one.Materialize({.seed = 3}).ok());
  TensorList results;
  ASSERT_TRUE(StepOf(one, results).ok());
  const Values expected = WholeOf(results);
  OnMesh({{"tp", c.tp}}, [&](const DeviceMesh& mesh) -> absl::Status {
    MergedAttention model(c);
    CH_RETURN_IF_ERROR(
        tp::ParallelizeModule(model, mesh, MergedAttention::Plan(c, "")));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
    TensorList results;
    CH_RETURN_IF_ERROR(StepOf(model, results));
    for (const std::string& layout : model.layouts()) {
      CH_EXPECT_EQ(layout.substr(0, 5), "[S(2)");
    }
    CH_EXPECT_EQ(model.layouts().size(), 3u);
    CH_EXPECT_EQ(Calls(mesh, CollectiveKind::kAllGather), 0);
    if (c.kind == Kind::kByUnits) {
      CH_EXPECT_EQ(Calls(mesh, CollectiveKind::kAllToAll), 0);
    }
    ExpectNear(WholeOf(results), expected, kMergedRoundings);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, MergedProjectionTest,
    ::testing::Values(
        Case{"in_a_row_on_2", Kind::kInARow, 4, 4, 1, 2},
        Case{"in_a_row_on_3", Kind::kInARow, 3, 3, 1, 3},
        Case{"in_a_row_uneven", Kind::kInARow, 3, 3, 1, 2},
        Case{"in_a_row_fewer_than_ranks", Kind::kInARow, 2, 2, 1, 4},
        Case{"in_a_row_grouped", Kind::kInARow, 4, 2, 1, 2},
        Case{"by_units_on_2", Kind::kByUnits, 4, 4, 1, 2},
        Case{"by_units_uneven", Kind::kByUnits, 3, 3, 1, 2},
        Case{"by_units_fewer_than_ranks", Kind::kByUnits, 2, 2, 1, 3},
        Case{"by_units_grouped", Kind::kByUnits, 4, 2, 1, 2}),
    [](const auto& info) { return info.param.name; });

// Gate and up, merged in units of which a rank has whole ones.
class GatedMlp final : public nn::Module {
 public:
  explicit GatedMlp(bool by_units) : by_units_(by_units) {}

  static tp::ParallelPlan Plan(bool by_units) {
    return {
        {"gate_up", tp::ColwiseParallel({.unit = by_units ? 2 * kUnit : 1})},
        {"down", tp::RowwiseParallel({.unit = by_units ? kUnit : 1})}};
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor merged = gate_up_.Forward(inputs[0]);
    const TensorList parts = by_units_ ? SplitUnits(merged, {kUnit, kUnit}, -1)
                                       : Chunk(merged, 2, -1);
    return {down_.Forward(SwiGlu(parts[0], parts[1]))};
  }

 private:
  static constexpr int64_t kUnit = 4;
  static constexpr int64_t kInner = 12;
  const bool by_units_;
  nn::Linear& gate_up_ = Make<nn::Linear>(
      "gate_up", {.in = kDim, .out = 2 * kInner, .stddev = 0.5});
  nn::Linear& down_ =
      Make<nn::Linear>("down", {.in = kInner, .out = kDim, .stddev = 0.5});
};

TEST(MergedGateTest, StaysSplit) {
  for (const bool by_units : {false, true}) {
    GatedMlp one(by_units);
    ASSERT_TRUE(one.Materialize({.seed = 3}).ok());
    TensorList results;
    ASSERT_TRUE(StepOf(one, results).ok());
    const Values expected = WholeOf(results);
    for (const int ranks : {2, 3}) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        GatedMlp model(by_units);
        CH_RETURN_IF_ERROR(
            tp::ParallelizeModule(model, mesh, GatedMlp::Plan(by_units)));
        CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
        TensorList results;
        CH_RETURN_IF_ERROR(StepOf(model, results));
        CH_EXPECT_EQ(Calls(mesh, CollectiveKind::kAllGather), 0);
        if (by_units) {
          CH_EXPECT_EQ(Calls(mesh, CollectiveKind::kAllToAll), 0);
        }
        ExpectNear(WholeOf(results), expected, kMergedRoundings);
        return absl::OkStatus();
      });
    }
  }
}

TEST(MergedProjectionWeightsTest, ChangeTheirOrder) {
  const Tensor q = SmallIntegers({6, 2}, 1);
  const Tensor k = SmallIntegers({3, 2}, 2);
  const Tensor v = SmallIntegers({3, 2}, 3);
  const Tensor merged = MergeUnits({q, k, v}, {2, 1, 1}, 0);
  EXPECT_EQ(merged.sizes(), (Shape{12, 2}));
  // The first head: two rows of q, then one each of k and v.
  EXPECT_EQ(Narrow(merged, 0, 0, 4).ToVector<float>(),
            Cat({Narrow(q, 0, 0, 2), Narrow(k, 0, 0, 1), Narrow(v, 0, 0, 1)}, 0)
                .ToVector<float>());
  const TensorList parts = SplitUnits(merged, {2, 1, 1}, 0);
  EXPECT_EQ(parts[0].ToVector<float>(), q.ToVector<float>());
  EXPECT_EQ(parts[1].ToVector<float>(), k.ToVector<float>());
  EXPECT_EQ(parts[2].ToVector<float>(), v.ToVector<float>());
}

}  // namespace
}  // namespace crosshatch
