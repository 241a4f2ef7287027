// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_SAVING_NODE_H_
#define CROSSHATCH_TENSOR_OPS_SAVING_NODE_H_

/// \file
/// The backward nodes of ops, of Crosshatch's and of a user's own
/// (docs/write_an_op.md): MakeNode for those that are a formula of what was
/// saved, SavingNode for those that need a class.
///
///     auto node = MakeNode<1>(kInfo, [](const auto& self, TensorSpan grads,
///                                       GradientSlots& slots) {
///       slots.Put(0, Mul(grads[0], self.Saved(0)));
///     });
///     node->Save(0, inputs[1]);

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

/// The node of an op's call that keeps up to N tensors.
template <size_t N>
class SavingNode : public Node {
 public:
  explicit SavingNode(const OpInfo& info) : name_(info.name) {}

  const char* name() const override { return name_; }
  void ReleaseSaved() override {
    for (SavedTensor& saved : saved_) saved.Reset();
  }

  void Save(size_t i, const Tensor& tensor) {
    saved_[Index(i)] = SavedTensor(tensor);
  }
  /// \param index of `tensor` among the call's outputs.
  void SaveOutput(size_t i, const Tensor& tensor, int index = 0) {
    saved_[Index(i)] = SavedTensor::OfOutput(tensor, index);
  }

 protected:
  /// Returns saved tensor i.
  Tensor Saved(size_t i) const { return saved_[Index(i)].Unpack(*this); }

 private:
  size_t Index(size_t i) const {
    CH_CHECK(i < N) << name_ << ": saved tensor " << i
                    << " of a node that keeps " << N << ", counted from 0";
    return i;
  }

  const char* const name_;
  std::array<SavedTensor, N> saved_;
};

/// A node whose Backward is a function of saved tensors, `run(node, grads,
/// slots)`, for gradients that need no class of their own.
template <size_t N, typename F>
class FormulaNode final : public SavingNode<N> {
 public:
  FormulaNode(const OpInfo& info, F run)
      : SavingNode<N>(info), run_(std::move(run)) {}

  using SavingNode<N>::Saved;
  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    run_(*this, output_grads, slots);
  }

 private:
  F run_;
};

/// Creates a FormulaNode that keeps N tensors. `run` uses differentiable ops,
/// so that a gradient has a gradient. If Recording() is false, it may use ops
/// without a gradient.
template <size_t N, typename F>
auto MakeNode(const OpInfo& info, F run) {
  return std::make_shared<FormulaNode<N, F>>(info, std::move(run));
}

/// Creates the node of a call that has one output and a gradient for input 0
/// only: `gradient_of(g)`, of the output's gradient g.
template <typename F>
requires std::is_invocable_r_v<Tensor, F, const Tensor&>
auto MakeNode(const OpInfo& info, F gradient_of) {
  return MakeNode<0>(
      info, [gradient_of = std::move(gradient_of)](
                const auto& /*self*/, TensorSpan grads, GradientSlots& slots) {
        slots.Put(0, gradient_of(grads[0]));
      });
}

/// Returns whether the gradients being computed are themselves recorded, so
/// that only differentiable ops may be used.
inline bool Recording() { return RankContext::Current().grad_enabled(); }

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_SAVING_NODE_H_
