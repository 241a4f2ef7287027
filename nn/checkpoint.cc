// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/checkpoint.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::nn {
namespace {

constexpr char kKey[] = "checkpoint";

std::string NameOf(const Module& module) {
  const std::string name = module.FullName();
  return name.empty() ? module.type_name() : name;
}

}  // namespace

absl::Status Checkpoint(Module& module) {
  if (module.attachment(kKey) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Checkpoint: ", NameOf(module), " is checkpointed already"));
  }
  module.Attach(kKey, std::make_shared<Attachment>());
  module.set_forward_wrapper(
      [&module](TensorSpan inputs, const Module::ForwardFunction& forward) {
        return Recomputed(NameOf(module), inputs, forward);
      });
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
