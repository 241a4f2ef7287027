// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/ranks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace crosshatch {
namespace {

// Reports each failure once, with all the ranks that it is the same on.
void Report(const std::vector<std::vector<FailedCheck>>& by_rank) {
  std::vector<FailedCheck> failures;
  std::vector<std::vector<size_t>> ranks;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const FailedCheck& failed : by_rank[rank]) {
      const size_t at = static_cast<size_t>(
          std::find(failures.begin(), failures.end(), failed) -
          failures.begin());
      if (at == failures.size()) {
        failures.push_back(failed);
        ranks.emplace_back();
      }
      // A rank that fails in the same way twice is told of once.
      if (ranks[at].empty() || ranks[at].back() != rank) {
        ranks[at].push_back(rank);
      }
    }
  }
  for (size_t i = 0; i < failures.size(); ++i) {
    ADD_FAILURE_AT(failures[i].file, failures[i].line)
        << (ranks[i].size() == 1 ? "rank " : "ranks ")
        << absl::StrJoin(ranks[i], ", ") << ":\n"
        << failures[i].message;
  }
}

}  // namespace

absl::Status StatusOfRanks(int ranks,
                           absl::FunctionRef<absl::Status(World&)> body,
                           const RankOptions& options) {
  std::vector<std::vector<FailedCheck>> by_rank(
      static_cast<size_t>(std::max(ranks, 0)));
  const absl::Status status = RunLocal(
      ranks,
      [&](World& world) {
        CheckScope scope;
        absl::Status of_rank = body(world);
        by_rank[static_cast<size_t>(world.rank())] = scope.Take();
        return of_rank;
      },
      options);
  Report(by_rank);
  return status;
}

void RunRanks(int ranks, absl::FunctionRef<absl::Status(World&)> body,
              const RankOptions& options, const std::source_location& where) {
  const absl::Status status = StatusOfRanks(ranks, body, options);
  if (!status.ok()) {
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
        << "the job of " << ranks << " ranks failed: " << status.ToString();
  }
}

MeshAxes::MeshAxes(const std::vector<int>& sizes) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    axes_.push_back({std::string(1, static_cast<char>('a' + i)), sizes[i]});
  }
}

int MeshAxes::ranks() const {
  int ranks = 1;
  for (const MeshAxis& axis : axes_) ranks *= axis.size;
  return ranks;
}

}  // namespace crosshatch
