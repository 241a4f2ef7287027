// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fsdp_state.h"

#include <algorithm>
#include <utility>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/cast.h"

namespace crosshatch::fsdp {
namespace {

void CastFloats(TensorList& tensors, DType dtype) {
  for (Tensor& tensor : tensors) {
    if (tensor.defined() && IsFloatingPoint(tensor.dtype()) &&
        tensor.dtype() != dtype) {
      tensor = ToDType(tensor, dtype);
    }
  }
}

}  // namespace

void FsdpTree::Form(nn::Module& root) {
  std::shared_ptr<FsdpTree> tree(new FsdpTree);
  tree->comm_ = std::make_shared<CommContext>(RankContext::Current());
  for (const nn::NamedModule& named : root.NamedModules()) {
    FsdpState* const state = FsdpState::Of(*named.module);
    if (state == nullptr) continue;
    tree->states_.push_back(state);
    state->JoinTree(tree, named.module == &root, tree->comm_);
  }
  const FullyShardOptions& options = FsdpState::Of(root)->options();
  tree->forward_prefetch_ = options.forward_prefetch;
  tree->backward_prefetch_ = options.backward_prefetch;
  tree->expected_order_ = tree->states_;
}

void FsdpTree::BeginForward() {
  comm_->all_gather().Wait(comm_->compute().Record());
  if (!begin_order_.empty()) expected_order_ = std::exchange(begin_order_, {});
  position_ = 0;
}

std::vector<FsdpState*> FsdpTree::NextInForward(const FsdpState& state) {
  const auto begin = expected_order_.begin();
  auto found = std::find(begin + static_cast<ptrdiff_t>(position_),
                         expected_order_.end(), &state);
  begin_order_.push_back(const_cast<FsdpState*>(&state));
  // A module that was not expected here says nothing of what comes next.
  if (found == expected_order_.end()) return {};
  ++found;
  position_ = static_cast<size_t>(found - begin);
  const auto end = found + std::min<ptrdiff_t>(forward_prefetch_,
                                               expected_order_.end() - found);
  return std::vector<FsdpState*>(found, end);
}

std::vector<FsdpState*> FsdpTree::NextInBackward(const FsdpState& state) const {
  const auto found =
      std::find(forward_order_.rbegin(), forward_order_.rend(), &state);
  if (found == forward_order_.rend()) return {};
  const auto next = found + 1;
  const auto end = next + std::min<ptrdiff_t>(backward_prefetch_,
                                              forward_order_.rend() - next);
  return std::vector<FsdpState*>(next, end);
}

void FsdpTree::BeginBackward() {
  if (in_backward_) return;
  in_backward_ = true;
  AtBackwardEnd([this] { EndBackward(); });
}

void FsdpTree::EndBackward() {
  for (FsdpState* state : states_) state->EndBackward();
  for (FsdpState* state : states_) state->FinishReductions();
  comm_->ReleaseHeld();
  forward_order_.clear();
  in_backward_ = false;
}

FsdpState* FsdpState::Of(const nn::Module& module) {
  return static_cast<FsdpState*>(module.attachment(kKey));
}

FsdpState::FsdpState(nn::Module& module, FullyShardOptions options,
                     std::vector<std::unique_ptr<ParamGroup>> groups)
    : module_(module),
      options_(std::move(options)),
      groups_(std::move(groups)) {
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    group->set_on_gradients_complete(
        [this, g = group.get()] { PostBackward(*g); });
  }
  module_.AddPreHook(
      [this](nn::Module&, TensorList& inputs) { PreForward(inputs); },
      /*first=*/true);
  module_.AddPostHook([this](nn::Module&, TensorSpan, TensorList& outputs) {
    PostForward(outputs);
  });
}

void FsdpState::JoinTree(std::shared_ptr<FsdpTree> tree, bool is_root,
                         const std::shared_ptr<CommContext>& comm) {
  tree_ = std::move(tree);
  is_root_ = is_root;
  for (const auto& group : groups_) group->set_comm_context(comm);
}

void FsdpState::Unshard() {
  for (const auto& group : groups_) group->Unshard();
}

void FsdpState::Reshard() {
  for (const auto& group : groups_) group->Reshard();
}

void FsdpState::PreForward(TensorList& inputs) {
  if (tree_ == nullptr) FsdpTree::Form(module_);
  if (is_root_) tree_->BeginForward();
  Unshard();
  for (FsdpState* next : tree_->NextInForward(*this)) next->Unshard();
  for (const auto& group : groups_) group->WaitForUnshard();
  const MixedPrecisionPolicy& precision = options_.mixed_precision;
  if (precision.cast_forward_inputs && precision.param_dtype.has_value()) {
    CastFloats(inputs, *precision.param_dtype);
  }
}

void FsdpState::PostForward(TensorList& outputs) {
  if (const auto dtype = options_.mixed_precision.output_dtype) {
    CastFloats(outputs, *dtype);
  }
  bool backward_follows = false;
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    backward_follows = true;
    GradEdge(output).node->AddPreHook([this] { PreBackward(); });
  }
  if (backward_follows) tree_->RecordForward(*this);
  if (reshard_after_forward() || !backward_follows) Reshard();
}

void FsdpState::PreBackward() {
  if (in_backward_) return;
  in_backward_ = true;
  tree_->BeginBackward();
  Unshard();
  for (FsdpState* next : tree_->NextInBackward(*this)) next->Unshard();
  for (const auto& group : groups_) group->WaitForUnshard();
}

void FsdpState::PostBackward(ParamGroup& group) {
  group.ReduceGradients();
  group.Reshard();
  const bool all_reduced = std::all_of(
      groups_.begin(), groups_.end(),
      [](const auto& g) { return !g->trainable() || g->gradients_complete(); });
  if (all_reduced) Reshard();
}

void FsdpState::EndBackward() {
  for (const auto& group : groups_) {
    group->ReduceGradients();
    group->Reshard();
  }
  in_backward_ = false;
}

void FsdpState::FinishReductions() {
  for (const auto& group : groups_) group->FinishReduction();
}

}  // namespace crosshatch::fsdp
