// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_ON_RANKS_H_
#define CROSSHATCH_CHECKPOINT_ON_RANKS_H_

/// \file
/// Work that ranks do beside their threads, however long it takes, and whose
/// outcome all of them learn.
///
/// The ranks meet all the while, several times a second, so that the time that
/// a slow disk takes counts against no timeout of collectives, and a rank that
/// fails meanwhile is found. The work itself is always waited for: it would
/// outlive what it works on.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/comm/all_ranks.h"
#include "crosshatch/comm/communicator.h"

namespace crosshatch::checkpoint {

/// Runs `work` once, on a thread of index 0 of `comm`, and returns what it
/// returned on every rank. Called by all ranks.
/// \param label names the meetings in errors
/// \param work touches neither tensors nor communicators
/// \returns `work`'s status, on the other ranks as "on rank R: ..."; what went
///     wrong between the ranks, where work was fine
absl::Status OnFirstRank(Communicator& comm, const std::string& label,
                         absl::FunctionRef<absl::Status()> work);

/// Runs `work` on a thread of every rank, and returns on each what it gave on
/// all, by index. Called by all ranks; the rest as OnFirstRank.
/// \error as GatherErrors, on every rank alike; what went wrong between the
///     ranks, where work was fine
absl::StatusOr<std::vector<std::string>> OnEveryRank(
    Communicator& comm, const std::string& label,
    absl::FunctionRef<absl::StatusOr<std::string>()> work);

/// Tells, as OnEveryRank does, of work that has been done, at one meeting.
absl::StatusOr<std::vector<std::string>> Gather(
    Communicator& comm, const std::string& label,
    const absl::StatusOr<std::string>& mine);
absl::Status Gather(Communicator& comm, const std::string& label,
                    const absl::Status& mine);

/// A status or a text, as one text, and back.
std::string EncodeOutcome(const absl::StatusOr<std::string>& outcome);
/// \error also kDataLoss for what EncodeOutcome did not write.
absl::StatusOr<std::string> DecodeOutcome(const std::string& text);

/// What all ranks gave, or their errors in one (GatherErrors).
/// \param ranks the names of the ranks, by index
absl::StatusOr<std::vector<std::string>> TextsOf(
    absl::Span<const absl::StatusOr<std::string>> outcomes,
    absl::Span<const int> ranks);

/// One error for those of all ranks, of which ranks that say the same share a
/// line; OK if none has one. Its code is that of the first.
/// \param ranks the names of the ranks, by index
absl::Status GatherErrors(absl::Span<const absl::Status> by_rank,
                          absl::Span<const int> ranks);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_ON_RANKS_H_
