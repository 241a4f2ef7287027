// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/adversarial_delays.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/control_plane.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/nccl/nccl_plan.h"
#include "crosshatch/comm/run_rank.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/allocator.h"

namespace crosshatch {
namespace {

/// One rank's handle of a group whose other members do not exist.
class FakeControlGroup final : public ControlGroup {
 public:
  FakeControlGroup(RankContext& context, int size)
      : context_(context), size_(size) {}

  void Bind(Stream&) override {}
  absl::Status Agree(const Fingerprint&,
                     absl::FunctionRef<void(PayloadRoom)>) override {
    return absl::OkStatus();
  }
  absl::string_view Of(int) const override { return ""; }
  void Done() override {}
  absl::StatusOr<std::vector<std::string>> Gather(GatherOrder, std::string blob,
                                                  const std::string&) override {
    return std::vector<std::string>(static_cast<size_t>(size_), blob);
  }
  absl::Status Fail(const absl::Status& failure) override {
    context_.Poison(failure);
    return failure;
  }

 private:
  RankContext& context_;
  const int size_;
};

class FakeControlPlane final : public ControlPlane {
 public:
  explicit FakeControlPlane(RankContext& context) : context_(context) {}

  absl::StatusOr<std::unique_ptr<ControlGroup>> Join(const GroupKey& key, int,
                                                     absl::Duration) override {
    return std::make_unique<FakeControlGroup>(context_, key.size());
  }
  absl::Duration timeout() const override { return absl::InfiniteDuration(); }
  void FailRank(const absl::Status& error) override { context_.Poison(error); }

 private:
  RankContext& context_;
};

/// Moves nothing. Communicator counts and logs.
class FakePlanes final : public DataPlanes {
 public:
  explicit FakePlanes(const std::optional<NcclOptions>& nccl) : nccl_(nccl) {}

  const std::string& name() const override { return name_; }
  bool connects_alone() const override { return true; }
  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(const GroupKey& key,
                                                     int member,
                                                     RankContext& context,
                                                     absl::Duration,
                                                     Exchange) override {
    return std::make_unique<Plane>(context, key.size(), member, nccl_);
  }

 private:
  class Plane final : public DataPlane {
   public:
    Plane(RankContext& context, int size, int member,
          const std::optional<NcclOptions>& nccl)
        : context_(context), size_(size), member_(member), nccl_(nccl) {}

    absl::Status Issue(const Collective& collective, int64_t, const Payloads&,
                       Stream& queue) override {
      if (!nccl_.has_value()) return absl::OkStatus();
      const int64_t bytes =
          internal::SummandBytes(collective, size_, member_, *nccl_);
      if (bytes == 0) return absl::OkStatus();
      // Freed at once, in stream order, as by NCCL's data plane.
      context_.device_allocator().Allocate(bytes, MemoryClass::kCommunication,
                                           queue);
      return absl::OkStatus();
    }
    void Abort() override {}

   private:
    RankContext& context_;
    const int size_;
    const int member_;
    const std::optional<NcclOptions> nccl_;
  };

  const std::string name_ = "fake";
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
  FakeControlPlane control(context);
  FakePlanes planes(options.nccl);
  World world(control, planes, context);
  return RunRank(world, fn);
}

}  // namespace crosshatch
