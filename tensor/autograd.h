// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_AUTOGRAD_H_
#define CROSSHATCH_TENSOR_AUTOGRAD_H_

/// \file
/// Reverse-mode differentiation over a graph of nodes.
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

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Where a contribution to a leaf's gradient goes.
struct GradDestination {
  /// Same (global) sizes as the leaf; for a distributed leaf a distributed
  /// tensor of the leaf's own layout.
  Tensor tensor;
  /// Add to what is there, or overwrite it.
  bool accumulate = false;
};

/// The owner of a leaf's gradient.
class GradSink {
 public:
  virtual ~GradSink() = default;
  /// The destination of the next contribution.
  virtual GradDestination Acquire() = 0;
  /// All contributions of this Backward have been issued to the current
  /// stream.
  virtual void Complete() = 0;
};

/// Gives `leaf` a sink (null takes it away). The sink outlives the graphs
/// recorded while it is set.
void SetGradSink(const Tensor& leaf, std::shared_ptr<GradSink> sink);

/// What a node's Backward writes its results to: one slot per input.
class GradientSlots {
 public:
  virtual ~GradientSlots() = default;
  /// Whether anybody wants the gradient of input i.
  virtual bool Needed(int i) const = 0;
  /// Not null: input i is a leaf that owns its gradient's destination, and the
  /// node may write there itself, then call MarkWritten. May be called once.
  virtual const GradDestination* Destination(int i) = 0;
  virtual void MarkWritten(int i) = 0;
  /// Hands over the gradient of input i.
  virtual void Put(int i, Tensor gradient) = 0;
};

/// A step of the backward pass: from the gradients of a call's outputs to those
/// of its inputs.
class Node {
 public:
  struct Edge {
    std::shared_ptr<Node> node;  ///< Null: nobody wants this gradient.
    int output_index = 0;        ///< Which output of `node` it is of.
  };

  virtual ~Node();

  virtual const char* name() const = 0;
  /// \param output_grads undefined entries stand for zeros.
  virtual void Backward(TensorSpan output_grads, GradientSlots& slots) = 0;
  /// Drops what was saved, after the node ran and unless the graph is kept.
  virtual void ReleaseSaved() = 0;

  std::vector<Edge>& edges() { return edges_; }
  int num_outputs() const { return num_outputs_; }
  uint64_t sequence() const { return sequence_; }

  /// Runs before Backward, once the gradients of the outputs are complete.
  void AddPreHook(std::function<void()> hook);
  /// Runs after Backward, when the gradients of the inputs have been issued.
  void AddPostHook(std::function<void()> hook);

 private:
  friend class BackwardEngine;
  friend class GraphTies;
  std::vector<Edge> edges_;
  int num_outputs_ = 1;
  uint64_t sequence_ = 0;
  std::vector<std::function<void()>> pre_hooks_;
  std::vector<std::function<void()>> post_hooks_;
};

/// A tensor kept for backward.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// \param output_of the node under construction if `tensor` is its output
  ///     (then no cycle of references is made).
  explicit SavedTensor(const Tensor& tensor, bool is_output = false);
  /// The tensor, with its place in the graph. Fails a check that names `node`
  /// if it was changed in place meanwhile.
  Tensor Unpack(const Node& node) const;
  bool defined() const { return tensor_.defined(); }
  void Reset() { tensor_ = Tensor(); }

 private:
  Tensor tensor_;
  uint32_t version_ = 0;
  bool is_output_ = false;
};

/// The node that made `tensor` and which of its outputs it is; for a leaf that
/// requires a gradient the node that accumulates it; else a null edge.
Node::Edge GradEdge(const Tensor& tensor);

struct BackwardOptions {
  /// Gradient of the root; undefined means ones (the root has one element).
  Tensor gradient;
  /// Keep what nodes saved, to run backward again.
  bool retain_graph = false;
  /// Record the graph of the gradients themselves.
  bool create_graph = false;
};

/// Accumulates the gradients of all leaves that `root` depends on.
/// \error the rank's first error, if a collective failed before or during it.
absl::Status Backward(const Tensor& root, const BackwardOptions& options = {});

/// Gradients of `root` by `inputs` without touching any .grad; undefined where
/// root does not depend on an input.
absl::Status Gradients(const Tensor& root, absl::Span<const Tensor> inputs,
                       const BackwardOptions& options, TensorList& gradients);

/// Calls `callback` at the end of the Backward that is running, before it
/// returns; in the order of registration. Must be called from within one.
void AtBackwardEnd(std::function<void()> callback);
/// Whether a Backward is running on this thread's rank.
bool InBackward();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_AUTOGRAD_H_
