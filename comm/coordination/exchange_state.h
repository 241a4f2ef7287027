// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_EXCHANGE_STATE_H_
#define CROSSHATCH_COMM_COORDINATION_EXCHANGE_STATE_H_

/// \file
/// What ranks tell each other through the coordinator: values by key, and
/// barriers. Requests go in, with the time at which they come; answers go out.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/messages.pb.h"

namespace crosshatch::coordination {

/// A pure state machine: no clock, no lock, no socket.
class ExchangeState {
 public:
  struct AnswerTo {
    int rank;
    Answer answer;
  };
  using Answers = std::vector<AnswerTo>;

  /// \param size ranks of the job, all of which a barrier waits for.
  explicit ExchangeState(int size) : size_(size) {}

  /// Sets a key once; setting it to the same value again is no error. Answers
  /// those that wait for it, too.
  Answers OnPut(int rank, const Put& put);
  /// Answered at once if the key is set, else when it is or when the request's
  /// time is over.
  Answers OnGet(int rank, const Get& get, absl::Time now);
  /// Answered when all ranks have come, or, to all that have, when the time of
  /// one of them is over. Then the name can be used again.
  Answers OnBarrier(int rank, const Barrier& barrier, absl::Time now);
  /// Answers requests whose time is over.
  Answers OnTick(absl::Time now);
  /// Ends all that wait, and from now on all that come, with `error`.
  Answers OnFailure(const absl::Status& error);

 private:
  struct Waiting {
    int rank;
    int64_t request;
    absl::Time begin;
    absl::Time deadline;
  };

  absl::Status Missed(const std::string& name,
                      const std::vector<Waiting>& here) const;

  const int size_;
  absl::Status failure_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<Waiting>> gets_;
  std::map<std::string, std::vector<Waiting>> barriers_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_EXCHANGE_STATE_H_
