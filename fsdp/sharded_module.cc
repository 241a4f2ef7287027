// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/sharded_module.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/fsdp/fsdp_tree.h"
#include "crosshatch/tensor/autograd.h"

namespace crosshatch::fsdp {
namespace {

absl::Status CheckSharded(absl::Span<nn::Module* const> modules,
                          const char* what) {
  for (const nn::Module* module : modules) {
    if (FsdpState::Of(*module) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": the ", module->type_name(), " ",
                       module->FullName(), " is not sharded"));
    }
  }
  return absl::OkStatus();
}

absl::Status NotSharded(const nn::Module& module) {
  return absl::NotFoundError(
      absl::StrCat("the ", module.type_name(), " ", module.FullName(),
                   " is not sharded; call FullyShard on it"));
}

absl::Status CheckSettings(const Settings& settings) {
  CH_RETURN_IF_ERROR(
      CheckOptions("Configure", settings.prefetch, settings.reduction));
  if (settings.forward_prefetch_modules.has_value()) {
    CH_RETURN_IF_ERROR(CheckSharded(*settings.forward_prefetch_modules,
                                    "Configure: forward_prefetch_modules"));
  }
  if (!settings.backward_prefetch_modules.has_value()) return absl::OkStatus();
  return CheckSharded(*settings.backward_prefetch_modules,
                      "Configure: backward_prefetch_modules");
}

// Returns the name of the first tree-wide setting that differs; null if none.
const char* ChangeOfTree(const Settings& from, const Settings& to) {
  if (to.prefetch != from.prefetch) return "prefetch";
  if (to.reduction.buffers != from.reduction.buffers) {
    return "reduction.buffers";
  }
  if (to.is_last_backward != from.is_last_backward) return "is_last_backward";
  if (to.manual_finalization != from.manual_finalization) {
    return "manual_finalization";
  }
  return nullptr;
}

}  // namespace

void UnshardHandle::Wait() {
  if (ref_->state != nullptr) ref_->state->WaitForUnshard();
}

void ReductionHandle::Wait() { tree_->Finish(); }

absl::Status Configure(nn::Module& module,
                       absl::FunctionRef<void(Settings&)> change,
                       bool recurse) {
  FsdpState* const state = FsdpState::Of(module);
  if (state == nullptr) return NotSharded(module);
  std::vector<FsdpState*> states = {state};
  if (recurse) states = FsdpState::Below(state->modules());
  std::vector<Settings> changed;
  for (const FsdpState* each : states) {
    Settings& settings = changed.emplace_back(each->LiveSettings());
    change(settings);
    CH_RETURN_IF_ERROR(CheckSettings(settings));
  }
  // The first state is `state`.
  const char* const of_tree = ChangeOfTree(state->settings(), changed[0]);
  if (of_tree != nullptr) {
    const FsdpTree& tree = FsdpTree::Of(*state);
    if (!tree.IsRoot(*state)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Configure: ", of_tree, " applies to the whole tree: change it on ",
          tree.root().Name(), ", not on ", state->Name()));
    }
  }
  for (size_t i = 0; i < states.size(); ++i) {
    states[i]->set_settings(std::move(changed[i]));
  }
  if (of_tree != nullptr) {
    FsdpTree::Of(*state).comm().set_reduce_buffers(
        state->settings().reduction.buffers);
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardedModule> ShardedModule::Of(nn::Module& module) {
  FsdpState* const state = FsdpState::Of(module);
  if (state == nullptr) return NotSharded(module);
  return ShardedModule(state->ref());
}

FsdpState& ShardedModule::state() const { return ref_->Check("ShardedModule"); }

UnshardHandle ShardedModule::Unshard() {
  FsdpTree::Of(state()).OrderAllGathers();
  state().Unshard();
  return UnshardHandle(ref_);
}

void ShardedModule::Reshard() { state().Reshard(); }

ReductionHandle ShardedModule::FinalizeBackward() {
  FsdpTree& tree = FsdpTree::Of(state());
  tree.Finalize();
  return ReductionHandle(tree.shared_from_this());
}

void ShardedModule::SetPostOptimizerEvent(Event event) {
  FsdpTree::Of(state()).set_post_optimizer_event(std::move(event));
}

void ShardedModule::ResetIteration() {
  CH_CHECK(!InBackward()) << "ResetIteration was called during Backward";
  FsdpTree::Of(state()).Reset();
}

TensorList ShardedModule::Run(TensorList inputs,
                              absl::FunctionRef<TensorList(TensorSpan)> body) {
  FsdpTree::Of(state()).BeforeForward(state(), inputs);
  TensorList outputs = body(inputs);
  FsdpTree::Of(state()).AfterForward(state(), outputs);
  return outputs;
}

absl::Status ShareCommContext(absl::Span<nn::Module* const> roots) {
  CH_RETURN_IF_ERROR(CheckSharded(roots, "ShareCommContext"));
  std::shared_ptr<CommContext> comm;
  for (nn::Module* root : roots) {
    FsdpState& state = *FsdpState::Of(*root);
    FsdpTree::Form(state, comm);
    comm = FsdpTree::Of(state).shared_comm();
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::fsdp
