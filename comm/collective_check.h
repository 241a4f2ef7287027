// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COLLECTIVE_CHECK_H_
#define CROSSHATCH_COMM_COLLECTIVE_CHECK_H_

/// \file
/// What one rank can check of a collective without the others.

#include "absl/status/status.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/group_key.h"

namespace crosshatch {

/// Checks that the lists of `collective` fit its kind, the group `key` and one
/// another, as member `member` sees them.
/// \param is_meta the segments need no memory: a dry run.
/// \error kInvalidArgument naming the collective, the group, the rank and what
///     does not fit.
absl::Status CheckCollective(const Collective& collective, const GroupKey& key,
                             int member, bool is_meta);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_COLLECTIVE_CHECK_H_
