// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/comm_origin.h"

#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

struct OriginSlot final : RankContext::Extension {
  CommOrigin origin;
};

CommOrigin& OriginOfRank() {
  return RankContext::Current().Get<OriginSlot>().origin;
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

CommOrigin CurrentCommOrigin() { return OriginOfRank(); }

CommOriginScope::CommOriginScope(const CommOrigin& origin)
    : current_(OriginOfRank()), previous_(current_) {
  current_ = origin;
}

CommOriginScope::~CommOriginScope() { current_ = previous_; }

}  // namespace crosshatch
