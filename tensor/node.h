// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_NODE_H_
#define CROSSHATCH_TENSOR_NODE_H_

/// \file
/// The graph that forward records and backward walks: nodes, what they save,
/// and where gradients of leaves go. autograd.h runs it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Where a contribution to a leaf's gradient goes.
struct GradDestination {
  /// Same (global) sizes as the leaf; for a distributed leaf a distributed
  /// tensor of the leaf's own layout. Its dtype may differ from the leaf's:
  /// what is written is converted.
  Tensor tensor;
  /// Add to what is there, or overwrite it.
  bool accumulate = false;
};

/// The owner of a leaf's gradient. With one set, .grad is left alone.
class GradSink {
 public:
  virtual ~GradSink() = default;
  /// The destination of the next contribution, which is written whole and at
  /// once. A leaf that is used n times has up to n contributions.
  virtual GradDestination Acquire() = 0;
  /// All contributions of this Backward have been issued to the current
  /// stream. Called once per Backward whose graph holds the leaf, even if
  /// nothing was contributed.
  virtual void Complete() = 0;
  /// Why the graph of its gradients cannot be recorded; empty if it can.
  virtual std::string WhyNoCreateGraph() const { return {}; }
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
  /// Always null while the graph of the gradients is recorded.
  virtual const GradDestination* Destination(int i) = 0;
  virtual void MarkWritten(int i) = 0;
  /// Hands over the gradient of input i, of the sizes of that input, and of its
  /// dtype unless it is a leaf; undefined: it is zero. A node that gives
  /// none although one is needed, and what does not fit, fail a check that
  /// names the op and the input.
  virtual void Put(int i, Tensor gradient) = 0;
};

/// A step of the backward pass: from the gradients of a call's outputs to those
/// of its inputs. Held by shared_ptr. Destruction does not recurse, however
/// deep the graph.
class Node : public std::enable_shared_from_this<Node> {
 public:
  struct Edge {
    std::shared_ptr<Node> node;  ///< Null: nobody wants this gradient.
    int output_index = 0;        ///< Which output of `node` it is of.
  };

  Node();
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual const char* name() const = 0;
  /// \param output_grads undefined entries stand for zeros; not all are.
  virtual void Backward(TensorSpan output_grads, GradientSlots& slots) = 0;
  /// Drops what was saved, after the node ran and unless the graph is kept.
  virtual void ReleaseSaved() = 0;

  absl::InlinedVector<Edge, 3>& edges() { return edges_; }
  /// Outputs of the call that have a gradient: the first so many.
  int num_outputs() const { return num_outputs_; }
  /// Later nodes have greater numbers; those that accumulate the gradient of a
  /// leaf have the greatest.
  uint64_t sequence() const { return sequence_; }
  /// The module that ran when the call was recorded; null outside of modules.
  const std::shared_ptr<const std::string>& module() const { return module_; }

  /// Runs before Backward, once the gradients of the outputs are complete.
  void AddPreHook(std::function<void()> hook);
  /// Runs after Backward, when the gradients of the inputs have been issued.
  /// On a leaf's node (GradEdge): after the accumulation.
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
  /// Of the outputs that are tied: what their gradients are to be like.
  absl::InlinedVector<OutputType, 1> output_types_;
  int num_outputs_ = 1;
  uint64_t sequence_ = 0;
  std::shared_ptr<const std::string> module_;
  std::unique_ptr<Hooks> hooks_;
};

/// Where tensors go that the graph is to keep for backward but does not hold:
/// they are made again when backward asks (recompute.h). SavedTensorScope
/// installs one.
class SavedTensorStore {
 public:
  virtual ~SavedTensorStore() = default;
  /// `tensor`, outside of the graph, would be kept now.
  /// \param slot its number there.
  /// \returns the store to ask for it; null if nobody will.
  virtual std::shared_ptr<SavedTensorStore> Put(const Tensor& tensor,
                                                int& slot) = 0;
  /// The tensor, for `node`.
  virtual Tensor Get(int slot, const Node& node) = 0;
  /// It is not needed any more.
  virtual void Drop(int slot) = 0;
  /// `size` bytes at `value`, which what runs in the scope depends on: a first
  /// run keeps them, a second one sets them to what the first had.
  virtual void Capture(void* value, size_t size) = 0;
  /// An op of the scope reads `leaf`, which requires a gradient, whether or not
  /// it is saved.
  virtual void NoteRead(const Tensor& leaf) = 0;
  /// Whether what runs in the scope is run again, for what it saves.
  virtual bool recomputing() const = 0;
};

