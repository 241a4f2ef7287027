// SPDX-License-Identifier: Apache-2.0

/// \file
/// Models of a user, built from nn/: an encoder-decoder with cross-attention
/// over a convolution stem, and a GPT, with merged projections and dropout.
/// Training equals one rank's on every mesh, and a resumed run has the bits of
/// an uninterrupted one.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/conv.h"
#include "crosshatch/nn/layers/dropout.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/gelu.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/optim/ema.h"
#include "crosshatch/nn/optim/sgd.h"
#include "crosshatch/nn/state_dict.h"
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

constexpr int64_t kRows = 5;
constexpr int64_t kTime = 4;
constexpr int64_t kSound = 9;  // Samples of a row.
constexpr int64_t kChannels = 2;
constexpr int64_t kVocab = 7;
constexpr int64_t kDim = 6;
constexpr int64_t kWidth = 2;  // Of each of the three heads.
constexpr double kDrop = 0.25;

nn::LinearOptions Options() { return {.stddev = 0.3}; }

Tensor Heads(const Tensor& t) {
  return View(t, {t.size(0), t.size(1), t.size(2) / kWidth, kWidth});
}

// Self-attention of x [B, T, dim]: q, k and v by one matrix.
class SelfAttention final : public nn::Module {
 public:
  explicit SelfAttention(bool causal) : causal_(causal) {}

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const TensorList parts =
        SplitUnits(qkv_.Forward(inputs[0]), {kWidth, kWidth, kWidth}, -1);
    const Tensor q = Heads(parts[0]);
    const Tensor y =
        Attention(q, Heads(parts[1]), Heads(parts[2]),
                  {.causal = causal_, .dropout = drop_.ForAttention(q)});
    return {out_.Forward(Flatten(y, 2))};
  }

 private:
  const bool causal_;
  nn::Linear& qkv_ = Make<nn::Linear>("qkv", kDim, 3 * kDim, Options());
  nn::Dropout& drop_ = Make<nn::Dropout>("drop", kDrop);
  nn::Linear& out_ = Make<nn::Linear>("out", kDim, kDim, Options());
};

// (x [B, T, dim], memory [B, S, dim], bool [B, 1, 1, S]): x attends to the
// memory where the mask is true.
class CrossAttention final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor q = Heads(q_.Forward(inputs[0]));
    const TensorList parts =
        SplitUnits(kv_.Forward(inputs[1]), {kWidth, kWidth}, -1);
    const Tensor y =
        Attention(q, Heads(parts[0]), Heads(parts[1]),
                  {.mask = inputs[2], .dropout = drop_.ForAttention(q)});
    return {out_.Forward(Flatten(y, 2))};
  }

 private:
  nn::Linear& q_ = Make<nn::Linear>("q", kDim, kDim, Options());
  nn::Linear& kv_ = Make<nn::Linear>("kv", kDim, 2 * kDim, Options());
  nn::Dropout& drop_ = Make<nn::Dropout>("drop", kDrop);
  nn::Linear& out_ = Make<nn::Linear>("out", kDim, kDim, Options());
};

// Takes x and, with cross-attention, the memory and its mask.
class Block final : public nn::Module {
 public:
  Block(bool causal, bool crosses)
      : own_(Make<SelfAttention>("own", causal)),
        cross_(crosses ? &Make<CrossAttention>("cross") : nullptr),
        cross_norm_(crosses ? &Make<nn::LayerNorm>("cross_norm", kDim)
                            : nullptr) {}

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    Tensor x = inputs[0];
    x = x + own_.Forward(own_norm_.Forward(x));
    if (cross_ != nullptr) {
      x = x +
          cross_->Call({cross_norm_->Forward(x), inputs[1], inputs[2]}).front();
    }
    const Tensor inner = gelu_.Forward(up_.Forward(mlp_norm_.Forward(x)));
    return {x + down_.Forward(drop_.Forward(inner))};
  }

 private:
  SelfAttention& own_;
  CrossAttention* const cross_;
  nn::LayerNorm* const cross_norm_;
  nn::LayerNorm& own_norm_ = Make<nn::LayerNorm>("own_norm", kDim);
  nn::LayerNorm& mlp_norm_ = Make<nn::LayerNorm>("mlp_norm", kDim);
  nn::Linear& up_ = Make<nn::Linear>("up", kDim, 11, Options());
  nn::Gelu& gelu_ = Make<nn::Gelu>("gelu");
  nn::Dropout& drop_ = Make<nn::Dropout>("drop", kDrop);
  nn::Linear& down_ = Make<nn::Linear>("down", 11, kDim, Options());
};

