// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_transport.h"

#include <utility>

#include "crosshatch/tensor/device_backend.h"

namespace crosshatch::internal {
namespace {

/// While there is one, the rank is in a collective.
class Turn {
 public:
  explicit Turn(LocalHub::Turns& turns) : turns_(turns) {
    turns_.begun.fetch_add(1, std::memory_order_relaxed);
  }
  ~Turn() { turns_.ended.fetch_add(1, std::memory_order_relaxed); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  LocalHub::Turns& turns_;
};

}  // namespace

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
  const Turn turn(hub_->turns(context_.world_rank()));
  return group_->Run(member_, collective, fingerprint, context_.kernels(),
                     queue_);
}

absl::StatusOr<std::vector<std::string>> LocalTransport::Gather(
    std::string blob, const std::string& what) {
  const Turn turn(hub_->turns(context_.world_rank()));
  return group_->Gather(member_, blob, what);
}

void LocalTransport::Fail(const absl::Status& failure) {
  (void)hub_->FailGroup(*group_, failure);
}

}  // namespace crosshatch::internal
