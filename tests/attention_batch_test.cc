// SPDX-License-Identifier: Apache-2.0

/// \file
/// Attention with all of its options, with heads split over tp and rows over
/// fsdp: values and gradients equal those of one rank, in micro-batches and
/// with recomputation.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/layers/dropout.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/models/llama.h"
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

constexpr int64_t kRows = 5;
constexpr int64_t kTime = 7;
constexpr int64_t kMemory = 4;  // Positions of the other sequence.
constexpr int64_t kDim = 6;
constexpr int64_t kWidth = 2;  // Of a head.

struct Heads {
  int64_t queries;
  int64_t keys;
};

// Self-attention within documents, with ALiBi and a learned bias per distance.
// Then attention to another sequence, with a mask of its keys. Both have
// dropout. Inputs are [B, T, D], the other sequence [B, S, D], the documents'
// keys and the mask [B, 1, 1, S]; the output is [B, T, D].
class Decoder final : public nn::Module {
 public:
  explicit Decoder(const Heads& heads)
      : slopes_(AlibiSlopes(heads.queries)),
        near_(Make<nn::Embedding>("near", kTime, heads.queries, 0.5)),
        own_(heads),
        other_(heads) {
    own_.Register("own", *this);
    other_.Register("other", *this);
  }

  struct Projections {
    explicit Projections(const Heads& heads)
        : q(kDim, heads.queries * kWidth, {.stddev = 0.5}),
          k(kDim, heads.keys * kWidth, {.stddev = 0.5}),
          v(kDim, heads.keys * kWidth, {.stddev = 0.5}),
          out(heads.queries * kWidth, kDim, {.stddev = 0.5}) {}

    void Register(const std::string& name, Decoder& parent) {
      parent.RegisterModule(name + ".q", q);
      parent.RegisterModule(name + ".k", k);
      parent.RegisterModule(name + ".v", v);
      parent.RegisterModule(name + ".drop", drop);
      parent.RegisterModule(name + ".out", out);
    }

    Tensor Attend(const Tensor& x, const Tensor& to, AttentionOptions options) {
      const auto heads = [](const Tensor& t) {
        return View(t, {t.size(0), t.size(1), t.size(2) / kWidth, kWidth});
      };
      // [dropout]
      const Tensor queries = heads(q.Forward(x));  // [B, T, heads, width]
      options.dropout = drop.ForAttention(queries);
      const Tensor attended = Attention(queries, heads(k.Forward(to)),
                                        heads(v.Forward(to)), options);
      // [/dropout]
      return out.Forward(Flatten(attended, 2));
    }

    nn::Linear q, k, v;
    nn::Dropout drop{0.25};
    nn::Linear out;
  };

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor& tokens = inputs[0];
    const Tensor& memory = inputs[1];  // Of the encoder.
    const Tensor& document_keys = inputs[2];
    const Tensor& seen = inputs[3];  // bool [B, 1, 1, S]
    // [options]
    // The learned bias of each distance per head: [T, T, heads].
    const Tensor near = near_.Forward(Distances());
    const Tensor own = own_.Attend(tokens, tokens,
                                   {.causal = true,
                                    .mask = Permute(near, {2, 0, 1}),
                                    .key_ranges = document_keys,
                                    .slopes = slopes_});
    const Tensor x = Add(tokens, own);
    return {Add(x, other_.Attend(x, memory, {.mask = seen}))};
    // [/options]
  }

 private:
  // i32 [T, T]
  static Tensor Distances() {
    std::vector<int32_t> distances;
    for (int32_t i = 0; i < kTime; ++i) {
      for (int32_t j = 0; j < kTime; ++j) distances.push_back(std::abs(i - j));
    }
    return FromValues<int32_t>({kTime, kTime}, distances);
  }

  const Tensor slopes_;
  nn::Embedding& near_;
  Projections own_;
  Projections other_;
};

