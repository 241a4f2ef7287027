// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_AUTOGRAD_H_
#define CROSSHATCH_TENSOR_AUTOGRAD_H_

/// \file
/// Reverse-mode differentiation over a graph of nodes (node.h).
///
/// Invariants:
/// - The engine runs on the rank's thread, nodes of the latest forward first
///   (by sequence number), so the order of issue, and with it every sum of
///   gradients, is the same in every run.
/// - A leaf's accumulation runs as soon as its last contribution is there.
/// - A leaf may own the destination of its gradient (GradSink). Then backward
///   ops that can write into a given destination do so, and no temporary is
///   made. FSDP has gradients written this way where they are reduced.
/// - A saved tensor that was changed in place since is an error that names the
///   op (a check), never a wrong gradient.
/// - A .grad has the leaf's dtype and, where distributed, the leaf's layout;
///   its memory is its own and of the class kGradient.

#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct BackwardOptions {
  /// Gradient of the root; undefined means ones (the root has one element).
  Tensor gradient = {};
  /// Keep what nodes saved, to run backward again.
  bool retain_graph = false;
  /// Record the graph of the gradients themselves (and keep the graph). Sinks
  /// then get values only.
  bool create_graph = false;
};

/// Accumulates the gradients of all leaves that `root` depends on.
/// \error the rank's first error, if a collective failed before or during it.
absl::Status Backward(const Tensor& root, const BackwardOptions& options = {});

/// Gradients of `root` by `inputs` without touching any .grad or sink;
/// undefined where root does not depend on an input.
absl::Status Gradients(const Tensor& root, absl::Span<const Tensor> inputs,
                       const BackwardOptions& options, TensorList& gradients);

/// Calls `callback` at the end of the Backward that is running, before it
/// returns, even with an error; in the order of registration. Must be called
/// from within one.
void AtBackwardEnd(std::function<void()> callback);
/// Whether a Backward is running on this thread's rank.
bool InBackward();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_AUTOGRAD_H_
