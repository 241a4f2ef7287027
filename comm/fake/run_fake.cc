// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/engine.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/transport.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/adversarial_seed.h"

namespace crosshatch {
namespace {

/// Moves nothing; Communicator counts and logs.
class FakeTransport final : public Transport {
 public:
  FakeTransport(RankContext& context, int size)
      : context_(context), size_(size) {}

  void Bind(Stream&) override {}
  absl::Status Run(const Collective&, const Fingerprint&,
                   KernelContext&) override {
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
};

class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(RankContext& context) : context_(context) {}

  const std::string& name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<Transport>> Connect(const GroupKey& key,
                                                     int) override {
    return std::make_unique<FakeTransport>(context_, key.size());
  }
  void FailJob(const absl::Status& error) override { context_.Poison(error); }

 private:
  const std::string name_ = "fake";
  RankContext& context_;
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
  FakeEngine engine(context);
  World world(engine, context);
  return RunRank(world, fn);
}

}  // namespace crosshatch
