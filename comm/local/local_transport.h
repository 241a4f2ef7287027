// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_COMMUNICATOR_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/local/local_group.h"
#include "crosshatch/comm/local/local_hub.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

/// One member's view of a LocalGroup.
class LocalCommunicator final : public Communicator {
 public:
  /// \param context of this rank; outlives what is issued.
  /// \param member index of this rank in `key`.
  LocalCommunicator(std::shared_ptr<LocalHub> hub, RankContext& context,
                    const GroupKey& key, int member);

  absl::StatusOr<std::vector<std::string>> Exchange(
      std::string blob, const std::string& label) override;
  void Abort(absl::Status error) override;

 protected:
  void IssueChecked(Collective collective, int64_t sequence,
                    Stream& stream) override;

 private:
  const std::shared_ptr<LocalHub> hub_;
  RankContext& context_;
  const std::shared_ptr<LocalGroup> group_;
  Stream* stream_ = nullptr;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LOCAL_COMMUNICATOR_H_