// Computes logits from (tokens [B, T], sound [B, channels, samples], bool [B,
// 1, 1, S]).
class EncoderDecoder final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor stem = gelu_.Forward(stem_.Forward(inputs[1]));
    const Tensor memory = encoder_.Forward(Transpose(stem, 1, 2));
    const Tensor x = drop_.Forward(embed_.Forward(inputs[0]));
    return {head_.Forward(decoder_.Call({x, memory, inputs[2]}).front())};
  }

 private:
  // Five positions of the memory.
  nn::Conv1d& stem_ = Make<nn::Conv1d>(
      "stem", kChannels, kDim, 3, Conv1dOptions{.stride = 2, .padding = 1});
  nn::Gelu& gelu_ = Make<nn::Gelu>("gelu");
  Block& encoder_ = Make<Block>("encoder", /*causal=*/false, /*crosses=*/false);
  nn::Embedding& embed_ = Make<nn::Embedding>("embed", kVocab, kDim, 0.5);
  nn::Dropout& drop_ = Make<nn::Dropout>("drop", kDrop);
  Block& decoder_ = Make<Block>("decoder", /*causal=*/true, /*crosses=*/true);
  nn::Linear& head_ = Make<nn::Linear>("head", kDim, kVocab, Options());
};

// Computes logits from tokens [B, T].
class Gpt final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor x = drop_.Forward(embed_.Forward(inputs[0]));
    return {head_.Forward(second_.Forward(first_.Forward(x)))};
  }

 private:
  nn::Embedding& embed_ = Make<nn::Embedding>("embed", kVocab, kDim, 0.5);
  nn::Dropout& drop_ = Make<nn::Dropout>("drop", kDrop);
  Block& first_ = Make<Block>("first", /*causal=*/true, /*crosses=*/false);
  Block& second_ = Make<Block>("second", /*causal=*/true, /*crosses=*/false);
  nn::Linear& head_ = Make<nn::Linear>("head", kDim, kVocab, Options());
};

std::unique_ptr<nn::Module> MakeModel(bool gpt) {
  if (gpt) return std::make_unique<Gpt>();
  return std::make_unique<EncoderDecoder>();
}

// Returns rows [begin, end) of the batch, with the inputs of both models.
TensorList Rows(int64_t begin, int64_t end) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kRows * kTime; ++i) {
    ids.push_back(i * i % static_cast<int32_t>(kVocab));
  }
  std::vector<float> seen(kRows * 5, 1);
  seen[4] = seen[8] = seen[9] = 0;  // Of rows 0 and 1.
  const TensorList all = {
      FromValues<int32_t>({kRows, kTime}, ids),
      SmallIntegers({kRows, kChannels, kSound}, 2),
      ToDType(FromValues<float>({kRows, 1, 1, 5}, seen), kBool)};
  TensorList rows;
  for (const Tensor& t : all) rows.push_back(Slice(t, 0, begin, end));
  return rows;
}

// The state of a run.
struct Training {
  explicit Training(nn::Module& model)
      : module(model),
        parameters(model),
        optimizer(model.Parameters(),
                  {.lr = 0.2, .momentum = 0.9, .nesterov = true}),
        ema(model.Parameters(), {.decay = 0.75}) {}

  // Takes steps [first, last). Returns the losses of this rank's rows, as
  // shares of the batch's mean.
  absl::StatusOr<std::vector<double>> Steps(uint64_t first, uint64_t last,
                                            const TensorList& rows) {
    std::vector<double> losses;
    for (uint64_t step = first; step < last; ++step) {
      nn::SetDropoutStep(module, 11, step);
      // With label smoothing, as a sum that does not depend on the row count of
      // other ranks.
      const Tensor loss =
          nn::CrossEntropyLoss(
              module.Call(rows).front(), rows[0],
              {.reduction = nn::CrossEntropyLossOptions::Reduction::kSum,
               .label_smoothing = 0.1}) /
          double{kRows * kTime};
      CH_RETURN_IF_ERROR(Backward(loss));
      CH_RETURN_IF_ERROR(optimizer.Step());
      CH_RETURN_IF_ERROR(ema.Update());
      optimizer.ZeroGrad();
      losses.push_back(FullTensor(loss).ToVector<double>()[0]);
    }
    return losses;
  }

  // Gathers parameters and averages.
  Values All() {
    Values all;
    for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
      for (const Tensor& t :
           {optimizer.parameters()[i]->data(), ema.average(i)}) {
        all.push_back(FullTensor(t).ToVector<float>());
      }
    }
    return all;
  }

  nn::Module& module;
  nn::ModuleState parameters;
  nn::Sgd optimizer;
  nn::Ema ema;
  nn::CombinedState state{
      {{"model", &parameters}, {"optimizer", &optimizer}, {"ema", &ema}}};
};

// Copies a state, as a checkpoint does.
absl::StatusOr<nn::StateDict> CopyOf(nn::Stateful& stateful) {
  const NoGrad no_grad;
  CH_ASSIGN_OR_RETURN(const nn::StateDict state, stateful.State());
  nn::StateDict copy;
  for (const auto& [name, value] : state.entries()) {
    const auto* tensor = std::get_if<Tensor>(&value);
    CH_RETURN_IF_ERROR(copy.Add(
        name, tensor == nullptr ? value : Clone(LocalTensor(*tensor))));
  }
  return copy;
}

