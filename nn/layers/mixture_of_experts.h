// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_MIXTURE_OF_EXPERTS_H_
#define CROSSHATCH_NN_LAYERS_MIXTURE_OF_EXPERTS_H_

/// \file
/// MixtureOfExperts: a router sends each token to a few of many SwiGLU MLPs,
/// the experts, and returns the weighted sum of their outputs. It runs on one
/// device or with experts distributed over ranks (tp/expert_parallel.h).

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
  /// If set, an expert takes at most this multiple of an even share of the
  /// batch's choices, the first ones in the order of the batch, and drops the
  /// others.
  std::optional<double> capacity_factor = {};
  /// Whether the weights of a token's choices are divided by their sum.
  bool normalize_weights = true;
  /// Of the weights' normal distribution.
  double stddev = 0.02;
};

/// The meshes of the experts and tokens of a MixtureOfExperts. Without a mesh,
/// this rank has all.
struct ExpertPlacement {
  /// Experts are split over its ranks, which are ranks of `batch`.
  std::optional<DeviceMesh> experts = std::nullopt;
  /// Its ranks, in row-major order, have the tokens of the batch, over which
  /// capacity and balance are computed; each has its own.
  std::optional<DeviceMesh> batch = std::nullopt;
  /// One axis along which all ranks have the same input. Each works on its part
  /// of the tokens, as a rank of `batch`, and all return the same output.
  std::optional<DeviceMesh> shared = std::nullopt;
};

/// [..., dim] to {[..., dim], balance}.
///
/// A token is routed to its `choices` most probable experts by the softmax of
/// router(x), in f32; for equal probabilities to those of smaller indices. Its
/// output is the sum of theirs, weighted by their probabilities. Sums are in
/// the order of the experts' indices, so values do not depend on the mesh.
///
/// `balance`, f32 without dims, is this rank's load-balancing loss: the mean
/// over the data-parallel ranks is that of the batch, experts * sum over e of
/// (e's share of all choices) * (e's mean probability), which is 1 for an even
/// load. Add it to the rank's loss as it is ("Losses and gradients" in
/// docs/training.md).
///
/// The input is a plain tensor with this rank's tokens. With
/// ExpertPlacement::shared it is a plain tensor that is equal on all ranks of
/// that axis, or a DTensor on it, replicated or split along another dim than
/// the last. The output has the same layout, and the balance is the same along
/// that axis.
///
/// The host reads the router's output, so forward waits for the stream once. A
/// forward has two exchanges of rows and one small gather of counts (with a
/// capacity and split positions, counts of each row and a second gather of
/// their number), a backward two exchanges.
class MixtureOfExperts final : public Module {
 public:
  using Options = MixtureOfExpertsOptions;

  explicit MixtureOfExperts(const MixtureOfExpertsOptions& options);

  const MixtureOfExpertsOptions& options() const { return options_; }

  /// Sets the meshes before the first forward. The parameters must be
  /// distributed accordingly (ExpertParallel does both).
  /// \error kInvalidArgument for a rank of `experts` that is not in `batch`,
  ///     for a `shared` with several axes, or whose ranks are not consecutive
  ///     in `batch`.
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

  /// Checks that `batch` is set if FSDP splits the batch.
  void CheckPlaced() const;
  /// Poisons the rank in the first forward if ranks of a tensor-parallel axis
  /// have the same tokens and `shared` is not set.
  void CompareTokens(const Tensor& x);
  /// Computes the forward of tokens that several ranks have.
  TensorList ForwardShared(const Tensor& x);
  /// Computes the forward of local tokens [n, dim].
  /// \param runs the number of runs of tokens, if the ranks of `shared` split
  /// each.
  TensorList ForwardTokens(const Tensor& tokens,
                           std::optional<int64_t> runs = std::nullopt);
  Choices Choose(const Tensor& tokens);
  /// Returns the order of the batch ranks' tokens in the batch.
  BatchOrder OrderOfBatch(std::optional<int64_t> runs);
  /// Gathers `own` from each rank of the batch.
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
