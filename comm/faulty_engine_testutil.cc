// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/faulty_engine_testutil.h"

#include <thread>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

using Kind = EngineFault::Kind;

/// Removes one element from the first nonempty list.
bool Shorten(absl::InlinedVector<int64_t, 4>& counts) {
  for (int64_t& count : counts) {
    if (count == 0) continue;
    --count;
    return true;
  }
  return false;
}

/// Returns a fingerprint with the difference `kind`, or another label if the
/// collective has no such field.
Fingerprint Changed(Fingerprint f, Kind kind) {
  switch (kind) {
    case Kind::kOtherKind:
      if (f.kind == CollectiveKind::kBarrier) {
        f.kind = CollectiveKind::kAllReduce;
        f.send = f.recv = {0};
      } else {
        f.kind = CollectiveKind::kBarrier;
        f.send.clear();
        f.recv.clear();
      }
      return f;
    case Kind::kOtherDType:
      f.dtype = f.dtype == kFloat32 ? kInt32 : kFloat32;
      return f;
    case Kind::kOtherCount: {
      const bool shorter = Shorten(f.send);
      if (Shorten(f.recv) || shorter) return f;
      break;
    }
    case Kind::kOtherOp:
      if (!IsReduction(f.kind)) break;
      f.reduce_op =
          f.reduce_op == ReduceOp::kMax ? ReduceOp::kMin : ReduceOp::kMax;
      return f;
    case Kind::kOtherScale:
      if (!IsReduction(f.kind)) break;
      f.scale *= 0.5;
      return f;
    case Kind::kOtherRoot:
      f.root += 1;
      return f;
    default:
      break;
  }
  f.label += "?";
  return f;
}

absl::Status Injected(Kind kind) {
  return absl::UnavailableError(absl::StrCat("injected: ", Name(kind)));
}

}  // namespace

const char* Name(EngineFault::Kind kind) {
  static constexpr const char* kNames[EngineFault::kNumKinds] = {
      "no fault",       "skip",           "twice",
      "barrier before", "other kind",     "other dtype",
      "other count",    "other op",       "other scale",
      "other root",     "other label",    "error",
      "fail",           "poison",         "never comes",
      "skip exchange",  "exchange twice", "error of exchange"};
  return kNames[static_cast<int>(kind)];
}

/// The state that the two planes of one group share.
struct FaultyEngine::Group {
  GroupTraffic traffic;
  EngineFault fault;
  ControlGroup* control = nullptr;
  // The fault and the fingerprint of the current collective.
  Kind now = Kind::kNone;
  const Fingerprint* fingerprint = nullptr;
};

class FaultyEngine::FaultyGroup final : public ControlGroup {
 public:
  FaultyGroup(std::unique_ptr<ControlGroup> inner, RankContext& context,
              std::shared_ptr<Group> group)
      : inner_(std::move(inner)), context_(context), group_(std::move(group)) {
    group_->control = inner_.get();
  }

  void Bind(Stream& stream) override { inner_->Bind(stream); }
  absl::string_view Of(int member) const override { return inner_->Of(member); }

  absl::Status Agree(const Fingerprint& fingerprint,
                     absl::FunctionRef<void(PayloadRoom)> offer) override {
    const bool is_now = !EngineFault::IsOfExchange(group_->fault.kind) &&
                        group_->traffic.collectives++ == group_->fault.index;
    const Kind kind = is_now ? group_->fault.kind : Kind::kNone;
    group_->now = kind;
    group_->fingerprint = &fingerprint;
    switch (kind) {
      case Kind::kNone:
      case Kind::kTwice:
        return inner_->Agree(fingerprint, offer);
      case Kind::kSkip:
        return absl::OkStatus();
      case Kind::kBarrierBefore: {
        Fingerprint barrier;
        barrier.sequence = fingerprint.sequence;
        barrier.label = "injected";
        CH_RETURN_IF_ERROR(inner_->Agree(barrier, [](PayloadRoom) {}));
        inner_->Done();
        return inner_->Agree(fingerprint, offer);
      }
      case Kind::kError:
        return Injected(kind);
      case Kind::kFail:
        (void)inner_->Fail(absl::UnavailableError(
            absl::StrCat(group_->traffic.group, ": injected: ", Name(kind))));
        return inner_->Agree(fingerprint, offer);
      case Kind::kPoison:
        context_.Poison(Injected(kind));
        return inner_->Agree(fingerprint, offer);
      case Kind::kNeverComes:
        while (!context_.poisoned()) std::this_thread::yield();
        return context_.status();
      default:
        changed_ = Changed(fingerprint, kind);
        return inner_->Agree(changed_, offer);
    }
  }
  void Done() override {
    if (group_->now != Kind::kSkip) inner_->Done();
  }