// Returns rows [begin, end) of the batch. The mask hides all keys of row 1.
TensorList Rows(int64_t begin, int64_t end) {
  const DocumentLengths lengths = {
      {3, 4}, {7}, {1, 0, 2, 3}, {5, 2}, {2, 2, 3}};
  std::vector<float> seen(kRows * kMemory, 1);
  for (size_t i = 0; i < kMemory; ++i) seen[kMemory + i] = 0;
  seen[0] = seen[kMemory * 3 + 2] = 0;
  const Tensor mask =
      ToDType(FromValues<float>({kRows, 1, 1, kMemory}, seen), kBool);
  TensorList rows;
  for (const Tensor& all : {SmallIntegers({kRows, kTime, kDim}, 1),
                            SmallIntegers({kRows, kMemory, kDim}, 2),
                            DocumentKeys(lengths, kTime), mask}) {
    rows.push_back(Slice(all, 0, begin, end));
  }
  return rows;
}

absl::Status StepOf(Decoder& model, int64_t begin, int64_t end) {
  return Backward(Sum(Tanh(model.Call(Rows(begin, end))[0])));
}

Values GradientsOf(nn::Module& model) {
  Values values;
  for (nn::Parameter* p : model.Parameters()) {
    values.push_back(FullTensor(p->grad()).ToVector<float>());
  }
  return values;
}

struct Case {
  std::string name;
  Heads heads;
  /// By micro-batch, the number of rows of each fsdp rank.
  std::vector<std::vector<int64_t>> parts;
  int tp = 1;
  bool checkpoint = false;
};

class AttentionBatchTest : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionBatchTest, IsThatOfOneRank) {
  const Case& c = GetParam();
  Decoder one(c.heads);
  ASSERT_TRUE(one.Materialize({.seed = 5}).ok());
  nn::SetDropoutStep(one, 11, 3);
  ASSERT_TRUE(StepOf(one, 0, kRows).ok());
  const Values expected = GradientsOf(one);
  const int ranks = static_cast<int>(c.parts[0].size());
  OnMesh({{"fsdp", ranks}, {"tp", c.tp}},
         [&](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
           CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
           Decoder model(c.heads);
           const int64_t group = c.heads.queries / c.heads.keys * kWidth;
           CH_RETURN_IF_ERROR(tp::ParallelizeModule(
               model, tp,
               {{"near", tp::ColwiseParallel()},
                {"*.q", tp::ColwiseParallel({.unit = group})},
                {"*.[kv]", tp::ColwiseParallel({.unit = kWidth})},
                {"*.out", tp::RowwiseParallel(
                              {.use_local_output = true, .unit = group})}}));
           CH_RETURN_IF_ERROR(
               fsdp::FullyShard(model, fsdp,
                                {.reduction = {.divide_factor = 1},
                                 .extension = DTensorExtensions::Create()}));
           if (c.checkpoint)
             CH_RETURN_IF_ERROR(nn::CheckpointActivations(model));
           CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
           nn::SetDropoutStep(model, 11, 3);
           const auto here = static_cast<size_t>(*fsdp.index(0));
           int64_t begin = 0;
           for (const std::vector<int64_t>& parts : c.parts) {
             int64_t first = begin;
             for (size_t r = 0; r < parts.size(); ++r) {
               if (r < here) first += parts[r];
               begin += parts[r];
             }
             CH_RETURN_IF_ERROR(StepOf(model, first, first + parts[here]));
           }
           // Two consecutive attentions with sums of some 100 products.
           ExpectNear(GradientsOf(model), expected, 400);
           return absl::OkStatus();
         });
}

INSTANTIATE_TEST_SUITE_P(
    All, AttentionBatchTest,
    ::testing::Values(Case{"fsdp2", {2, 1}, {{3, 2}}},
                      Case{"tp2_uneven_heads", {6, 3}, {{5}}, 2},
                      Case{"tp3_fewer_key_heads", {4, 2}, {{5}}, 3},
                      Case{"fsdp2_tp2_uneven_heads", {3, 3}, {{2, 3}}, 2},
                      Case{
                          "fsdp2_tp2_accumulated", {6, 3}, {{1, 2}, {2, 0}}, 2},
                      Case{"fsdp2_tp2_recomputed", {6, 3}, {{4, 1}}, 2, true}),
    [](const auto& info) { return info.param.name; });

