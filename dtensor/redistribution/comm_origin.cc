// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/comm_origin.h"

#include <memory>

#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// The address is the slot's key.
constexpr char kSlot = 0;

struct OriginSlot final : RankContext::Extension {
  CommOrigin origin;
};

CommOrigin& OriginOfRank() {
  auto& slot = RankContext::Current().extension(&kSlot);
  if (slot == nullptr) slot = std::make_unique<OriginSlot>();
  return static_cast<OriginSlot&>(*slot).origin;
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
