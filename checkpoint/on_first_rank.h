// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_ON_FIRST_RANK_H_
#define CROSSHATCH_CHECKPOINT_ON_FIRST_RANK_H_

/// \file
/// Work that one rank does for all, however long it takes.

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/communicator.h"

namespace crosshatch::checkpoint {

/// Runs `work` once, on a thread of index 0 of `comm`, and returns what it
/// returned on every rank. Called by all ranks.
///
/// The ranks meet all the while, several times a second, so that the time that
/// a slow disk takes counts against no timeout of collectives, and a rank that
/// fails meanwhile is found. The work itself is always waited for: it would
/// outlive what it works on.
/// \param label names the meetings in errors
/// \param work touches neither tensors nor communicators
/// \returns `work`'s status, on the other ranks as "on rank R: ..."; what went
///     wrong between the ranks, where work was fine
absl::Status OnFirstRank(Communicator& comm, const std::string& label,
                         absl::FunctionRef<absl::Status()> work);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_ON_FIRST_RANK_H_
