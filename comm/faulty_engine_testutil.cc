// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/faulty_engine_testutil.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

using Kind = EngineFault::Kind;

/// Takes one element from the first list that has any.
bool Shorten(std::vector<SegmentList>& lists) {
  for (SegmentList& list : lists) {
    for (Segment& segment : list) {
      if (segment.elems() == 0) continue;
      if (segment.runs > 1) {
        --segment.runs;
      } else {
        --segment.run_elems;
      }
      return true;
    }
  }
  return false;
}

/// A collective that differs in what `kind` says, or in its label where it has
/// no such part.
Collective Changed(Collective c, Kind kind) {
  switch (kind) {
    case Kind::kOtherKind:
      if (c.kind == CollectiveKind::kBarrier) {
        c.kind = CollectiveKind::kAllReduce;
        c.send = c.recv = {{}};
      } else {
        c.kind = CollectiveKind::kBarrier;
        c.send.clear();
        c.recv.clear();
      }
      return c;
    case Kind::kOtherDType:
      c.dtype = c.dtype == kFloat32 ? kInt32 : kFloat32;
      return c;
    case Kind::kOtherCount: {
      const bool shorter = Shorten(c.send);
      if (Shorten(c.recv) || shorter) return c;
      break;
    }
    case Kind::kOtherOp:
      if (!IsReduction(c.kind)) break;
      c.reduce_op =
          c.reduce_op == ReduceOp::kMax ? ReduceOp::kMin : ReduceOp::kMax;
      return c;
    case Kind::kOtherScale:
      if (!IsReduction(c.kind)) break;
      c.scale *= 0.5;
      return c;
    case Kind::kOtherRoot:
      c.root += 1;
      return c;
    default:
      break;
  }
  c.label += "?";
  return c;
}

absl::Status Planted(Kind kind) {
  return absl::UnavailableError(absl::StrCat("planted: ", Name(kind)));
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

class FaultyEngine::FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> transport, RankContext& context,
                  EngineFault fault, std::shared_ptr<GroupTraffic> traffic)
      : transport_(std::move(transport)),
        context_(context),
        fault_(std::move(fault)),
        traffic_(std::move(traffic)) {}

  void Bind(Stream& stream) override { transport_->Bind(stream); }

  absl::Status Run(const Collective& collective, const Fingerprint& fingerprint,
                   KernelContext& context) override {
    const bool now = !EngineFault::IsOfExchange(fault_.kind) &&
                     traffic_->collectives++ == fault_.index;
    const Kind kind = now ? fault_.kind : Kind::kNone;
    const auto run = [&](const Collective& c) {
      fingerprint_.Assign(c, fingerprint.sequence);
      return transport_->Run(c, fingerprint_, context);
    };
    switch (kind) {
      case Kind::kNone:
        return transport_->Run(collective, fingerprint, context);
      case Kind::kSkip:
        return absl::OkStatus();
      case Kind::kTwice:
        CH_RETURN_IF_ERROR(run(collective));
        return run(collective);
      case Kind::kBarrierBefore:
        CH_RETURN_IF_ERROR(run({.label = "planted"}));
        return run(collective);
      case Kind::kError:
        return Planted(kind);
      case Kind::kFail:
        // The error of a group names it.
        transport_->Fail(absl::UnavailableError(
            absl::StrCat(traffic_->group, ": planted: ", Name(kind))));
        return run(collective);
      case Kind::kPoison:
        context_.Poison(Planted(kind));
        return run(collective);
      case Kind::kNeverComes:
        while (!context_.poisoned()) std::this_thread::yield();
        return context_.status();
      default:
        return run(Changed(collective, kind));
    }
  }

  absl::StatusOr<std::vector<std::string>> Gather(
      std::string blob, const std::string& what) override {
    const bool now = EngineFault::IsOfExchange(fault_.kind) &&
                     traffic_->exchanges == fault_.index;
    ++traffic_->exchanges;
    if (now && fault_.kind == Kind::kErrorOfExchange) {
      return Planted(fault_.kind);
    }
    if (now && fault_.kind == Kind::kSkipExchange) {
      return std::vector<std::string>(static_cast<size_t>(traffic_->size),
                                      blob);
    }
    if (now) CH_RETURN_IF_ERROR(transport_->Gather(blob, what).status());
    return transport_->Gather(std::move(blob), what);
  }

  void Fail(const absl::Status& failure) override { transport_->Fail(failure); }

 private:
  const std::unique_ptr<Transport> transport_;
  RankContext& context_;
  const EngineFault fault_;
  const std::shared_ptr<GroupTraffic> traffic_;
  Fingerprint fingerprint_;
};

FaultyEngine::FaultyEngine(Engine& engine, RankContext& context,
                           EngineFault fault)
    : engine_(engine), context_(context), fault_(std::move(fault)) {}

FaultyEngine::~FaultyEngine() = default;

absl::StatusOr<std::unique_ptr<Transport>> FaultyEngine::Connect(
    const GroupKey& key, int member) {
  CH_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                      engine_.Connect(key, member));
  auto traffic = std::make_shared<GroupTraffic>(GroupTraffic{
      .group = absl::StrCat(Describe(key), " on ", key.stream_name),
      .size = key.size()});
  traffic_.push_back(traffic);
  const bool here = fault_.group == traffic->group;
  return std::make_unique<FaultyTransport>(std::move(transport), context_,
                                           here ? fault_ : EngineFault{},
                                           std::move(traffic));
}

std::vector<GroupTraffic> FaultyEngine::traffic() const {
  std::vector<GroupTraffic> result;
  for (const auto& traffic : traffic_) result.push_back(*traffic);
  return result;
}

}  // namespace crosshatch
