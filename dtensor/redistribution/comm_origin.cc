// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/comm_origin.h"

#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

struct ScopesOfRank final : RankContext::Extension {
  CommOrigin origin;
  ImplicitRedistribution mode = ImplicitRedistribution::kAllow;
};

ScopesOfRank& ScopesHere() {
  return RankContext::Current().Get<ScopesOfRank>();
}

}  // namespace

const char* Name(CommOrigin::Kind kind) {
  switch (kind) {
    case CommOrigin::Kind::kOther:
      return "other";
    case CommOrigin::Kind::kExplicit:
      return "explicit";
    case CommOrigin::Kind::kImplicit:
      return "implicit";
    case CommOrigin::Kind::kOp:
      return "op";
  }
  return "unknown";
}

CommOrigin CurrentCommOrigin() { return ScopesHere().origin; }

CommOriginScope::CommOriginScope(const CommOrigin& origin)
    : current_(ScopesHere().origin), previous_(current_) {
  current_ = origin;
}

CommOriginScope::~CommOriginScope() { current_ = previous_; }

ImplicitRedistribution CurrentImplicitRedistribution() {
  return ScopesHere().mode;
}

ImplicitRedistributionScope::ImplicitRedistributionScope(
    ImplicitRedistribution mode)
    : current_(ScopesHere().mode), previous_(current_) {
  current_ = mode;
}

ImplicitRedistributionScope::~ImplicitRedistributionScope() {
  current_ = previous_;
}

}  // namespace crosshatch
