// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_EXPERT_ROUTING_H_
#define CROSSHATCH_NN_LAYERS_EXPERT_ROUTING_H_

/// \file
/// Which token goes to which expert, on which rank, in which order: arithmetic
/// on numbers, which needs no rank to be tested.
///
/// Words: each token makes k *choices* of different experts; choice i of a rank
/// is the (i % k)-th of its token i / k. The batch is split over *batch ranks*,
/// by whole tokens or by runs of tokens (BatchOrder); experts are shared out
/// among *owners*, which are some of those ranks or all. An expert takes the
/// first choices in the order of the batch, wherever they come from, and drops
/// those past its capacity: which ones is the same on every mesh.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/dtensor/row_exchange.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::nn {

/// How many of `choices` each expert has.
/// \pre 0 <= choice < experts, checked
std::vector<int64_t> CountChoices(absl::Span<const int64_t> choices,
                                  int64_t experts);

/// The largest number of choices that an expert takes of `tokens` in the batch:
/// `factor` times an even share, rounded up.
int64_t ExpertCapacity(double factor, int64_t tokens, int64_t choices,
                       int64_t experts);

/// Who has which experts, and where this rank stands.
struct ExpertOwners {
  struct Owner {
    /// Its index among the batch ranks.
    int batch_rank = 0;
    /// It has the experts [first, first + count), which follow on those of the
    /// owner before.
    int64_t first = 0;
    int64_t count = 0;
  };
  std::vector<Owner> owners;
  /// This rank's index among them.
  int self = 0;
};

/// Where the tokens of the batch ranks stand in the order of the batch: those
/// of rank 0 before those of rank 1, unless `ranks` that follow each other
/// split every *run* of tokens (a row, by positions) between them. Then each of
/// them has a part of every run, and run 0 of all of them comes before run 1.
struct BatchOrder {
  int ranks = 1;
  int64_t runs_here = 1;  ///< That this rank has parts of, of one size.
  int64_t runs = 1;       ///< The most that any rank has.
};

/// CountChoices of each run, one after the other; zeros for those that this
/// rank has no part of.
std::vector<int64_t> CountRuns(absl::Span<const int64_t> choices,
                               int64_t experts, const BatchOrder& order);

/// What a rank does with its choices.
struct ExpertRoutes {
  /// Those that are not dropped, by expert, those of one expert in their order:
  /// the rows to give.
  std::vector<int64_t> kept;
  /// To the owners; rows taken are by expert, those of one expert in the order
  /// of owners.
  RowExchange exchange;
  /// Where the rows of each of this rank's experts begin among those taken,
  /// and where the last ones end.
  Shape offsets;
};

/// \param choices of this rank
/// \param counts CountRuns of each batch rank, one after the other
/// \param capacity of each expert; unset: no end
/// \pre this rank's counts are those of `choices`, owners have all experts;
///     checked
ExpertRoutes RouteChoices(absl::Span<const int64_t> choices,
                          absl::Span<const int64_t> counts, int64_t experts,
                          const ExpertOwners& owners,
                          std::optional<int64_t> capacity,
                          const BatchOrder& order = {});

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_EXPERT_ROUTING_H_
