// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/on_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::checkpoint {
namespace {

// Interval of exchanges: far below any timeout that rank threads of a busy
// machine could meet, and far above the cost of an exchange.
constexpr std::chrono::milliseconds kExchangeInterval(20);

// The message of a rank that has no outcome yet.
constexpr char kBusy[] = "busy";

using Outcomes = std::vector<absl::StatusOr<std::string>>;

/// Exchanges until no rank is busy, while `work` runs on another thread.
absl::StatusOr<Outcomes> ExchangeUntilDone(
    Communicator& comm, const std::string& label,
    absl::FunctionRef<absl::StatusOr<std::string>()> work) {
  // If no thread can be created, the work runs below, in get().
  std::future<absl::StatusOr<std::string>> running =
      std::async(std::launch::async | std::launch::deferred, work);
  std::string mine = kBusy;
  absl::Status failed;
  while (true) {
    if (mine == kBusy &&
        running.wait_for(kExchangeInterval) != std::future_status::timeout) {
      const absl::StatusOr<std::string> outcome = running.get();
      failed = outcome.status();
      mine = EncodeOutcome(outcome);
    }
    absl::StatusOr<std::vector<std::string>> messages =
        comm.Exchange(mine, label);
    if (!messages.ok()) {
      if (mine == kBusy) failed = running.get().status();
      return failed.ok() ? messages.status() : failed;
    }
    if (std::find(messages->begin(), messages->end(), kBusy) != messages->end())
      continue;
    Outcomes outcomes;
    for (const std::string& text : *messages) {
      outcomes.push_back(DecodeOutcome(text));
    }
    return outcomes;
  }
}

}  // namespace

std::string EncodeOutcome(const absl::StatusOr<std::string>& outcome) {
  return absl::StrCat(
      static_cast<int>(outcome.status().code()), " ",
      outcome.ok() ? *outcome : std::string(outcome.status().message()));
}

absl::StatusOr<std::string> DecodeOutcome(const std::string& text) {
  const size_t space = text.find(' ');
  int code = 0;
  if (space == std::string::npos ||
      !absl::SimpleAtoi(text.substr(0, space), &code) || code < 0 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::DataLossError("it contains neither success nor an error");
  }
  std::string rest = text.substr(space + 1);
  if (code == 0) return rest;
  return absl::Status(static_cast<absl::StatusCode>(code), rest);
}

absl::StatusOr<std::vector<std::string>> TextsOf(
    absl::Span<const absl::StatusOr<std::string>> outcomes,
    absl::Span<const int> ranks) {
  std::vector<absl::Status> statuses;
  std::vector<std::string> texts;
  for (const absl::StatusOr<std::string>& outcome : outcomes) {
    statuses.push_back(outcome.status());
    if (outcome.ok()) texts.push_back(*outcome);
  }
  CH_RETURN_IF_ERROR(GatherErrors(statuses, ranks));
  return texts;
}

absl::Status GatherErrors(absl::Span<const absl::Status> by_rank,
                          absl::Span<const int> ranks) {
  constexpr size_t kMostLines = 8;
  struct Line {
    absl::Status status;
    std::vector<int> ranks;
  };
  std::vector<Line> lines;
  size_t failed = 0;
  for (size_t i = 0; i < by_rank.size(); ++i) {
    if (by_rank[i].ok()) continue;
    ++failed;
    const auto same =
        std::find_if(lines.begin(), lines.end(),
                     [&](const Line& l) { return l.status == by_rank[i]; });
    if (same != lines.end()) {
      same->ranks.push_back(ranks[i]);
    } else {
      lines.push_back({by_rank[i], {ranks[i]}});
    }
  }
  if (lines.empty()) return absl::OkStatus();
  // An error of all ranks needs no list of ranks.
  if (lines.size() == 1 && failed == by_rank.size()) return lines[0].status;
  std::vector<std::string> texts;
  for (const Line& line : lines) {
    if (texts.size() == kMostLines) {
      texts.push_back(
          absl::StrCat("and ", lines.size() - kMostLines, " other errors"));
      break;
    }
    texts.push_back(absl::StrCat("on rank", line.ranks.size() > 1 ? "s " : " ",
                                 absl::StrJoin(line.ranks, ", "), ": ",
                                 std::string(line.status.message())));
  }
  return absl::Status(lines[0].status.code(), absl::StrJoin(texts, "\n"));
}

absl::Status OnFirstRank(Communicator& comm, const std::string& label,
                         absl::FunctionRef<absl::Status()> work) {
  const bool is_first = comm.rank() == 0;
  absl::StatusOr<Outcomes> outcomes =
      ExchangeUntilDone(comm, label, [&]() -> absl::StatusOr<std::string> {
        if (is_first) CH_RETURN_IF_ERROR(work());
        return std::string();
      });
  CH_RETURN_IF_ERROR(outcomes.status());
  const absl::Status status = (*outcomes)[0].status();
  if (is_first || status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("on rank ", comm.world_ranks()[0], ": ",
                                   std::string(status.message())));
}

absl::StatusOr<std::vector<std::string>> GatherOnEveryRank(
    Communicator& comm, const std::string& label,
    absl::FunctionRef<absl::StatusOr<std::string>()> work) {
  CH_ASSIGN_OR_RETURN(const Outcomes outcomes,
                      ExchangeUntilDone(comm, label, work));
  return TextsOf(outcomes, comm.world_ranks());
}

absl::Status OnEveryRank(Communicator& comm, const std::string& label,
                         absl::FunctionRef<absl::Status()> work) {
  return GatherOnEveryRank(comm, label,
                           [&]() -> absl::StatusOr<std::string> {
                             CH_RETURN_IF_ERROR(work());
                             return std::string();
                           })
      .status();
}

absl::StatusOr<std::string> TextOfFirstRank(
    Communicator& comm, const std::string& label,
    absl::FunctionRef<absl::StatusOr<std::string>()> work) {
  const bool runs = comm.rank() == 0 || RankContext::Current().dry_run();
  CH_ASSIGN_OR_RETURN(
      std::vector<std::string> texts,
      GatherOnEveryRank(comm, label, [&]() -> absl::StatusOr<std::string> {
        return runs ? work() : std::string();
      }));
  return std::move(texts[0]);
}

absl::StatusOr<std::vector<std::string>> Gather(
    Communicator& comm, const std::string& label,
    const absl::StatusOr<std::string>& mine) {
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> messages,
                      comm.Exchange(EncodeOutcome(mine), label));
  Outcomes outcomes;
  for (const std::string& text : messages)
    outcomes.push_back(DecodeOutcome(text));
  return TextsOf(outcomes, comm.world_ranks());
}

absl::Status Gather(Communicator& comm, const std::string& label,
                    const absl::Status& mine) {
  absl::StatusOr<std::string> text = std::string();
  if (!mine.ok()) text = mine;
  return Gather(comm, label, text).status();
}

absl::StatusOr<size_t> LargestCount(Communicator& comm,
                                    const std::string& label,
                                    const absl::StatusOr<size_t>& mine) {
  absl::StatusOr<std::string> text = absl::StrCat(mine.value_or(0));
  if (!mine.ok()) text = mine.status();
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> counts,
                      Gather(comm, label, text));
  size_t largest = 0;
  for (const std::string& of_rank : counts) {
    size_t count = 0;
    CH_CHECK(absl::SimpleAtoi(of_rank, &count)) << of_rank;
    largest = std::max(largest, count);
  }
  return largest;
}

}  // namespace crosshatch::checkpoint
