// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_TRANSPORT_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/local/local_group.h"
#include "crosshatch/comm/local/local_hub.h"
#include "crosshatch/comm/transport.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

/// One member's end of a LocalGroup.
class LocalTransport final : public Transport {
 public:
  /// \param context of this rank; outlives what is run.
  /// \param member index of this rank in `key`.
  LocalTransport(std::shared_ptr<LocalHub> hub, RankContext& context,
                 const GroupKey& key, int member);

  void Bind(Stream& stream) override;
  absl::Status Run(const Collective& collective, const Fingerprint& fingerprint,
                   KernelContext& context) override;
  absl::StatusOr<std::vector<std::string>> Gather(
      std::string blob, const std::string& what) override;
  void Fail(const absl::Status& failure) override;

 private:
  const std::shared_ptr<LocalHub> hub_;
  RankContext& context_;
  const std::shared_ptr<LocalGroup> group_;
  const int member_;
  /// Where the collectives of a device run that the host cannot address; null
  /// elsewhere.
  Stream* queue_ = nullptr;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LOCAL_TRANSPORT_H_
