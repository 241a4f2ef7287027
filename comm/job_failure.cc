// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/job_failure.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace crosshatch {
namespace {

/// A failed start involves processes that are not ranks.
bool IsOfGroup(const FailureNotice& failure) {
  return failure.of_group || failure.world_ranks.empty();
}

}  // namespace

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

absl::Status ResultOf(const FailureNotice& failure) {
  const absl::Status error = BoundedError(failure.error);
  // An error that ranks have exchanged names the failed rank, which need not be
  // the first to report it.
  const bool names_ranks = absl::StartsWith(error.message(), "on rank");
  if (IsOfGroup(failure) || names_ranks) return error;
  return absl::Status(
      error.code(),
      absl::StrCat("rank ", failure.world_ranks[0], ": ", error.message()));
}

absl::Status InducedError(const FailureNotice& failure) {
  const absl::Status error = BoundedError(failure.error);
  return absl::AbortedError(
      IsOfGroup(failure)
          ? absl::StrCat("another group failed: ", error.message())
          : absl::StrCat("rank ", failure.world_ranks[0],
                         " failed: ", error.message()));
}

absl::Status ErrorFor(const FailureNotice& failure, int world_rank) {
  // If several ranks fail on their own, only the first is named.
  const auto end = IsOfGroup(failure) ? failure.world_ranks.end()
                                      : failure.world_ranks.begin() + 1;
  const bool is_own =
      std::find(failure.world_ranks.begin(), end, world_rank) != end;
  return is_own ? BoundedError(failure.error) : InducedError(failure);
}

}  // namespace crosshatch
