// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_ON_RANKS_H_
#define CROSSHATCH_CHECKPOINT_ON_RANKS_H_

/// \file
/// Long-running work on ranks' background threads, whose outcome all ranks
/// learn.
///
/// Meanwhile the ranks' threads exchange messages several times a second. So
/// the time of a slow disk does not count towards timeouts of collectives, and
/// a rank that fails is detected. The work is always waited for, because it
/// uses objects of the caller.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/comm/communicator.h"

namespace crosshatch::checkpoint {

/// Runs `work` once, on a thread of the rank with index 0 of `comm`. All ranks
/// must call it.
/// \param label names the exchanges in errors.
/// \param work must use neither tensors nor communicators.
/// \returns the status of `work`, on the other ranks as "on rank R: ..."; or
///     the error of an exchange if `work` succeeded.
absl::Status OnFirstRank(Communicator& comm, const std::string& label,
                         absl::FunctionRef<absl::Status()> work);

/// Runs `work` on a thread of every rank. All ranks must call it.
/// \param label names the exchanges in errors.
/// \param work must use neither tensors nor communicators.
/// \error as GatherErrors, the same on every rank; or the error of an exchange
///     if `work` succeeded.
absl::Status OnEveryRank(Communicator& comm, const std::string& label,
                         absl::FunctionRef<absl::Status()> work);
/// As OnEveryRank, with results.
/// \returns the results of all ranks by index.
absl::StatusOr<std::vector<std::string>> GatherOnEveryRank(
    Communicator& comm, const std::string& label,
    absl::FunctionRef<absl::StatusOr<std::string>()> work);
/// Runs `work` on a thread of the first rank, or of the only rank of a dry run.
/// \returns its result, on every rank.
/// \error as OnEveryRank.
absl::StatusOr<std::string> TextOfFirstRank(
    Communicator& comm, const std::string& label,
    absl::FunctionRef<absl::StatusOr<std::string>()> work);

/// Gathers the outcomes of work that is done, by one exchange. Errors as
/// OnEveryRank.
absl::StatusOr<std::vector<std::string>> Gather(
    Communicator& comm, const std::string& label,
    const absl::StatusOr<std::string>& mine);
absl::Status Gather(Communicator& comm, const std::string& label,
                    const absl::Status& mine);

/// Returns the largest of the ranks' counts. Errors as OnEveryRank.
absl::StatusOr<size_t> LargestCount(Communicator& comm,
                                    const std::string& label,
                                    const absl::StatusOr<size_t>& mine);

/// Converts a status or text to one text.
std::string EncodeOutcome(const absl::StatusOr<std::string>& outcome);
/// Inverts EncodeOutcome.
/// \error also kDataLoss if `text` is not a result of EncodeOutcome.
absl::StatusOr<std::string> DecodeOutcome(const std::string& text);

/// Returns the texts of all ranks, or their errors as one (GatherErrors).
/// \param ranks the ranks by index, for messages.
absl::StatusOr<std::vector<std::string>> TextsOf(
    absl::Span<const absl::StatusOr<std::string>> outcomes,
    absl::Span<const int> ranks);

/// Returns one error for the errors of all ranks; ranks with equal errors share
/// a line. OK if there is none. The code is that of the first.
/// \param ranks the ranks by index, for messages.
absl::Status GatherErrors(absl::Span<const absl::Status> by_rank,
                          absl::Span<const int> ranks);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_ON_RANKS_H_
