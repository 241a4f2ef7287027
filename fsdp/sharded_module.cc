// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/sharded_module.h"

#include <memory>
#include <utility>

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

// Of modules that are sharded.
Settings::Modules LivesOf(absl::Span<nn::Module* const> modules) {
  Settings::Modules lives;
  for (const nn::Module* module : modules) {
    lives.push_back(FsdpState::Of(*module)->life());
  }
  return lives;
}

}  // namespace

void UnshardHandle::Wait() {
  if (life_->state != nullptr) life_->state->WaitForUnshard();
}

void ReductionHandle::Wait() { tree_->Finish(); }

absl::StatusOr<ShardedModule> ShardedModule::Of(nn::Module& module) {
  FsdpState* const state = FsdpState::Of(module);
  if (state == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("the ", module.type_name(), " ", module.FullName(),
                     " is not sharded; call FullyShard on it"));
  }
  return ShardedModule(state->life());
}

FsdpState& ShardedModule::state() const {
  return life_->Check("ShardedModule");
}

template <typename F>
void ShardedModule::ForEach(bool recurse, F set) {
  if (!recurse) {
    set(state());
    return;
  }
  for (FsdpState* below : FsdpState::Below(state().modules())) set(*below);
}

UnshardHandle ShardedModule::Unshard() {
  FsdpTree::Of(state()).OrderAllGathers();
  state().Unshard();
  return UnshardHandle(life_);
}

void ShardedModule::Reshard() { state().Reshard(); }

void ShardedModule::SetKeepUnsharded(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    for (const auto& group : state.groups()) group->set_keep_unsharded(on);
  });
}

void ShardedModule::SetReshardAfterForward(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    state.settings().reshard_after_forward = on;
  });
}

void ShardedModule::SetReshardAfterBackward(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    state.settings().reshard_after_backward = on;
  });
}

void ShardedModule::SetUnshardInBackward(bool on) {
  state().settings().unshard_in_backward = on;
}

void ShardedModule::SetRequiresGradientSync(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    state.settings().requires_gradient_sync = on;
  });
}

void ShardedModule::SetRequiresAllReduce(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    state.settings().requires_all_reduce = on;
  });
}

void ShardedModule::SetReduceUnusedParams(bool on, bool recurse) {
  ForEach(recurse,
          [on](FsdpState& state) { state.settings().reduce_unused = on; });
}

void ShardedModule::SetGradientDivideFactor(double factor, bool recurse) {
  CH_CHECK_GT(factor, 0) << "SetGradientDivideFactor";
  ForEach(recurse, [factor](FsdpState& state) {
    state.settings().gradient_divide_factor = factor;
  });
}

void ShardedModule::SetForceSumReduction(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    state.settings().force_sum_reduction = on;
  });
}

void ShardedModule::SetCustomComm(const CustomComm& custom, bool recurse) {
  ForEach(recurse, [&custom](FsdpState& state) {
    for (const auto& group : state.groups()) group->set_custom_comm(custom);
  });
}

void ShardedModule::SetIsLastBackward(bool on) {
  FsdpTree::Of(state()).settings().is_last_backward = on;
}

void ShardedModule::SetManualBackwardFinalization(bool on) {
  FsdpTree::Of(state()).settings().manual_finalization = on;
}

ReductionHandle ShardedModule::FinalizeBackward() {
  FsdpTree& tree = FsdpTree::Of(state());
  tree.Finalize();
  return ReductionHandle(tree.shared_from_this());
}

void ShardedModule::SetPostOptimizerEvent(Event event) {
  FsdpTree::Of(state()).set_post_optimizer_event(std::move(event));
}

void ShardedModule::ResetIteration() {
  CH_CHECK(!InBackward()) << "ResetIteration within a Backward";
  FsdpTree::Of(state()).Reset();
}

absl::Status ShardedModule::SetForwardPrefetch(
    std::vector<nn::Module*> modules) {
  CH_RETURN_IF_ERROR(CheckSharded(modules, "SetForwardPrefetch"));
  state().settings().forward_prefetch_modules = LivesOf(modules);
  return absl::OkStatus();
}

absl::Status ShardedModule::SetBackwardPrefetch(
    std::vector<nn::Module*> modules) {
  CH_RETURN_IF_ERROR(CheckSharded(modules, "SetBackwardPrefetch"));
  state().settings().backward_prefetch_modules = LivesOf(modules);
  return absl::OkStatus();
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
