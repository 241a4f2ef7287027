// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/exchange_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "crosshatch/comm/group_key.h"

namespace crosshatch::coordination {
namespace {

ExchangeState::AnswerTo AnswerWith(int rank, int64_t request,
                                   const absl::Status& status) {
  ExchangeState::AnswerTo out{.rank = rank};
  out.answer.set_request(request);
  out.answer.set_code(static_cast<int>(status.code()));
  out.answer.set_text(std::string(status.message()));
  return out;
}

ExchangeState::AnswerTo AnswerValue(int rank, int64_t request,
                                    const std::string& value) {
  ExchangeState::AnswerTo out = AnswerWith(rank, request, absl::OkStatus());
  out.answer.set_value(value);
  return out;
}

}  // namespace

ExchangeState::Answers ExchangeState::OnPut(int rank, const Put& put) {
  if (!failure_.ok()) return {AnswerWith(rank, put.request(), failure_)};
  const auto [entry, is_new] = values_.emplace(put.key(), put.value());
  if (!is_new && entry->second != put.value()) {
    return {AnswerWith(rank, put.request(),
                       absl::AlreadyExistsError(absl::StrCat(
                           "the key '", put.key(),
                           "' has another value already: a key is set once")))};
  }
  Answers answers = {AnswerWith(rank, put.request(), absl::OkStatus())};
  for (const Waiting& get : gets_[put.key()]) {
    answers.push_back(AnswerValue(get.rank, get.request, put.value()));
  }
  gets_.erase(put.key());
  return answers;
}

ExchangeState::Answers ExchangeState::OnGet(int rank, const Get& get,
                                            absl::Time now) {
  if (!failure_.ok()) return {AnswerWith(rank, get.request(), failure_)};
  const auto found = values_.find(get.key());
  if (found != values_.end()) {
    return {AnswerValue(rank, get.request(), found->second)};
  }
  gets_[get.key()].push_back(
      {rank, get.request(), now, now + absl::Milliseconds(get.timeout_ms())});
  return {};
}

ExchangeState::Answers ExchangeState::OnBarrier(int rank,
                                                const Barrier& barrier,
                                                absl::Time now) {
  if (!failure_.ok()) return {AnswerWith(rank, barrier.request(), failure_)};
  std::vector<Waiting>& here = barriers_[barrier.name()];
  for (const Waiting& waiting : here) {
    if (waiting.rank == rank) {
      return {AnswerWith(rank, barrier.request(),
                         absl::FailedPreconditionError(absl::StrCat(
                             "rank ", rank, " waits in the barrier '",
                             barrier.name(), "' already")))};
    }
  }
  here.push_back({rank, barrier.request(), now,
                  now + absl::Milliseconds(barrier.timeout_ms())});
  if (static_cast<int>(here.size()) < size_) return {};
  Answers answers;
  for (const Waiting& waiting : here) {
    answers.push_back(
        AnswerWith(waiting.rank, waiting.request, absl::OkStatus()));
  }
  barriers_.erase(barrier.name());
  return answers;
}

absl::Status ExchangeState::Missed(const std::string& name,
                                   const std::vector<Waiting>& here) const {
  std::vector<int> missing;
  absl::Duration longest;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::none_of(here.begin(), here.end(),
                     [rank](const Waiting& w) { return w.rank == rank; })) {
      missing.push_back(rank);
    }
  }
  for (const Waiting& waiting : here) {
    longest = std::max(longest, waiting.deadline - waiting.begin);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("barrier '", name, "': ", DescribeRanks(missing),
                   " did not come within ", absl::FormatDuration(longest)));
}

ExchangeState::Answers ExchangeState::OnTick(absl::Time now) {
  Answers answers;
  const auto is_late = [now](const Waiting& w) { return w.deadline <= now; };
  for (auto& [key, waiting] : gets_) {
    for (const Waiting& get : waiting) {
      if (!is_late(get)) continue;
      answers.push_back(
          AnswerWith(get.rank, get.request,
                     absl::DeadlineExceededError(absl::StrCat(
                         "no rank has set the key '", key, "' within ",
                         absl::FormatDuration(get.deadline - get.begin)))));
    }
    std::erase_if(waiting, is_late);
  }
  for (auto barrier = barriers_.begin(); barrier != barriers_.end();) {
    const auto& [name, here] = *barrier;
    if (std::none_of(here.begin(), here.end(), is_late)) {
      ++barrier;
      continue;
    }
    const absl::Status missed = Missed(name, here);
    for (const Waiting& waiting : here) {
      answers.push_back(AnswerWith(waiting.rank, waiting.request, missed));
    }
    barrier = barriers_.erase(barrier);
  }
  return answers;
}

ExchangeState::Answers ExchangeState::OnFailure(const absl::Status& error) {
  failure_ = error;
  Answers answers;
  for (auto* requests : {&gets_, &barriers_}) {
    for (const auto& [name, waiting] : *requests) {
      for (const Waiting& request : waiting) {
        answers.push_back(AnswerWith(request.rank, request.request, error));
      }
    }
    requests->clear();
  }
  return answers;
}

}  // namespace crosshatch::coordination
