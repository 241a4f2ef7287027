// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_NODE_H_
#define CROSSHATCH_TENSOR_NODE_H_

/// \file
/// The graph that forward records and backward traverses: nodes, saved tensors
/// and destinations of leaves' gradients. autograd.h runs it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// The destination of a contribution to a leaf's gradient.
struct GradDestination {
  /// A tensor of the leaf's (global) sizes and, if distributed, layout. Its
  /// dtype may differ from the leaf's; written values are converted.
  Tensor tensor;
  /// Add to the content, or overwrite it.
  bool accumulate = false;
};

/// The owner of a leaf's gradient. If set, .grad is not used.
class GradSink {
 public:
  virtual ~GradSink() = default;
  /// Returns the destination of the next contribution, which is written as a
  /// whole before the next call. A leaf that is used n times has up to n
  /// contributions.
  virtual GradDestination Acquire() = 0;
  /// Called once per Backward whose graph contains the leaf, when all
  /// contributions have been issued to the current stream, also if there were
  /// none.
  virtual void Complete() = 0;
  /// Returns why the graph of its gradients cannot be recorded; empty if it
  /// can.
  virtual std::string WhyNoCreateGraph() const { return {}; }
};

/// Sets the sink of `leaf`; null removes it. The sink outlives the graphs
/// recorded while it is set.
void SetGradSink(const Tensor& leaf, std::shared_ptr<GradSink> sink);

/// The results of a node's Backward: one slot per input.
class GradientSlots {
 public:
  virtual ~GradientSlots() = default;
  /// Returns whether the gradient of input i is needed.
  virtual bool Needed(int i) const = 0;
  /// Returns the destination of the gradient if input i is a leaf with a sink,
  /// else null. The node may write there and then call MarkWritten. Call it at
  /// most once. Null while the graph of the gradients is recorded.
  virtual const GradDestination* Destination(int i) = 0;
  virtual void MarkWritten(int i) = 0;
  /// Sets the gradient of input i, with that input's sizes and, unless it is a
  /// leaf, its dtype; undefined: zero. A missing gradient, or one that does not
  /// fit, fails a check that names the op and the input.
  virtual void Put(int i, Tensor gradient) = 0;
};

/// Computes the gradients of a call's inputs from those of its outputs. Owned
/// by shared_ptr. Destruction of a deep graph does not recurse.
class Node : public std::enable_shared_from_this<Node> {
 public:
  struct Edge {
    std::shared_ptr<Node> node;  ///< Null: the gradient is not needed.
    int output_index = 0;        ///< Index of the output of `node`.
  };

  Node();
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual const char* name() const = 0;
  /// \param output_grads undefined entries stand for zeros; not all are.
  virtual void Backward(TensorSpan output_grads, GradientSlots& slots) = 0;
  /// Releases saved tensors, after the node ran and unless the graph is kept.
  virtual void ReleaseSaved() = 0;

  absl::InlinedVector<Edge, 3>& edges() { return edges_; }
  /// Returns n if the first n outputs of the call have a gradient.
  int num_outputs() const { return num_outputs_; }
  /// Returns the sequence number. Later nodes have greater numbers; nodes of
  /// leaves have the greatest.
  uint64_t sequence() const { return sequence_; }
  /// Returns the module that ran when the call was recorded, or null.
  const std::shared_ptr<const std::string>& module() const { return module_; }

  /// Adds a hook that runs before Backward, when the gradients of the outputs
  /// are complete.
  void AddPreHook(std::function<void()> hook);
  /// Adds a hook that runs after Backward, when the gradients of the inputs
  /// have been issued. On a leaf's node (GradEdge) it runs after the
  /// accumulation.
  void AddPostHook(std::function<void()> hook);

 protected:
  void set_num_outputs(int num_outputs) { num_outputs_ = num_outputs; }

 private:
  friend class BackwardEngine;
  friend class GraphTies;
  friend class LeafNode;
  struct Hooks;
  struct OutputType {
    Shape sizes;
    DType dtype;
  };

  void RunPreHooks();
  void RunPostHooks();
  void NoteOutput(const Tensor& output) {
    output_types_.push_back({output.sizes(), output.dtype()});
  }

  absl::InlinedVector<Edge, 3> edges_;
  /// Sizes and dtypes of the linked outputs, which their gradients must have.
  absl::InlinedVector<OutputType, 1> output_types_;
  int num_outputs_ = 1;
  uint64_t sequence_ = 0;
  std::shared_ptr<const std::string> module_;
  std::unique_ptr<Hooks> hooks_;
};

