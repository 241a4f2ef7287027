// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/checkpoint.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/nn/hold_buffers.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::nn {
namespace {

constexpr char kKey[] = "checkpoint";

std::string NameOf(const Module& module) {
  const std::string name = module.FullName();
  return name.empty() ? module.type_name() : name;
}

absl::Status CheckIsNew(const Module& module) {
  if (module.attachment(kKey) == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Checkpoint: ", NameOf(module), " is checkpointed already"));
}

}  // namespace

absl::Status Checkpoint(Module& module) {
  CH_RETURN_IF_ERROR(CheckIsNew(module));
  module.Attach(kKey, std::make_shared<Attachment>());
  module.set_forward_wrapper(
      [&module](TensorSpan inputs, const Module::ForwardFunction& forward) {
        return Recomputed(NameOf(module), inputs, HoldBuffers(module, forward));
      });
  return absl::OkStatus();
}

absl::Status CheckpointEach(
    Module& root,
    absl::FunctionRef<bool(const Module& module, const std::string& name)>
        wants) {
  std::vector<Module*> wanted;
  for (const NamedModule& named : root.NamedModules()) {
    if (!wants(*named.module, named.name)) continue;
    CH_RETURN_IF_ERROR(CheckIsNew(*named.module));
    wanted.push_back(named.module);
  }
  if (wanted.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CheckpointEach: none of the modules of ", NameOf(root), " is wanted"));
  }
  for (Module* module : wanted) CH_RETURN_IF_ERROR(Checkpoint(*module));
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
