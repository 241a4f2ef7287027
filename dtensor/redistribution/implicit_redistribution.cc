// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/implicit_redistribution.h"

#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

struct ModeSlot final : RankContext::Extension {
  ImplicitRedistribution mode = ImplicitRedistribution::kAllow;
};

ImplicitRedistribution& ModeOfRank() {
  return RankContext::Current().Get<ModeSlot>().mode;
}

}  // namespace

ImplicitRedistribution CurrentImplicitRedistribution() { return ModeOfRank(); }

ImplicitRedistributionScope::ImplicitRedistributionScope(
    ImplicitRedistribution mode)
    : current_(ModeOfRank()), previous_(current_) {
  current_ = mode;
}

ImplicitRedistributionScope::~ImplicitRedistributionScope() {
  current_ = previous_;
}

}  // namespace crosshatch
