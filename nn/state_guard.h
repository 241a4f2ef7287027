// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_STATE_GUARD_H_
#define CROSSHATCH_NN_STATE_GUARD_H_

/// \file
/// StateGuard: how a runtime on a module (FSDP) says when the module's
/// parameters cannot be kept or restored, and hears when they are needed again.

#include "absl/status/status.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// Attached under kKey to each module that the runtime has taken over, and to
/// its parts: the state of a part is as much the runtime's.
class StateGuard : public Attachment {
 public:
  static constexpr char kKey[] = "state_guard";

  /// Whether Parameter::data() holds the values that the module is at.
  /// \param what the caller, to begin the message with: "ModuleState".
  /// \error kFailedPrecondition naming the module and what to do first.
  virtual absl::Status CheckReadable(const char* what) const = 0;
  /// Whether Parameter::data() may be overwritten.
  /// \error as CheckReadable.
  virtual absl::Status CheckWritable(const char* what) const = 0;
  /// The forward of `module`, to which this is attached, runs again within a
  /// backward (nn/checkpoint.h), without its hooks, and needs its parameters.
  virtual void BeginRecomputation(Module& /*module*/) {}
};

/// Whether every guard on `module` and below lets its parameters be read.
/// \error as StateGuard::CheckReadable, of the first that does not.
absl::Status CheckReadable(Module& module, const char* what);
/// Whether every one lets them be overwritten.
/// \error as StateGuard::CheckWritable, of the first that does not.
absl::Status CheckWritable(Module& module, const char* what);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_STATE_GUARD_H_
