// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OP_H_
#define CROSSHATCH_TENSOR_OP_H_

/// \file
/// One call of an op, and its way: autograd, then distributed, then device.
///
/// An op is a small struct, on the caller's stack, that holds the attributes of
/// one call (a dim, a flag) and knows how to run on local tensors and how to
/// differentiate itself. `Apply(op, inputs)`
///   1. runs what is below autograd: the handler's Dispatch where an input has
///      one (which calls op.Forward on local tensors), else op.Forward;
///   2. where grad mode is on and an input requires a gradient, asks
///      op.Differentiate for a node and ties it into the graph.
/// Nodes compute gradients by ops, so the gradient of a distributed tensor is
/// distributed, and a gradient has a gradient.

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

class Node;
struct ViewHistory;

/// Constants of an op type; its address is the type's identity.
struct OpInfo {
  /// E.g. "matmul"; used in messages, logs and sharding rules.
  const char* name;
  /// Output i is input 0 itself, written in place (or a destination).
  bool in_place = false;
  /// Output 0 aliases the memory of input 0, or where AliasStrides says that
  /// it cannot, is a copy.
  bool view = false;
  /// Of a view: how autograd follows writes through it (node.h).
  const ViewHistory* view_history = nullptr;
  /// Bit i: input i may be undefined. Every other one is checked by Apply.
  uint32_t optional_inputs = 0;
};

/// The attributes of a call by value, for caches. Two calls of one op type with
/// equal keys and equal input types behave the same.
using OpKey = absl::InlinedVector<int64_t, 8>;

class Op {
 public:
  virtual ~Op() = default;

  virtual const OpInfo& info() const = 0;

  /// Checks the inputs (a wrong shape is a bug: the message names the op and
  /// the shapes), allocates the outputs and issues the kernels to the current
  /// stream. Inputs are local; optional ones (OpInfo) may be undefined. On
  /// Device::Meta() it allocates just the same and issues nothing. An op that
  /// writes in place bumps the version of what it wrote.
  virtual TensorList Forward(TensorSpan inputs) const = 0;

  /// Of a view: the strides with which output 0 aliases input 0, were those of
  /// input 0 `strides`; nullopt where none do. Forward goes by it, and so do
  /// distributed tensors, by the sizes and strides of the whole: whether a
  /// result aliases is the same for all ranks and on one device.
  virtual std::optional<Shape> AliasStrides(const Tensor& input,
                                            ShapeView strides) const;

  /// The backward node of a call, holding what it needs of inputs and outputs;
  /// its edges are tied by the caller. Null: no output is differentiable, and
  /// the outputs are constants to autograd.
  /// Called when grad mode is on and an input requires a gradient. An op that
  /// does not override it has no gradient: null where no output is of floating
  /// point (comparisons, ArgMax); else a check fails that names the op.
  virtual std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                              TensorSpan outputs) const;

  /// Appends the attributes.
  virtual void AppendKey(OpKey& key) const;
};

/// Runs a call as described above.
TensorList Apply(const Op& op, TensorSpan inputs);
/// For ops of one output.
Tensor Apply1(const Op& op, TensorSpan inputs);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OP_H_