/// Replaces saved tensors by tensors that are recomputed when backward requests
/// them (recompute.h). SavedTensorScope installs one.
class SavedTensorStore {
 public:
  virtual ~SavedTensorStore() = default;
  /// Called where the graph would save `tensor`.
  /// \param slot receives the index for Get.
  /// \returns the store to call Get on; null if the tensor is not needed again.
  virtual std::shared_ptr<SavedTensorStore> Put(const Tensor& tensor,
                                                int& slot) = 0;
  /// Returns the tensor of `slot`, for `node`.
  virtual Tensor Get(int slot, const Node& node) = 0;
  /// Called when the tensor of `slot` is no longer needed.
  virtual void Drop(int slot) = 0;
  /// Records the `size` bytes at `value` in the first run, and restores them in
  /// the recomputation, which depends on them.
  virtual void Capture(void* value, size_t size) = 0;
  /// Called when an op of the scope reads `leaf`, which requires a gradient.
  virtual void NoteRead(const Tensor& leaf) = 0;
  /// Returns whether the scope is a recomputation.
  virtual bool recomputing() const = 0;
};

/// A tensor kept for backward.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);
  /// Keeps output `index` of the call whose node is under construction, without
  /// a reference to that node, which would be a cycle.
  static SavedTensor OfOutput(const Tensor& tensor, int index);
  /// Returns the tensor, linked into the graph. Fails a check that names `node`
  /// if it was changed in place, released, or never saved.
  Tensor Unpack(const Node& node) const;
  bool defined() const { return tensor_.defined() || store_ != nullptr; }
  void Reset();

 private:
  void Keep(const Tensor& tensor);
  Tensor Content(const Node& node) const;

  Tensor tensor_;  // Outside the graph; edge_ links it again.
  std::shared_ptr<SavedTensorStore>
      store_;  // If not null, slot_ has the tensor.
  int slot_ = 0;
  Node::Edge edge_;  // Without the node, for an output of the node itself.
  uint32_t version_ = 0;
  bool is_output_ = false;
  bool is_released_ = false;
};

/// Returns the node that made `tensor` and the index of its output; for a leaf
/// that requires a gradient, its accumulating node; otherwise a null edge.
Node::Edge GradEdge(const Tensor& tensor);

/// Updates the histories of a view and its base after an in-place write to
/// either. View ops supply it (OpInfo).
struct ViewHistory {
  /// Returns an unlinked node from the gradient of `view` to that of `base`.
  std::shared_ptr<Node> (*of_view)(const Tensor& base, const Tensor& view);
  /// Returns an unlinked node of a write to `view` that `write` differentiates:
  /// from the gradient of `base` after the write to the gradient before it
  /// (input 0) and to those of `write`'s inputs 1, 2, ...
  std::shared_ptr<Node> (*of_write)(const Tensor& base, const Tensor& view,
                                    std::shared_ptr<Node> write);
};

/// The autograd state of a tensor. Absent if it never needed a gradient.
struct AutogradMeta {
  bool requires_grad = false;  ///< For leaves.
  Tensor grad;                 ///< For leaves.
  std::shared_ptr<GradSink> sink;
  std::weak_ptr<Node> accumulator;

  std::shared_ptr<Node> grad_fn;  ///< Null: a leaf.
  int output_index = 0;

  /// For a view made in grad mode: its base, which is no view, and the version
  /// of the memory that grad_fn belongs to.
  Tensor base;
  /// Null if one of the two is distributed.
  const ViewHistory* view_history = nullptr;
  uint32_t view_version = 0;
};

/// The node of a leaf that requires a gradient, which Backward accumulates.
class LeafNode final : public Node {
 public:
  explicit LeafNode(const Tensor& leaf);

  const Tensor& leaf() const { return leaf_; }

  const char* name() const override { return "leaf"; }
  /// Not called: the engine accumulates.
  void Backward(TensorSpan output_grads, GradientSlots& slots) override;
  void ReleaseSaved() override {}

 private:
  const Tensor leaf_;
};

/// Links nodes into the graph, for Apply.
class GraphTies {
 public:
  GraphTies() = delete;

  static constexpr uint64_t kLeafSequence = ~uint64_t{0};

  /// Gives `node` the next sequence number.
  static void Number(Node& node);
  /// Returns the autograd state of `tensor`, created on first use.
  static AutogradMeta& Meta(const Tensor& tensor);
  /// Returns the number of writes to the memory of `tensor`.
  static uint32_t Version(const Tensor& tensor);

  /// Checks that a write by `op` to `dst` can be recorded, or need not be.
  static void CheckWritable(const char* op, const Tensor& dst, bool record);
  /// Links `node` as the one that differentiates the call that made `outputs`.
  static void TieOutputs(const std::shared_ptr<Node>& node, TensorSpan outputs);
  /// Links `node`, whose edges are set, as the one of a write to `dst`.
  static void TieWrite(const std::shared_ptr<Node>& node, const Tensor& dst);
  /// Records that `view` was made of `input` in grad mode.
  static void TieView(const ViewHistory* history, const Tensor& input,
                      const Tensor& view);
  /// Fails a check that names `node` unless `tensor` is still at `version`.
  static void CheckUnchanged(const Node& node, const Tensor& tensor,
                             uint32_t version);

  /// Updates the history of a view after writes to its memory.
  static void Refresh(const Tensor& view, AutogradMeta& meta);
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_NODE_H_
