// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_transport.h"

#include <utility>

#include "crosshatch/tensor/device_backend.h"

namespace crosshatch::internal {

LocalTransport::LocalTransport(std::shared_ptr<LocalHub> hub,
                               RankContext& context, const GroupKey& key,
                               int member)
    : hub_(std::move(hub)),
      context_(context),
      group_(hub_->Group(key)),
      member_(member) {}

void LocalTransport::Bind(Stream& stream) {
  group_->SetAgent(member_, context_.AgentOf(stream));
  if (!context_.backend().host_addressable()) queue_ = &stream;
}

absl::Status LocalTransport::Run(const Collective& collective,
                                 const Fingerprint& fingerprint,
                                 KernelContext&) {
  return group_->Run(member_, collective, fingerprint, context_.kernels(),
                     queue_);
}

absl::StatusOr<std::vector<std::string>> LocalTransport::Gather(
    std::string blob, const std::string& what) {
  return group_->Gather(member_, blob, what);
}

void LocalTransport::Fail(const absl::Status& failure) {
  (void)hub_->FailGroup(*group_, failure);
}

}  // namespace crosshatch::internal
