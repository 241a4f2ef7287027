// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_MIXTURE_OF_EXPERTS_H_
#define CROSSHATCH_NN_LAYERS_MIXTURE_OF_EXPERTS_H_

/// \file
/// MixtureOfExperts: a router sends each token to a few of many SwiGLU MLPs,
/// the experts, and adds up what they give. On one device or with the experts
/// spread over ranks (tp/expert_parallel.h), written once.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/expert_routing.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct MixtureOfExpertsOptions {
  int64_t dim = 0;      ///< Of a token.
  int64_t hidden = 0;   ///< Of an expert.
  int64_t experts = 0;  ///< Any number, on any number of ranks.
  int64_t choices = 2;  ///< Experts of a token.
  /// Set: an expert takes at most so many times an even share of the batch's
  /// choices, the first ones in the order of the batch; the others add nothing
  /// to their tokens. Unset: none is dropped.
  std::optional<double> capacity_factor = {};
  /// Whether the weights of a token's choices are divided by their sum.
  bool normalize_weights = true;
  /// Of the normal distribution that all weights are filled from.
  double stddev = 0.02;
};

/// Where the experts and the tokens of a MixtureOfExperts are. Where a mesh is
/// not set, this rank has all.
struct ExpertPlacement {
  /// Experts are shared out over its ranks, which are ranks of `batch`.
  std::optional<DeviceMesh> experts = std::nullopt;
  /// Each of its ranks, in row-major order, works on tokens of its own: all of
  /// them are the batch, over which capacity and balance are reckoned.
  std::optional<DeviceMesh> batch = std::nullopt;
  /// One axis along which the input comes whole to every rank: each works on
  /// its share of the tokens (and is a rank of `batch` by it), and the output
  /// comes whole again.
  std::optional<DeviceMesh> shared = std::nullopt;
};

/// [..., dim] to {[..., dim], balance}.
///
/// Every token has a probability for each expert, the softmax of router(x), in
/// f32; it goes to the `choices` most probable ones and gets the sum of what
/// they give, weighted by their probabilities. Sums are in the order of the
/// experts' numbers, so values are the same wherever the experts are; ties go
/// to the expert of the smaller number.
///
/// `balance`, f32 of no dims, is this rank's load-balance loss: the mean over
/// the data-parallel ranks is that of the batch, experts * sum over e of (e's
/// share of all choices) * (e's mean probability), which is 1 where all is
/// even. It is added to the rank's loss as it is ("Losses and gradients" in
/// docs/training.md).
///
/// The input is a plain tensor, this rank's tokens; with
/// ExpertPlacement::shared a plain one that all ranks of that axis have, or a
/// distributed one on it, replicated or split along another dim than the last:
/// the output lies alike, and the balance is the same along that axis.
///
/// Which tokens go where is known when the router's output is read, so forward
/// waits for the stream once. Two exchanges of rows and one small gather of
/// counts a forward (of each row's, and a second of how many rows there are,
/// with a capacity where ranks split rows by position), two exchanges a
/// backward.
class MixtureOfExperts final : public Module {
 public:
  using Options = MixtureOfExpertsOptions;

  explicit MixtureOfExperts(const MixtureOfExpertsOptions& options);

  const char* type_name() const override { return "MixtureOfExperts"; }
  const MixtureOfExpertsOptions& options() const { return options_; }

  /// Before the first forward; the parameters lie accordingly (ExpertParallel
  /// does both).
  /// \error kInvalidArgument for a rank of `experts` that is none of `batch`,
  ///     and for a `shared` of several axes, or whose ranks do not follow each
  ///     other in `batch`.
  absl::Status Place(ExpertPlacement placement);

  /// [experts, dim]
  const std::shared_ptr<Parameter>& router() const { return router_; }
  /// gate_proj and up_proj [experts, dim, hidden], down_proj
  /// [experts, hidden, dim].
  const std::shared_ptr<Parameter>& gate_proj() const { return gate_; }
  const std::shared_ptr<Parameter>& up_proj() const { return up_; }
  const std::shared_ptr<Parameter>& down_proj() const { return down_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  struct Choices;

  /// Checks that a module whose batch FSDP splits was told what it is.
  void CheckPlaced() const;
  /// Poisons the rank where ranks that tensor parallelism gives the same tokens
  /// take them for tokens of their own. In the first forward.
  void CompareTokens(const Tensor& x);
  /// Of tokens that several ranks have.
  TensorList ForwardShared(const Tensor& x);
  /// Of local tokens [n, dim].
  /// \param runs where the ranks of `shared` split each run of tokens between
  ///     them: how many.
  TensorList ForwardTokens(const Tensor& tokens,
                           std::optional<int64_t> runs = std::nullopt);
  Choices Choose(const Tensor& tokens);
  /// How the batch ranks' tokens lie in the batch, as ForwardTokens was told.
  BatchOrder OrderOfBatch(std::optional<int64_t> runs);
  /// `own` of each rank of the batch.
  std::vector<int64_t> OfBatch(const std::vector<int64_t>& own);
  Tensor RunExperts(const Tensor& rows, const Shape& offsets);

  const MixtureOfExpertsOptions options_;
  ExpertPlacement placement_;
  ExpertOwners owners_;
  bool compared_tokens_ = false;
  std::shared_ptr<Parameter> router_;
  std::shared_ptr<Parameter> gate_;
  std::shared_ptr<Parameter> up_;
  std::shared_ptr<Parameter> down_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_MIXTURE_OF_EXPERTS_H_
