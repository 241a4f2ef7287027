// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_MODULE_EVENTS_H_
#define CROSSHATCH_FSDP_MODULE_EVENTS_H_

/// \file
/// ModuleEvents: the way back up. Calls go from a tree to the states of its
/// modules, from a state to its groups, from a group to its gradients; what
/// becomes of a module without a call is told by an event, and whoever hears it
/// decides what comes of it.

#include "crosshatch/fsdp/iteration.h"

namespace crosshatch::fsdp {

class FsdpState;
class ParamGroup;

class ModuleEvents {
 public:
  virtual ~ModuleEvents() = default;

  /// Autograd came to the module: kBackwardBegins, kGroupIsComplete,
  /// kBackwardIsComplete or kGroupIsNeededAgain.
  /// \param group the one that the event is of, where it is of one; else null.
  virtual void Happened(FsdpState& state, ModuleEvent event,
                        ParamGroup* group) = 0;
  /// The module is being destroyed.
  virtual void Went(const FsdpState& state) = 0;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_MODULE_EVENTS_H_
