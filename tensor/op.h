// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OP_H_
#define CROSSHATCH_TENSOR_OP_H_

/// \file
/// Op: one call of an op, dispatched to autograd, then distribution, then
/// device.
///
/// An op is a small object on the caller's stack with the attributes of one
/// call (a dim, a flag). It runs on local tensors and differentiates itself.
/// `Apply(op, inputs)`
///   1. runs the op below autograd: the Dispatch of an input's handler, if one
///      has a handler, which calls op.Forward with local tensors; otherwise
///      op.Forward;
///   2. if grad mode is on and an input requires a gradient, calls
///      op.Differentiate and links the node into the graph.
/// Nodes compute with ops, so the gradient of a distributed tensor is
/// distributed, and gradients have gradients.

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

class Node;
struct ViewHistory;

/// Constants of an op type. Its address identifies the type.
struct OpInfo {
  /// E.g. "matmul", for messages, logs and sharding rules.
  const char* name;
  /// Output i is input 0 itself, written in place (or a destination).
  bool in_place = false;
  /// Output 0 aliases the memory of input 0, or is a copy if AliasStrides
  /// returns nullopt.
  bool view = false;
  /// For views: how autograd tracks writes through them (node.h).
  const ViewHistory* view_history = nullptr;
  /// Bit i: input i may be undefined. Apply checks all others.
  uint32_t optional_inputs = 0;
  /// If the op has no gradient: why, and what to do instead, for the message.
  const char* no_gradient = nullptr;
};

/// The attributes of a call as integers, for caches. Two calls of an op type
/// with equal keys and input types are dispatched in the same way.
using OpKey = absl::InlinedVector<int64_t, 8>;

/// Appends attributes to `key`: integers, enums and bool; bits of double; the
/// elements of lists; and structs by their own AppendKey.
template <typename... Attributes>
void AppendTo(OpKey& key, const Attributes&... attributes) {
  const auto append = [&key](const auto& attribute) {
    using Attribute = std::remove_cvref_t<decltype(attribute)>;
    if constexpr (std::is_same_v<Attribute, double>) {
      key.push_back(std::bit_cast<int64_t>(attribute));
    } else if constexpr (requires { attribute.AppendKey(key); }) {
      attribute.AppendKey(key);
    } else if constexpr (requires { attribute.begin(); }) {
      key.insert(key.end(), attribute.begin(), attribute.end());
    } else {
      key.push_back(static_cast<int64_t>(attribute));
    }
  };
  (append(attributes), ...);
}

class Op {
 public:
  virtual ~Op() = default;

  virtual const OpInfo& info() const = 0;

  /// Checks the inputs, allocates the outputs and issues the kernels to the
  /// current stream. A wrong shape is a bug: the message names the op and the
  /// shapes. Inputs are local; optional ones (OpInfo) may be undefined. On
  /// Device::Meta() it allocates as usual and issues nothing. An op that writes
  /// in place bumps the version of what it wrote.
  virtual TensorList Forward(TensorSpan inputs) const = 0;

  /// For views: returns the strides with which output 0 aliases input 0 if that
  /// has `strides`, or nullopt if it cannot. Distributed tensors pass global
  /// sizes and strides, so a result aliases on all ranks or on none, as on one
  /// device.
  virtual std::optional<Shape> AliasStrides(const Tensor& input,
                                            ShapeView strides) const;

  /// Returns the backward node of a call, with what it saves of inputs and
  /// outputs; the caller sets its edges. Null: the outputs are constants for
  /// autograd. Called if grad mode is on and an input requires a gradient. The
  /// default returns null if no output is floating point (comparisons, ArgMax);
  /// otherwise a check fails and names the op and OpInfo::no_gradient.
  virtual std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                              TensorSpan outputs) const;

  /// Appends the attributes to `key`.
  virtual void AppendKey(OpKey& key) const;
};

/// Runs a call as described in this file's comment.
TensorList Apply(const Op& op, TensorSpan inputs);
/// Runs a call of an op with one output.
Tensor Apply1(const Op& op, TensorSpan inputs);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OP_H_