TEST(PackedLlamaTest, IsItsDocumentsAlone) {
  const nn::LlamaConfig config = {.dim = 12,
                                  .layers = 2,
                                  .heads = 6,
                                  .kv_heads = 3,
                                  .head_dim = 4,
                                  .ffn = 7,
                                  .vocab = 11,
                                  .initializer_stddev = 0.3};
  constexpr int64_t kLength = 9;
  const DocumentLengths lengths = {{4, 5}, {9}, {1, 0, 6, 2}};
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 3 * kLength; ++i) ids.push_back(i * i % 11);
  const auto loss_of = [](const Tensor& logits) { return Sum(Tanh(logits)); };

  nn::Llama alone(config, Device::Cpu());
  std::vector<float> expected_logits;
  size_t at = 0;
  for (const std::vector<int64_t>& row : lengths) {
    for (const int64_t length : row) {
      const std::vector<int32_t> document(
          ids.begin() + static_cast<std::ptrdiff_t>(at),
          ids.begin() + static_cast<std::ptrdiff_t>(at) + length);
      const Tensor logits =
          alone.Forward(FromValues<int32_t>({1, length}, document));
      const std::vector<float> values = logits.ToVector<float>();
      expected_logits.insert(expected_logits.end(), values.begin(),
                             values.end());
      ASSERT_TRUE(Backward(loss_of(logits)).ok());
      at += static_cast<size_t>(length);
    }
  }
  Values expected = GradientsOf(alone);

  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    nn::Llama model(config);
    CH_RETURN_IF_ERROR(
        tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
    for (nn::Module& block : model.blocks()) {
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(block));
      CH_RETURN_IF_ERROR(
          fsdp::FullyShard(block, fsdp,
                           {.reduction = {.divide_factor = 1},
                            .extension = DTensorExtensions::Create()}));
    }
    CH_RETURN_IF_ERROR(
        fsdp::FullyShard(model, fsdp,
                         {.reduction = {.divide_factor = 1},
                          .extension = DTensorExtensions::Create()}));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 0}));
    // Two rows on this rank, one on the other.
    const int64_t begin = *fsdp.index(0) == 0 ? 0 : 2;
    const int64_t end = *fsdp.index(0) == 0 ? 2 : 3;
    const auto own = [&](const Tensor& all) {
      return Slice(all, 0, begin, end);
    };
    const Tensor tokens = own(FromValues<int32_t>({3, kLength}, ids));
    const DocumentLengths here(lengths.begin() + begin, lengths.begin() + end);
    // [packed]
    const Tensor keys = DocumentKeys(here, kLength);
    const Tensor positions = DocumentPositions(here, kLength);
    const Tensor logits = model.Call({tokens, keys, positions})[0];
    // [/packed]
    CH_RETURN_IF_ERROR(Backward(loss_of(logits)));
    const auto whole = FullTensor(logits).ToVector<float>();
    const std::vector<float> expected_here(
        expected_logits.begin() + begin * kLength * 11,
        expected_logits.begin() + end * kLength * 11);
    ExpectNear({whole}, {expected_here}, 200);
    // Sums over 27 tokens of chains of some 50 products each.
    ExpectNear(GradientsOf(model), expected, 400);
    return absl::OkStatus();
  });
}

TEST(PackedLlamaDeathTest, NamesTheExpectedInputs) {
  nn::Llama model({.dim = 4, .layers = 1, .heads = 1, .ffn = 2, .vocab = 5},
                  Device::Cpu());
  const Tensor tokens = Zeros({1, 3}, kInt32);
  EXPECT_DEATH(model.Call({tokens, DocumentKeys({{3}}, 3)}),
               "llama: 2 inputs; it takes tokens");
}

}  // namespace
}  // namespace crosshatch
