// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/job_failure.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace crosshatch {

std::string BoundedText(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  return absl::StrCat(text.substr(0, most), "... (", text.size(), " bytes)");
}

absl::Status BoundedError(const absl::Status& error) {
  constexpr size_t kMost = size_t{16} << 10;
  if (error.message().size() <= kMost) return error;
  return absl::Status(error.code(),
                      BoundedText(std::string(error.message()), kMost));
}

const absl::Status& JobFailure::For(int world_rank) const {
  const bool failed_itself = std::find(world_ranks.begin(), world_ranks.end(),
                                       world_rank) != world_ranks.end();
  return failed_itself ? own : induced;
}

JobFailure FailureOfRank(int rank, const absl::Status& unbounded) {
  const absl::Status error = BoundedError(unbounded);
  // What ranks have told one another says where it happened, which need not be
  // on the first of them that ends by it.
  const bool names_ranks = absl::StartsWith(error.message(), "on rank");
  return {.result = names_ranks ? error
                                : absl::Status(error.code(),
                                               absl::StrCat("rank ", rank, ": ",
                                                            error.message())),
          .world_ranks = {rank},
          .own = error,
          .induced = absl::AbortedError(
              absl::StrCat("rank ", rank, " failed: ", error.message()))};
}

JobFailure FailureOfGroup(std::vector<int> world_ranks,
                          const absl::Status& unbounded) {
  const absl::Status error = BoundedError(unbounded);
  return {.result = error,
          .world_ranks = std::move(world_ranks),
          .own = error,
          .induced = absl::AbortedError(
              absl::StrCat("another group failed: ", error.message()))};
}

JobFailure FailureOf(const FailureNotice& notice) {
  // A start fails between processes of which some are no ranks.
  return notice.of_group || notice.world_ranks.empty()
             ? FailureOfGroup(notice.world_ranks, notice.error)
             : FailureOfRank(notice.world_ranks[0], notice.error);
}

}  // namespace crosshatch
