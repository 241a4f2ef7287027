// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_planes.h"

#include <utility>
#include <vector>

#include "crosshatch/comm/local/local_group.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch::internal {
namespace {

class LocalControlGroup final : public ControlGroup {
 public:
  LocalControlGroup(std::shared_ptr<LocalHub> hub, RankContext& context,
                    const GroupKey& key, int member)
      : hub_(std::move(hub)),
        context_(context),
        turns_(hub_->turns(context.world_rank())),
        group_(hub_->Group(key)),
        member_(member) {}

  void Bind(Stream& stream) override {
    const bool by_queue = !context_.backend().host_addressable();
    group_->Bind(member_, context_.AgentOf(stream),
                 by_queue ? &stream : nullptr);
  }
  absl::Status Agree(const Fingerprint& fingerprint,
                     absl::FunctionRef<void(PayloadRoom)> offer) override {
    turns_.begun.fetch_add(1, std::memory_order_relaxed);
    // Members see one another's memory.
    offer([](int, int64_t) -> char* { return nullptr; });
    return group_->Agree(member_, fingerprint);
  }
  absl::string_view Of(int) const override { return ""; }
  void Done() override { turns_.ended.fetch_add(1, std::memory_order_relaxed); }

  absl::StatusOr<std::vector<std::string>> Gather(
      std::string blob, const std::string& what) override {
    turns_.begun.fetch_add(1, std::memory_order_relaxed);
    auto blobs = group_->Gather(member_, blob, what);
    turns_.ended.fetch_add(1, std::memory_order_relaxed);
    return blobs;
  }
  absl::StatusOr<std::vector<std::string>> GatherInOrder(
      const std::string&) override {
    return absl::UnimplementedError("ranks are threads: they need not connect");
  }

  absl::Status Fail(const absl::Status& failure) override {
    return hub_->FailGroup(*group_, failure);
  }

 private:
  const std::shared_ptr<LocalHub> hub_;
  RankContext& context_;
  LocalHub::Turns& turns_;
  const std::shared_ptr<LocalGroup> group_;
  const int member_;
};

class MemoryPlane final : public DataPlane {
 public:
  MemoryPlane(std::shared_ptr<LocalGroup> group, int member,
              const KernelTable& kernels)
      : group_(std::move(group)), member_(member), kernels_(kernels) {}

  void Offer(const Collective& collective, PayloadRoom) override {
    group_->Offer(member_, collective);
  }
  absl::Status Issue(const Collective&, int64_t sequence, const Payloads&,
                     Stream&) override {
    group_->Move(member_, sequence, kernels_);
    return absl::OkStatus();
  }
  void Abort() override {}

 private:
  const std::shared_ptr<LocalGroup> group_;
  const int member_;
  const KernelTable& kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlGroup>> LocalControlPlane::Join(
    const GroupKey& key, int member) {
  return std::make_unique<LocalControlGroup>(hub_, context_, key, member);
}

absl::StatusOr<std::unique_ptr<DataPlane>> MemoryPlanes::Connect(
    const GroupKey& key, int member, RankContext& context, absl::Duration,
    Exchange) {
  return std::make_unique<MemoryPlane>(hub_->Group(key), member,
                                       context.kernels());
}

}  // namespace crosshatch::internal
