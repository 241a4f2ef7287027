// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_GATHER_STATE_H_
#define CROSSHATCH_COMM_COORDINATION_GATHER_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/messages.pb.h"

namespace crosshatch::coordination {

/// The blobs that ranks gather through the coordinator. A pure state machine
/// without clock, lock or socket: requests have a time.
class GatherState {
 public:
  struct AnswerTo {
    int rank;
    Answer answer;
  };
  using Answers = std::vector<AnswerTo>;

  /// \param size number of ranks in the job.
  explicit GatherState(int size) : size_(size) {}

  /// Answers when all ranks have requested `gather`, or when one request times
  /// out. Then the name can be reused.
  Answers OnGather(int rank, const Gather& gather, absl::Time now);
  /// Answers requests that have timed out.
  Answers OnTick(absl::Time now);
  /// Answers all pending and later requests with `error`.
  Answers OnFailure(const absl::Status& error);

 private:
  struct Waiting {
    int64_t request;
    std::string blob;
    absl::Time begin;
    absl::Time deadline;
  };
  using ByRank = std::map<int, Waiting>;

  absl::Status Missed(const std::string& name, const ByRank& here) const;

  const int size_;
  absl::Status failure_;
  std::map<std::string, ByRank> waiting_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_GATHER_STATE_H_