// Restores a result of CopyOf to a model with the same layout.
absl::Status Resume(nn::Stateful& stateful, const nn::StateDict& kept) {
  const NoGrad no_grad;
  CH_ASSIGN_OR_RETURN(nn::StateDict state,
                      stateful.StateToFill(nn::NamesOf(kept)));
  for (const auto& [name, value] : kept.entries()) {
    nn::StateValue* const to = state.Find(name);
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      CopyInPlace(LocalTensor(std::get<Tensor>(*to)), *tensor);
    } else {
      *to = value;
    }
  }
  return stateful.Restore(state);
}

struct Case {
  std::string name;
  bool gpt;
  int fsdp;
  int tp;
};

// Distributes the model, as a program does before training.
absl::Status Spread(nn::Module& model, const DeviceMesh& fsdp,
                    const DeviceMesh& tp) {
  // The residual stream is plain, the same on all tp ranks.
  tp::ParallelPlan plan = {
      {"**.qkv", tp::ColwiseParallel({.unit = 3 * kWidth})},
      {"**.out",
       tp::RowwiseParallel({.use_local_output = true, .unit = kWidth})},
      {"**.up", tp::ColwiseParallel()},
      {"**.down", tp::RowwiseParallel({.use_local_output = true})}};
  if (dynamic_cast<EncoderDecoder*>(&model) != nullptr) {
    plan.emplace_back("**.cross.q", tp::ColwiseParallel({.unit = kWidth}));
    plan.emplace_back("**.cross.kv", tp::ColwiseParallel({.unit = 2 * kWidth}));
  }
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(model, tp, plan));
  return fsdp::FullyShard(model, fsdp,
                          {.reduction = {.divide_factor = 1},
                           .extension = DTensorExtensions::Create()});
}

class OwnModelsTest : public ::testing::TestWithParam<Case> {};

TEST_P(OwnModelsTest, TrainAsOnOneRankAndResumeBitwise) {
  const Case& c = GetParam();
  constexpr uint64_t kSteps = 4;
  const std::unique_ptr<nn::Module> one = MakeModel(c.gpt);
  ASSERT_TRUE(one->Materialize({.seed = 5}).ok());
  Training reference(*one);
  const auto expected = reference.Steps(0, kSteps, Rows(0, kRows));
  ASSERT_TRUE(expected.ok()) << expected.status();
  const Values expected_values = reference.All();
  const auto body = [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    // Of five rows on two ranks, the first has three.
    const int64_t split = (kRows + c.fsdp - 1) / c.fsdp;
    const TensorList rows =
        *fsdp.index(0) == 0 ? Rows(0, split) : Rows(split, kRows);

    const std::unique_ptr<nn::Module> model = MakeModel(c.gpt);
    CH_RETURN_IF_ERROR(Spread(*model, fsdp, tp));
    CH_RETURN_IF_ERROR(model->Materialize({.seed = 5}));
    Training run(*model);
    CH_ASSIGN_OR_RETURN(std::vector<double> losses, run.Steps(0, 2, rows));
    CH_ASSIGN_OR_RETURN(const nn::StateDict kept, CopyOf(run.state));
    CH_ASSIGN_OR_RETURN(const std::vector<double> later,
                        run.Steps(2, kSteps, rows));
    losses.insert(losses.end(), later.begin(), later.end());
    for (uint64_t step = 0; step < kSteps; ++step) {
      CH_ASSIGN_OR_RETURN(
          const double share,
          nn::MeanOverAxis(FromValues<double>({}, {losses[step]}), fsdp));
      // Chains of sums of some 20 products through at most eight layers, and
      // the error of the weights after some steps.
      const double loss = (*expected)[step];
      CH_EXPECT_NEAR(share * c.fsdp, loss, 0x1p-24 * 400 * loss) << step;
    }
    const Values values = run.All();
    ExpectNear(values, expected_values, 2000);

    const std::unique_ptr<nn::Module> again = MakeModel(c.gpt);
    CH_RETURN_IF_ERROR(Spread(*again, fsdp, tp));
    CH_RETURN_IF_ERROR(again->Materialize({.seed = 6}));
    Training resumed(*again);
    CH_RETURN_IF_ERROR(Resume(resumed.state, kept));
    CH_ASSIGN_OR_RETURN(const std::vector<double> after,
                        resumed.Steps(2, kSteps, rows));
    CH_EXPECT_EQ(after, later);
    CH_EXPECT_EQ(resumed.All(), values);
    return absl::OkStatus();
  };
  OnMesh({{"fsdp", c.fsdp}, {"tp", c.tp}}, body);
}

INSTANTIATE_TEST_SUITE_P(
    All, OwnModelsTest,
    ::testing::Values(Case{"encoder_decoder_fsdp2", false, 2, 1},
                      Case{"encoder_decoder_tp2", false, 1, 2},
                      Case{"encoder_decoder_fsdp2_tp2", false, 2, 2},
                      Case{"gpt_fsdp2", true, 2, 1},
                      Case{"gpt_fsdp2_tp2", true, 2, 2}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace crosshatch
