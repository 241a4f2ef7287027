// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/gather_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "crosshatch/comm/group_key.h"

namespace crosshatch::coordination {
namespace {

/// Bounds all blobs of one name, because gRPC limits the reply to 4 MiB.
constexpr size_t kMostBytes = size_t{3} << 20;

GatherState::AnswerTo AnswerWith(int rank, int64_t request,
                                 const absl::Status& status) {
  GatherState::AnswerTo out{.rank = rank};
  out.answer.set_request(request);
  out.answer.set_code(static_cast<int>(status.code()));
  out.answer.set_text(std::string(status.message()));
  return out;
}

}  // namespace

GatherState::Answers GatherState::OnGather(int rank, const Gather& gather,
                                           absl::Time now) {
  const std::string& name = gather.name();
  if (!failure_.ok()) return {AnswerWith(rank, gather.request(), failure_)};
  ByRank& here = waiting_[name];
  const Waiting mine = {gather.request(), gather.blob(), now,
                        now + absl::Milliseconds(gather.timeout_ms())};
  if (!here.emplace(rank, mine).second) {
    return {AnswerWith(rank, gather.request(),
                       absl::FailedPreconditionError(absl::StrCat(
                           "rank ", rank, " waits for '", name, "' already")))};
  }
  if (static_cast<int>(here.size()) < size_) return {};
  size_t bytes = 0;
  for (const auto& [each, waiting] : here) bytes += waiting.blob.size();
  const absl::Status status =
      bytes <= kMostBytes
          ? absl::OkStatus()
          : absl::ResourceExhaustedError(
                absl::StrCat("'", name, "' has ", bytes,
                             " bytes of all ranks; the most is ", kMostBytes));
  Answers answers;
  for (const auto& [each, waiting] : here) {
    answers.push_back(AnswerWith(each, waiting.request, status));
    if (!status.ok()) continue;
    for (const auto& [other, of_other] : here) {
      answers.back().answer.add_blobs(of_other.blob);
    }
  }
  waiting_.erase(name);
  return answers;
}

absl::Status GatherState::Missed(const std::string& name,
                                 const ByRank& here) const {
  std::vector<int> missing;
  absl::Duration longest;
  for (int rank = 0; rank < size_; ++rank) {
    if (!here.contains(rank)) missing.push_back(rank);
  }
  for (const auto& [rank, waiting] : here) {
    longest = std::max(longest, waiting.deadline - waiting.begin);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("'", name, "': ", DescribeRanks(missing),
                   " did not come within ", absl::FormatDuration(longest)));
}

GatherState::Answers GatherState::OnTick(absl::Time now) {
  Answers answers;
  std::erase_if(waiting_, [&](const auto& entry) {
    const auto& [name, here] = entry;
    if (std::none_of(here.begin(), here.end(), [now](const auto& each) {
          return each.second.deadline <= now;
        })) {
      return false;
    }
    const absl::Status missed = Missed(name, here);
    for (const auto& [rank, waiting] : here) {
      answers.push_back(AnswerWith(rank, waiting.request, missed));
    }
    return true;
  });
  return answers;
}

GatherState::Answers GatherState::OnFailure(const absl::Status& error) {
  failure_ = error;
  Answers answers;
  for (const auto& [name, here] : waiting_) {
    for (const auto& [rank, waiting] : here) {
      answers.push_back(AnswerWith(rank, waiting.request, error));
    }
  }
  waiting_.clear();
  return answers;
}

}  // namespace crosshatch::coordination