  absl::StatusOr<std::vector<std::string>> Gather(
      GatherOrder order, std::string blob, const std::string& what) override {
    if (order == GatherOrder::kOfStream) {
      return inner_->Gather(order, std::move(blob), what);
    }
    const EngineFault& fault = group_->fault;
    GroupTraffic& traffic = group_->traffic;
    const bool is_now = EngineFault::IsOfExchange(fault.kind) &&
                        traffic.exchanges == fault.index;
    ++traffic.exchanges;
    if (is_now && fault.kind == Kind::kErrorOfExchange) {
      return Injected(fault.kind);
    }
    if (is_now && fault.kind == Kind::kSkipExchange) {
      return std::vector<std::string>(static_cast<size_t>(traffic.size), blob);
    }
    if (is_now) CH_RETURN_IF_ERROR(inner_->Gather(order, blob, what).status());
    return inner_->Gather(order, std::move(blob), what);
  }
  void Watch(std::shared_ptr<DataPlane> plane, bool blocks) override {
    inner_->Watch(std::move(plane), blocks);
  }
  absl::Status Fail(const absl::Status& failure) override {
    return inner_->Fail(failure);
  }

 private:
  const std::unique_ptr<ControlGroup> inner_;
  RankContext& context_;
  const std::shared_ptr<Group> group_;
  Fingerprint changed_;
};

class FaultyEngine::FaultyPlane final : public DataPlane {
 public:
  FaultyPlane(std::unique_ptr<DataPlane> inner, std::shared_ptr<Group> group)
      : inner_(std::move(inner)), group_(std::move(group)) {}

  void Offer(const Collective& collective, PayloadRoom room) override {
    inner_->Offer(collective, room);
  }
  absl::Status Issue(const Collective& collective, int64_t sequence,
                     const Payloads& payloads, Stream& queue) override {
    if (group_->now == Kind::kSkip) return absl::OkStatus();
    CH_RETURN_IF_ERROR(inner_->Issue(collective, sequence, payloads, queue));
    if (group_->now != Kind::kTwice) return absl::OkStatus();
    ControlGroup& control = *group_->control;
    control.Done();
    CH_RETURN_IF_ERROR(control.Agree(
        *group_->fingerprint,
        [&](PayloadRoom room) { inner_->Offer(collective, room); }));
    return inner_->Issue(collective, sequence, control, queue);
  }
  void Abort() override { inner_->Abort(); }
  absl::Status Poll() override { return inner_->Poll(); }
  std::string Recent() override { return inner_->Recent(); }
  void LeaveMemory() override { inner_->LeaveMemory(); }

 private:
  const std::unique_ptr<DataPlane> inner_;
  const std::shared_ptr<Group> group_;
};

FaultyEngine::FaultyEngine(ControlPlane& control, DataPlanes& planes,
                           RankContext& context, EngineFault fault)
    : control_(control),
      planes_(planes),
      context_(context),
      fault_(std::move(fault)) {}

FaultyEngine::~FaultyEngine() = default;

namespace {

std::string NameOf(const GroupKey& key) {
  return absl::StrCat(Describe(key), " on ", key.stream_name);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlGroup>> FaultyEngine::Join(
    const GroupKey& key, int member, absl::Duration timeout) {
  CH_ASSIGN_OR_RETURN(std::unique_ptr<ControlGroup> inner,
                      control_.Join(key, member, timeout));
  auto group = std::make_shared<Group>(
      Group{.traffic = {.group = NameOf(key), .size = key.size()}});
  if (fault_.group == group->traffic.group) group->fault = fault_;
  {
    std::lock_guard lock(mutex_);
    groups_.push_back(group);
  }
  return std::make_unique<FaultyGroup>(std::move(inner), context_,
                                       std::move(group));
}

absl::StatusOr<std::unique_ptr<DataPlane>> FaultyEngine::Connect(
    const GroupKey& key, int member, RankContext& context,
    absl::Duration timeout, Exchange exchange) {
  CH_ASSIGN_OR_RETURN(std::unique_ptr<DataPlane> inner,
                      planes_.Connect(key, member, context, timeout, exchange));
  std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Group>& group : groups_) {
    if (group->traffic.group != NameOf(key)) continue;
    return std::make_unique<FaultyPlane>(std::move(inner), group);
  }
  return absl::InternalError("a plane of a group that nobody joined");
}

std::vector<GroupTraffic> FaultyEngine::traffic() const {
  std::vector<GroupTraffic> result;
  std::lock_guard lock(mutex_);
  for (const auto& group : groups_) result.push_back(group->traffic);
  return result;
}

}  // namespace crosshatch
