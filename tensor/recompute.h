// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_RECOMPUTE_H_
#define CROSSHATCH_TENSOR_RECOMPUTE_H_

/// \file
/// Activation checkpointing: a region of forward whose graph keeps no
/// activations and recomputes them in backward.
///
/// The graph equals that of an ordinary forward, node for node; only saved
/// tensors other than leaves are not kept. The first node that requests one in
/// backward recomputes all of them, by running the region again on its inputs,
/// which are kept. Gradients therefore have the same bits, leaves complete at
/// the same time, and hooks, gradients of gradients and nested regions work as
/// usual.
///
/// The recomputation sees the same
/// - inputs, whose memory must not have been written to meanwhile;
/// - grad mode, which was on, and class of memory;
/// - values read through Captured: module state that a program changes between
///   forwards (the step of a Dropout, the training mode).
///
/// It runs on the stream that is current in backward and reads everything else
/// at that time. Backward checks that parameters have the values of the first
/// run.
///
/// With A the bytes that the nodes of a region save and I the bytes of its
/// inputs that are not leaves, a chain of n equal regions holds n * I + A
/// instead of n * A.

#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>

#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

using RecomputedFunction = std::function<TensorList(TensorSpan inputs)>;

/// Runs `forward` on `inputs`. If a graph is recorded, each backward through it
/// that needs an activation runs `forward` again, once. Recomputed tensors are
/// released at the end of the backward, also with retain_graph.
///
/// \param name of the module, for messages.
/// \param forward computes the same in each run: randomness depends on elements
///     and steps, not on the number of calls, and state that may change is read
///     through Captured. If a recomputation saves or captures something else,
///     or an input was changed in place, a check fails and names the region.
///     Kept as long as the graph. Its collectives are issued again.
TensorList Recomputed(std::string name, TensorSpan inputs,
                      RecomputedFunction forward);

/// Returns whether a recomputation is running. A runtime that acts around
/// modules has then acted in forward already.
bool InRecomputation();

namespace internal {
void Capture(void* value, size_t size);
}  // namespace internal

/// Returns `value` or, in a recomputation, the value of the first run. Forward
/// may therefore depend on state that changes before backward:
///
///     if (!Captured(training_)) return {inputs[0]};
template <typename T>
T Captured(T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  internal::Capture(&value, sizeof(value));
  return value;
}

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_RECOMPUTE_H_
