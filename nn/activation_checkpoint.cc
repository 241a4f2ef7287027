// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/activation_checkpoint.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/split_saved.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::nn {
namespace {

std::string NameOf(const Module& module) {
  const std::string name = module.FullName();
  return name.empty() ? module.type_name() : name;
}

absl::Status CheckIsNew(const Module& module) {
  if (module.attachment(kCheckpointKey) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Checkpoint: ", NameOf(module), " is checkpointed already"));
  }
  if (module.attachment(kSplitSavedKey) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Checkpoint: the activations that ", NameOf(module),
        " saves are split (SplitSavedActivations); checkpointed it saves none, "
        "so leave that out and set "
        "ActivationCheckpointOptions::split_inputs_over"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ActivationCheckpointOptions& options) {
  if (!options.split_inputs_over.has_value()) return absl::OkStatus();
  const DeviceMesh& mesh = *options.split_inputs_over;
  if (mesh.ndim() == 1 && mesh.coordinate().has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Checkpoint: split_inputs_over takes a mesh of one axis that this rank "
      "is on, not ",
      mesh.ToString(), "; slice one: mesh.Slice(\"tp\")"));
}

// Wraps `forward` to notify the runtime on `module` before each recomputation.
// Backward may have freed parameters by then, and the recomputation also needs
// those that backward does not, such as a bias.
RecomputedFunction Announced(Module& module, RecomputedFunction forward) {
  return [&module, life = module.life(),
          forward = std::move(forward)](TensorSpan inputs) {
    CH_CHECK(life->module != nullptr)
        << "Backward runs the forward of module " << *life->label
        << " again (Checkpoint), and the module was destroyed since; keep the "
        << "model until its backward is done";
    if (InRecomputation()) {
      if (Attachment* const runtime = module.attachment(StateGuard::kKey)) {
        static_cast<StateGuard*>(runtime)->BeginRecomputation(module);
      }
    }
    return forward(inputs);
  };
}

uint32_t VersionOf(const Buffer& buffer) {
  const Tensor& data = buffer.data();
  return data.is_distributed() ? data.handler()->memory().version()
                               : data.storage()->version();
}

// Wraps `forward` of `module` with checks that both runs find the same buffers
// in the module and below. A buffer that is written within a run, or between
// the two, would give wrong gradients. The module must outlive the result.
Module::ForwardFunction HoldBuffers(Module& module,
                                    Module::ForwardFunction forward) {
  const std::vector<NamedBuffer> buffers = module.NamedBuffers();
  if (buffers.empty()) return forward;
  return [buffers, forward = std::move(forward)](TensorSpan inputs) {
    std::vector<uint32_t> before;
    for (const auto& [name, buffer] : buffers) {
      before.push_back(VersionOf(*buffer));
      const uint32_t at_first = Captured(before.back());
      CH_CHECK_EQ(at_first, before.back())
          << "buffer " << buffer->name() << " was written between a forward "
          << "and its recomputation for backward; write it after the backward";
    }
    TensorList outputs = forward(inputs);
    for (size_t i = 0; i < buffers.size(); ++i) {
      CH_CHECK_EQ(VersionOf(*buffers[i].buffer), before[i])
          << "buffer " << buffers[i].buffer->name() << " is written by a "
          << "forward that is recomputed, so twice a step; write it outside of "
          << "the checkpointed module, or leave the module out of Checkpoint";
    }
    return outputs;
  };
}

}  // namespace

absl::Status CheckpointActivations(Module& module,
                                   const ActivationCheckpointOptions& options) {
  CH_RETURN_IF_ERROR(CheckOptions(options));
  CH_RETURN_IF_ERROR(CheckIsNew(module));
  module.Attach(kCheckpointKey, std::make_shared<Attachment>());
  module.AddForwardWrapper([&module, split = options.split_inputs_over](
                               TensorSpan inputs,
                               const Module::ForwardFunction& forward) {
    const auto recomputed = [&] {
      return Recomputed(NameOf(module), inputs,
                        Announced(module, HoldBuffers(module, forward)));
    };
    // A nested checkpoint leaves its inputs to the outer one.
    if (!split.has_value() ||
        RankContext::Current().saved_tensor_store() != nullptr) {
      return recomputed();
    }
    const std::shared_ptr<SavedTensorStore> store = MakeSplitSavedStore(*split);
    const SavedTensorScope scope(store.get());
    return recomputed();
  });
  return absl::OkStatus();
}

absl::Status CheckpointActivationsIf(
    Module& root,
    absl::FunctionRef<bool(const Module& module, const std::string& name)>
        wants,
    const ActivationCheckpointOptions& options) {
  CH_RETURN_IF_ERROR(CheckOptions(options));
  std::vector<Module*> wanted;
  for (const NamedModule& named : root.NamedModules()) {
    if (!wants(*named.module, named.name)) continue;
    CH_RETURN_IF_ERROR(CheckIsNew(*named.module));
    wanted.push_back(named.module);
  }
  if (wanted.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("CheckpointActivationsIf: none of the modules of ",
                     NameOf(root), " is wanted"));
  }
  for (Module* module : wanted) {
    CH_RETURN_IF_ERROR(CheckpointActivations(*module, options));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
