// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/sharded_module.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fsdp_state.h"
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

}  // namespace

void UnshardHandle::Wait() { state_->WaitForUnshard(); }

void ReductionHandle::Wait() { tree_->Finish(); }

absl::StatusOr<ShardedModule> ShardedModule::Of(nn::Module& module) {
  FsdpState* const state = FsdpState::Of(module);
  if (state == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("the ", module.type_name(), " ", module.FullName(),
                     " is not sharded; call FullyShard on it"));
  }
  return ShardedModule(state);
}

template <typename F>
void ShardedModule::ForEach(bool recurse, F set) {
  if (!recurse) {
    set(*state_);
    return;
  }
  for (FsdpState* state : FsdpState::Below(state_->modules())) set(*state);
}

UnshardHandle ShardedModule::Unshard() {
  state_->EnsureTree().BeginGathering();
  state_->Unshard();
  return UnshardHandle(state_);
}

void ShardedModule::Reshard() { state_->Reshard(); }

void ShardedModule::SetKeepUnsharded(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    for (const auto& group : state.groups()) group->set_keep_unsharded(on);
  });
}

void ShardedModule::SetReshardAfterForward(bool on, bool recurse) {
  ForEach(recurse,
          [on](FsdpState& state) { state.set_reshard_after_forward(on); });
}

void ShardedModule::SetReshardAfterBackward(bool on, bool recurse) {
  ForEach(recurse,
          [on](FsdpState& state) { state.set_reshard_after_backward(on); });
}

void ShardedModule::SetUnshardInBackward(bool on) {
  state_->set_unshard_in_backward(on);
}

void ShardedModule::SetRequiresGradientSync(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    for (const auto& group : state.groups()) {
      group->gradients().set_requires_sync(on);
    }
  });
}

void ShardedModule::SetRequiresAllReduce(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    for (const auto& group : state.groups()) {
      group->gradients().set_requires_all_reduce(on);
    }
  });
}

void ShardedModule::SetReduceUnusedParams(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    for (const auto& group : state.groups()) {
      group->gradients().set_reduce_unused(on);
    }
  });
}

void ShardedModule::SetGradientDivideFactor(double factor, bool recurse) {
  CH_CHECK_GT(factor, 0) << "SetGradientDivideFactor";
  ForEach(recurse, [factor](FsdpState& state) {
    for (const auto& group : state.groups()) {
      group->gradients().set_divide_factor(factor);
    }
  });
}

void ShardedModule::SetForceSumReduction(bool on, bool recurse) {
  ForEach(recurse, [on](FsdpState& state) {
    for (const auto& group : state.groups()) {
      group->gradients().set_force_sum(on);
    }
  });
}

void ShardedModule::SetCustomComm(const CustomComm& custom, bool recurse) {
  ForEach(recurse, [&custom](FsdpState& state) {
    for (const auto& group : state.groups()) group->set_custom_comm(custom);
  });
}

void ShardedModule::SetIsLastBackward(bool on) {
  state_->EnsureTree().set_is_last_backward(on);
}

void ShardedModule::SetManualBackwardFinalization(bool on) {
  state_->EnsureTree().set_manual_finalization(on);
}

ReductionHandle ShardedModule::FinalizeBackward() {
  state_->EnsureTree().Reduce();
  return ReductionHandle(state_->tree());
}

void ShardedModule::SetPostOptimizerEvent(Event event) {
  state_->EnsureTree().set_post_optimizer_event(std::move(event));
}

void ShardedModule::ResetIteration() {
  CH_CHECK(!InBackward()) << "ResetIteration within a Backward";
  state_->EnsureTree().Reset();
}

absl::Status ShardedModule::SetForwardPrefetch(
    std::vector<nn::Module*> modules) {
  CH_RETURN_IF_ERROR(CheckSharded(modules, "SetForwardPrefetch"));
  state_->set_forward_prefetch(std::move(modules));
  return absl::OkStatus();
}

absl::Status ShardedModule::SetBackwardPrefetch(
    std::vector<nn::Module*> modules) {
  CH_RETURN_IF_ERROR(CheckSharded(modules, "SetBackwardPrefetch"));
  state_->set_backward_prefetch(std::move(modules));
  return absl::OkStatus();
}

TensorList ShardedModule::Run(TensorList inputs,
                              absl::FunctionRef<TensorList(TensorSpan)> body) {
  state_->PreForward(inputs);
  TensorList outputs = body(inputs);
  state_->PostForward(outputs);
  return outputs;
}

absl::Status ShareCommContext(absl::Span<nn::Module* const> roots) {
  CH_RETURN_IF_ERROR(CheckSharded(roots, "ShareCommContext"));
  std::shared_ptr<CommContext> comm;
  for (nn::Module* root : roots) {
    FsdpState& state = *FsdpState::Of(*root);
    FsdpTree::Form(state, comm);
    comm = state.tree()->shared_comm();
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::fsdp
