// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_VERIFY_RANK_CLASSES_H_
#define CROSSHATCH_VERIFY_RANK_CLASSES_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/verify/job_log.h"

namespace crosshatch::verify {

/// Records the ranks of a job whose logs differ.
///
/// In a job of at most `max_ranks` every rank is a class. In a larger one, the
/// coordinates of an axis are divided into classes by the digests of the ranks
/// along the axis, at every combination of the other axes' classes. Coordinates
/// of equal classes are assumed to have equal logs everywhere; a sample of
/// other ranks is compared. \param batch_axes for JobLog::origins: the
/// neighbours along them are run too. \param record runs a rank \param[out]
/// ranks_run the number of calls of `record` \error of `record`;
/// kFailedPrecondition if a rank of the sample differs from
///     its class, or there are too many classes
absl::StatusOr<JobLog> RecordClasses(
    const MeshLayout& mesh, int max_ranks, const std::vector<int>& batch_axes,
    absl::FunctionRef<absl::StatusOr<RankLog>(int rank)> record,
    int& ranks_run);

}  // namespace crosshatch::verify

#endif  // CROSSHATCH_VERIFY_RANK_CLASSES_H_
