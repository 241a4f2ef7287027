// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_RECOMPUTE_H_
#define CROSSHATCH_TENSOR_RECOMPUTE_H_

/// \file
/// Activation checkpointing: a part of forward whose graph holds no activations
/// and makes them again in backward.
///
/// The graph is that of an ordinary forward, node for node; only what its nodes
/// would save (but for leaves, which live anyway) is not kept. The first node
/// of the part that asks in a backward makes all of it again, by running the
/// part once more on the inputs, which are kept. So gradients have the same
/// bits as without, leaves complete at the same time, and hooks on nodes,
/// gradients of gradients and parts within parts work as they do without.
///
/// A second run finds as the first did
/// - the inputs, whose memory must not have been written to meanwhile;
/// - grad mode, which was on, and the class of memory;
/// - what the part asked of Captured: state of modules that a program changes
///   between forwards (the step of a Dropout, whether it trains).
///
/// It runs on the stream that is current in backward, and reads all else as it
/// is then. So parameters have the values of the first run, which backward
/// checks, and require a gradient where they did.
///
/// With A the bytes that the nodes of a part save, I those of its inputs that
/// are not leaves, a chain of n equal parts holds n * I + A instead of n * A.

#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>

#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

using RecomputedFunction = std::function<TensorList(TensorSpan inputs)>;

/// Runs `forward` on `inputs`. Where a graph is recorded, each backward through
/// it that needs an activation runs `forward` again, once; where retain_graph
/// is set, what that made is dropped at the end of the backward all the same.
///
/// \param name for messages: a module's.
/// \param forward does the same each time: its randomness depends on elements
///     and steps, not on how often it is called, and state that may change is
///     read through Captured. One that saves or captures something else when
///     run again fails a check that names the part, as do inputs changed in
///     place meanwhile. Kept, with all it captures, as long as the graph.
///     It may issue collectives; they are issued again.
TensorList Recomputed(std::string name, TensorSpan inputs,
                      RecomputedFunction forward);

/// Whether what runs now is run again for a backward: a runtime that acts
/// around modules then has acted in forward already.
bool InRecomputation();

namespace internal {
void Capture(void* value, size_t size);
}  // namespace internal

/// `value`, or where a part is run again what `value` was in its first run.
/// What forward does may depend on it though it changes before backward:
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
