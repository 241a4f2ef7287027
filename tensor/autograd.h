// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_AUTOGRAD_H_
#define CROSSHATCH_TENSOR_AUTOGRAD_H_

/// \file
/// Reverse-mode differentiation over a graph of nodes (node.h).
///
/// Invariants:
///
/// - The engine runs on the rank's thread, latest nodes first (by sequence
///   number). The order of issue, and with it every sum of gradients, is the
///   same in every run.
/// - A leaf accumulates as soon as its last contribution is complete.
/// - A leaf may own the destination of its gradient (GradSink). Backward ops
///   that can write into a given destination do so without a temporary. FSDP
///   uses this to have gradients written where they are reduced.
/// - If a saved tensor was changed in place, a check fails and names the op.
/// - A .grad has the leaf's dtype and, if distributed, the leaf's layout. It
///   owns its memory, of class kGradient.

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct BackwardOptions {
  /// Gradient of the root; undefined: ones (the root has one element).
  Tensor gradient = {};
  /// Keeps saved tensors, to run backward again.
  bool retain_graph = false;
  /// Records the graph of the gradients and keeps the graph. Sinks receive
  /// values only.
  bool create_graph = false;
};

/// Accumulates the gradients of all leaves that `root` depends on.
/// \error the rank's first error, if a collective failed before or during the
///     call.
absl::Status Backward(const Tensor& root, const BackwardOptions& options = {});

/// Returns the gradients of `root` by `inputs`, in their order, without
/// changing any .grad or sink. The gradient by an input that `root` does not
/// depend on is undefined.
/// \error as Backward.
absl::StatusOr<TensorList> Gradients(const Tensor& root,
                                     absl::Span<const Tensor> inputs,
                                     const BackwardOptions& options = {});

/// Registers `callback` to run at the end of the current Backward, before it
/// returns, also after an error, in the order of registration.
/// \pre InBackward()
void AtBackwardEnd(std::function<void()> callback);
/// Returns whether a Backward is running on this thread's rank.
bool InBackward();

class Node;

/// Returns the node that the calling rank's Backward runs now, including its
/// hooks; of nested ones the innermost. Null if none runs.
const Node* RunningNode();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_AUTOGRAD_H_
