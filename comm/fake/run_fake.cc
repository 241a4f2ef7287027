// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/adversarial_delays.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/engine.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/nccl/nccl_plan.h"
#include "crosshatch/comm/transport.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/allocator.h"

namespace crosshatch {
namespace {

/// Moves nothing; Communicator counts and logs.
class FakeTransport final : public Transport {
 public:
  FakeTransport(RankContext& context, int size, int member,
                const std::optional<NcclOptions>& nccl)
      : context_(context), size_(size), member_(member), nccl_(nccl) {}

  void Bind(Stream& stream) override { queue_ = &stream; }
  absl::Status Run(const Collective& collective, const Fingerprint&,
                   KernelContext&) override {
    if (!nccl_.has_value()) return absl::OkStatus();
    const int64_t bytes =
        internal::SummandBytes(collective, size_, member_, *nccl_);
    if (bytes == 0) return absl::OkStatus();
    // Given back at once, in the order of the stream, as the plane's.
    context_.device_allocator().Allocate(bytes, MemoryClass::kCommunication,
                                         *queue_);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> Gather(std::string blob,
                                                  const std::string&) override {
    return std::vector<std::string>(static_cast<size_t>(size_), blob);
  }
  void Fail(const absl::Status& failure) override { context_.Poison(failure); }

 private:
  RankContext& context_;
  const int size_;
  const int member_;
  const std::optional<NcclOptions> nccl_;
  Stream* queue_ = nullptr;
};

class FakeEngine final : public Engine {
 public:
  FakeEngine(RankContext& context, const std::optional<NcclOptions>& nccl)
      : context_(context), nccl_(nccl) {}

  const std::string& name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<Transport>> Connect(const GroupKey& key,
                                                     int member) override {
    return std::make_unique<FakeTransport>(context_, key.size(), member, nccl_);
  }
  void FailJob(const absl::Status& error) override { context_.Poison(error); }

 private:
  const std::string name_ = "fake";
  RankContext& context_;
  const std::optional<NcclOptions> nccl_;
};

}  // namespace

absl::Status RunFake(const FakeOptions& options,
                     absl::FunctionRef<absl::Status(World&)> fn) {
  if (options.world_size < 1 || options.rank < 0 ||
      options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no rank ", options.rank, " in a world of ",
                     options.world_size));
  }
  CH_RETURN_IF_ERROR(AdversarialSeedOfEnvironment().status());
  RankContext context({.world_rank = options.rank,
                       .world_size = options.world_size,
                       .backend = options.backend,
                       .dry_run = true,
                       .sink = options.sink});
  RankContextScope scope(&context);
  FakeEngine engine(context, options.nccl);
  World world(engine, context);
  return RunRank(world, fn);
}

}  // namespace crosshatch