/// A tensor kept for backward.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// \param is_output_of the node under construction is of the call that
  ///     makes `tensor` (then no cycle of references is made).
  explicit SavedTensor(const Tensor& tensor, bool is_output = false);
  /// The tensor, with its place in the graph. Fails a check that names `node`
  /// if it was changed in place meanwhile, was released, or was never saved.
  Tensor Unpack(const Node& node) const;
  bool defined() const { return tensor_.defined() || store_ != nullptr; }
  void Reset();

 private:
  Tensor Content(const Node& node) const;

  Tensor tensor_;  // Outside of the graph; edge_ ties it in again.
  std::shared_ptr<SavedTensorStore> store_;  // Not null: has it, in slot_.
  int slot_ = 0;
  Node::Edge edge_;
  uint32_t version_ = 0;
  bool is_output_ = false;
  bool is_released_ = false;
};

/// The node that made `tensor` and which of its outputs it is; for a leaf that
/// requires a gradient the node that accumulates it; else a null edge.
Node::Edge GradEdge(const Tensor& tensor);

/// How the history of a view and that of its base follow from each other once
/// either was written in place. The view ops supply it (OpInfo).
struct ViewHistory {
  /// A node, not yet tied, that takes the gradient of `view` to that of `base`.
  std::shared_ptr<Node> (*of_view)(const Tensor& base, const Tensor& view);
  /// A node, not yet tied, of a write to `view` that `write` differentiates:
  /// from the gradient of `base` after the write to that before it (input 0)
  /// and to those of `write`'s inputs 1, 2, ...
  std::shared_ptr<Node> (*of_write)(const Tensor& base, const Tensor& view,
                                    std::shared_ptr<Node> write);
};

/// What autograd knows of a tensor. Absent where it never needed a gradient.
struct AutogradMeta {
  bool requires_grad = false;  ///< Of a leaf.
  Tensor grad;                 ///< Of a leaf.
  std::shared_ptr<GradSink> sink;
  std::weak_ptr<Node> accumulator;

  std::shared_ptr<Node> grad_fn;  ///< Null: a leaf.
  int output_index = 0;

  /// Of a view made in grad mode: the tensor that it is a view of, itself no
  /// view, and the version of the memory that grad_fn belongs to.
  Tensor base;
  /// Null where one of the two is distributed.
  const ViewHistory* view_history = nullptr;
  uint32_t view_version = 0;
};

/// Stands for a leaf that requires a gradient, which Backward accumulates.
class LeafNode final : public Node {
 public:
  explicit LeafNode(const Tensor& leaf);

  const Tensor& leaf() const { return leaf_; }

  const char* name() const override { return "leaf"; }
  /// Not called: the engine accumulates by itself.
  void Backward(TensorSpan output_grads, GradientSlots& slots) override;
  void ReleaseSaved() override {}

 private:
  const Tensor leaf_;
};

/// What Apply does to the graph.
class GraphTies {
 public:
  GraphTies() = delete;

  static constexpr uint64_t kLeafSequence = ~uint64_t{0};

  /// Makes `node` the latest.
  static void Number(Node& node);
  /// The meta of `tensor`, made if need be.
  static AutogradMeta& Meta(const Tensor& tensor);
  /// Writes to the memory of `tensor` so far.
  static uint32_t Version(const Tensor& tensor);

  /// Checks that a write by `op` to `dst` may be recorded, or not need be.
  static void CheckWritable(const char* op, const Tensor& dst, bool record);
  /// `node` differentiates the call that made `outputs`.
  static void TieOutputs(const std::shared_ptr<Node>& node, TensorSpan outputs);
  /// `node`, whose edges are tied, differentiates a write to `dst`.
  static void TieWrite(const std::shared_ptr<Node>& node, const Tensor& dst);
  /// `view` was made of `input` in grad mode.
  static void TieView(const ViewHistory* history, const Tensor& input,
                      const Tensor& view);
  /// Fails a check that names `node` unless `tensor` is at `version` still.
  static void CheckUnchanged(const Node& node, const Tensor& tensor,
                             uint32_t version);

  /// Brings the history of a view up to date with writes to its memory.
  static void Refresh(const Tensor& view, AutogradMeta& meta);
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_NODE_H_
