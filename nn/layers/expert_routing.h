// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_EXPERT_ROUTING_H_
#define CROSSHATCH_NN_LAYERS_EXPERT_ROUTING_H_

/// \file
/// Routing of tokens to experts and their ranks: pure arithmetic, without
/// communication.
///
/// Each token makes k *choices* of different experts; choice i of a rank is the
/// (i % k)-th of its token i / k. The batch is split over *batch ranks*, by
/// whole tokens or by runs of tokens (BatchOrder). Experts are split over
/// *owners*, which are some or all of those ranks. An expert takes the first
/// choices in the order of the batch and drops those beyond its capacity, the
/// same on every mesh.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/dtensor/row_exchange.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::nn {

/// Returns the number of `choices` of each expert.
/// \checks 0 <= choice < experts
std::vector<int64_t> CountChoices(absl::Span<const int64_t> choices,
                                  int64_t experts);

/// Returns the maximal number of choices that an expert takes of `tokens` in
/// the batch: `factor` times an even share, rounded up.
int64_t ExpertCapacity(double factor, int64_t tokens, int64_t choices,
                       int64_t experts);

/// The owners of experts.
struct ExpertOwners {
  struct Owner {
    /// Its index among the batch ranks.
    int batch_rank = 0;
    /// It has the experts [first, first + count), which follow those of the
    /// previous owner.
    int64_t first = 0;
    int64_t count = 0;
  };
  std::vector<Owner> owners;
  /// This rank's index among them.
  int self = 0;
};

/// The order of the batch ranks' tokens in the batch: those of rank 0 before
/// those of rank 1, unless `ranks` consecutive ranks split every *run* of
/// tokens (for example a row, by positions). Then each of them has a part of
/// every run, and run 0 of all of them comes before run 1.
struct BatchOrder {
  int ranks = 1;
  int64_t runs_here = 1;  ///< Of this rank; their parts have one size.
  int64_t runs = 1;       ///< The maximum over ranks.
};

/// Returns CountChoices of each run, concatenated; zeros for runs of which this
/// rank has no part.
std::vector<int64_t> CountRuns(absl::Span<const int64_t> choices,
                               int64_t experts, const BatchOrder& order);

/// The routes of a rank's choices.
struct ExpertRoutes {
  /// The choices that are not dropped, by expert, in their order within an
  /// expert: the rows to send.
  std::vector<int64_t> kept;
  /// The exchange with the owners. Received rows are ordered by expert, then by
  /// sending rank.
  RowExchange exchange;
  /// The begin of the rows of each of this rank's experts among the received
  /// ones, and the end of the last.
  Shape offsets;
};

/// Returns the routes of this rank's `choices`.
/// \param counts CountRuns of each batch rank, concatenated.
/// \param capacity of each expert; unset: unlimited.
/// \checks that this rank's counts are those of `choices` and that owners have
///     all experts
ExpertRoutes RouteChoices(absl::Span<const int64_t> choices,
                          absl::Span<const int64_t> counts, int64_t experts,
                          const ExpertOwners& owners,
                          std::optional<int64_t> capacity,
                          const BatchOrder& order = {});

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_EXPERT_ROUTING_H_
