// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {
namespace {

/// Counts and logs (Communicator does), and moves nothing.
class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(RankContext& context, const GroupKey& key, int member)
      : Communicator(key.name, member, key.world_ranks), context_(context) {}

  absl::StatusOr<std::vector<std::string>> Exchange(
      std::string blob, const std::string&) override {
    if (context_.poisoned()) return context_.status();
    return std::vector<std::string>(size(), blob);
  }

  void Abort(absl::Status error) override {
    CH_CHECK(!error.ok()) << Describe() << " aborted without an error";
    context_.Poison(std::move(error));
  }

 protected:
  void IssueChecked(Collective, int64_t, Stream&) override {}

 private:
  RankContext& context_;
};

class FakeWorld final : public World {
 public:
  explicit FakeWorld(RankContext& context) : context_(context) {}

  const std::string& engine() const override { return engine_; }
  RankContext& context() const override { return context_; }

  absl::StatusOr<std::shared_ptr<Communicator>> Group(
      const std::string& name, std::vector<int> world_ranks,
      const std::string& stream_name) override {
    const GroupKey key{name, std::move(world_ranks), stream_name};
    CH_ASSIGN_OR_RETURN(const int member, MemberIndex(key, rank(), size()));
    std::shared_ptr<Communicator>& communicator = by_key_[key];
    if (communicator == nullptr) {
      communicator = std::make_shared<FakeCommunicator>(context_, key, member);
      groups_.push_back(communicator);
    }
    return communicator;
  }

  std::vector<std::shared_ptr<Communicator>> groups() const override {
    return groups_;
  }

  void Abort(absl::Status error) override {
    CH_CHECK(!error.ok()) << "rank " << rank() << " aborts without an error";
    context_.Poison(std::move(error));
  }

 private:
  const std::string engine_ = "fake";
  RankContext& context_;
  std::map<GroupKey, std::shared_ptr<Communicator>> by_key_;
  std::vector<std::shared_ptr<Communicator>> groups_;
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
  RankContext context({.world_rank = options.rank,
                       .world_size = options.world_size,
                       .device = Device::Meta(),
                       .sink = options.sink});
  RankContextScope scope(&context);
  FakeWorld world(context);
  CH_RETURN_IF_ERROR(fn(world));
  return context.Synchronize();
}

}  // namespace crosshatch
