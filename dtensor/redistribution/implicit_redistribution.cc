// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/implicit_redistribution.h"

#include <memory>

#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// The address is the slot's key.
constexpr char kSlot = 0;

struct ModeSlot final : RankContext::Extension {
  ImplicitRedistribution mode = ImplicitRedistribution::kAllow;
};

ImplicitRedistribution& ModeOfRank() {
  auto& slot = RankContext::Current().extension(&kSlot);
  if (slot == nullptr) slot = std::make_unique<ModeSlot>();
  return static_cast<ModeSlot&>(*slot).mode;
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
