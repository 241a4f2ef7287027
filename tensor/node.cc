// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/node.h"

#include <string>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

struct Node::Hooks {
  std::vector<std::function<void()>> pre;
  std::vector<std::function<void()>> post;
};

Node::Node() = default;

Node::~Node() {
  // A deep graph would overflow the stack if each node destroyed the next, so
  // nodes without other owners are destroyed one by one. Saved tensors also
  // refer to nodes of the node's edges, which are therefore kept until it is
  // gone.
  if (edges_.empty()) return;
  std::vector<std::shared_ptr<Node>> dying;
  const auto take = [&dying](absl::InlinedVector<Edge, 3> edges) {
    for (Edge& edge : edges) {
      if (edge.node.use_count() == 1) dying.push_back(std::move(edge.node));
    }
  };
  take(std::move(edges_));
  while (!dying.empty()) {
    std::shared_ptr<Node> node = std::move(dying.back());
    dying.pop_back();
    absl::InlinedVector<Edge, 3> edges = std::move(node->edges_);
    node->edges_.clear();
    node.reset();
    take(std::move(edges));
  }
}

void Node::AddPreHook(std::function<void()> hook) {
  if (hooks_ == nullptr) hooks_ = std::make_unique<Hooks>();
  hooks_->pre.push_back(std::move(hook));
}

void Node::AddPostHook(std::function<void()> hook) {
  if (hooks_ == nullptr) hooks_ = std::make_unique<Hooks>();
  hooks_->post.push_back(std::move(hook));
}

void Node::RunPreHooks() {
  if (hooks_ == nullptr) return;
  for (const auto& hook : hooks_->pre) hook();
}

void Node::RunPostHooks() {
  if (hooks_ == nullptr) return;
  for (const auto& hook : hooks_->post) hook();
}

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (!tensor.defined()) return;
  edge_ = GradEdge(tensor);
  Keep(tensor);
}

SavedTensor SavedTensor::OfOutput(const Tensor& tensor, int index) {
  SavedTensor saved;
  saved.is_output_ = true;
  saved.edge_.output_index = index;
  if (tensor.defined()) saved.Keep(tensor);
  return saved;
}

void SavedTensor::Keep(const Tensor& tensor) {
  // Never the tensor itself: an in-place write would give it a history that
  // refers to the node that holds it.
  tensor_ = tensor.Detach();
  version_ = GraphTies::Version(tensor);
  SavedTensorStore* const store = RankContext::Current().saved_tensor_store();
  if (store == nullptr) return;
  // A leaf exists anyway, and holding it shows whether it was changed.
  if (edge_.node != nullptr &&
      edge_.node->sequence() == GraphTies::kLeafSequence) {
    return;
  }
  store_ = store->Put(tensor_, slot_);
  tensor_ = Tensor();
}

Tensor SavedTensor::Content(const Node& node) const {
  CH_CHECK(defined() || is_released_)
      << node.name()
      << ": its gradient reads a tensor that was never saved; Save it in the "
         "op's Differentiate, under the number that Saved reads";
  CH_CHECK(defined())
      << node.name()
      << ": what it saved was released by an earlier Backward; set "
         "BackwardOptions::retain_graph to run it again";
  if (store_ != nullptr) return store_->Get(slot_, node);
  GraphTies::CheckUnchanged(node, tensor_, version_);
  return tensor_;
}

Tensor SavedTensor::Unpack(const Node& node) const {
  const Tensor content = Content(node);
  if (!RankContext::Current().grad_enabled()) return content;
  Node::Edge edge = edge_;
  // Outputs after those are without gradients, such as statistics.
  if (is_output_ && edge.output_index < node.num_outputs()) {
    edge.node = std::const_pointer_cast<Node>(node.shared_from_this());
  }
  if (edge.node == nullptr) return content;
  Tensor tied = content.Detach();
  AutogradMeta& meta = GraphTies::Meta(tied);
  meta.grad_fn = std::move(edge.node);
  meta.output_index = edge.output_index;
  return tied;
}

void SavedTensor::Reset() {
  if (defined()) is_released_ = true;
  if (store_ != nullptr) std::exchange(store_, nullptr)->Drop(slot_);
  tensor_ = Tensor();
  edge_ = {};
}

LeafNode::LeafNode(const Tensor& leaf) : leaf_(leaf) {
  sequence_ = GraphTies::kLeafSequence;
}

void LeafNode::Backward(TensorSpan /*output_grads*/, GradientSlots& /*slots*/) {
  CH_CHECK(false) << "the engine accumulates into leaves by itself";
}

Node::Edge GradEdge(const Tensor& tensor) {
  AutogradMeta* meta = tensor.impl().autograd.get();
  if (meta == nullptr) return {};
  if (meta->base.defined()) GraphTies::Refresh(tensor, *meta);
  if (meta->grad_fn != nullptr) return {meta->grad_fn, meta->output_index};
  if (!meta->requires_grad) return {};
  if (!tensor.is_distributed()) {
    internal::CheckMayBeWritten("the gradient of a leaf", tensor);
  }
  SavedTensorStore* const store = RankContext::Current().saved_tensor_store();
  if (store != nullptr) store->NoteRead(tensor);
  std::shared_ptr<Node> leaf = meta->accumulator.lock();
  if (leaf == nullptr) {
    leaf = std::make_shared<LeafNode>(tensor);
    meta->accumulator = leaf;
  }
  return {std::move(leaf), 0};
}

void SetGradSink(const Tensor& leaf, std::shared_ptr<GradSink> sink) {
  CH_CHECK(leaf.requires_grad() && leaf.is_leaf())
      << "a gradient sink belongs to a leaf that requires a gradient, not to "
      << leaf.Describe();
  GraphTies::Meta(leaf).sink = std::move(sink);
}

void GraphTies::Number(Node& node) {
  node.sequence_ = ++RankContext::Current().node_sequence_;
  node.module_ = RunningModule();
}

AutogradMeta& GraphTies::Meta(const Tensor& tensor) {
  std::unique_ptr<AutogradMeta>& meta = tensor.impl().autograd;
  if (meta == nullptr) meta = std::make_unique<AutogradMeta>();
  return *meta;
}

uint32_t GraphTies::Version(const Tensor& tensor) {
  return tensor.is_distributed() ? tensor.handler()->memory().version()
                                 : tensor.storage()->version();
}

void GraphTies::CheckWritable(const char* op, const Tensor& dst, bool record) {
  const AutogradMeta* meta = dst.impl().autograd.get();
  if (meta == nullptr) return;
  for (const Tensor& tensor : {dst, meta->base}) {
    CH_CHECK(!tensor.defined() || !tensor.requires_grad() || !tensor.is_leaf())
        << op << ": a leaf that requires a gradient is written in place in "
        << "grad mode: " << tensor.Describe() << "; write to it in NoGrad";
  }
  CH_CHECK(!record || !meta->base.defined() || meta->view_history != nullptr)
      << op << ": a view of a distributed tensor or of its local tensor "
      << "is written in place where autograd records: " << dst.Describe()
      << "; write to a Clone of it, or in NoGrad";
}

void GraphTies::TieOutputs(const std::shared_ptr<Node>& node,
                           TensorSpan outputs) {
  Number(*node);
  const size_t tied = static_cast<size_t>(node->num_outputs());
  CH_CHECK_LE(tied, outputs.size()) << node->name();
  for (size_t i = 0; i < tied; ++i) {
    AutogradMeta& meta = Meta(outputs[i]);
    node->NoteOutput(outputs[i]);
    meta.grad_fn = node;
    meta.output_index = static_cast<int>(i);
  }
}

void GraphTies::TieWrite(const std::shared_ptr<Node>& node, const Tensor& dst) {
  Number(*node);
  AutogradMeta& meta = Meta(dst);
  if (!meta.base.defined()) {
    node->NoteOutput(dst);
    meta.grad_fn = node;
    meta.output_index = 0;
    return;
  }
  // The base's history receives the write. Like all views of that base, dst is
  // updated when its history is next requested.
  std::shared_ptr<Node> write =
      meta.view_history->of_write(meta.base, dst, node);
  write->edges_ = std::move(node->edges_);
  node->edges_.clear();
  write->edges_[0] = GradEdge(meta.base);
  Number(*write);
  write->NoteOutput(meta.base);
  AutogradMeta& base_meta = Meta(meta.base);
  base_meta.grad_fn = std::move(write);
  base_meta.output_index = 0;
}

void GraphTies::TieView(const ViewHistory* history, const Tensor& input,
                        const Tensor& view) {
  const AutogradMeta* input_meta = input.impl().autograd.get();
  AutogradMeta& meta = Meta(view);
  meta.base = input_meta != nullptr && input_meta->base.defined()
                  ? input_meta->base
                  : input;
  meta.view_history =
      view.is_distributed() || input.is_distributed() ? nullptr : history;
  meta.view_version = Version(view);
}

void GraphTies::CheckUnchanged(const Node& node, const Tensor& tensor,
                               uint32_t version) {
  if (Version(tensor) == version) return;
  const std::string owner = MemoryOwnerOf(tensor);
  CH_CHECK(false) << node.name() << ": a tensor that its backward needs, "
                  << owner << (owner.empty() ? "" : ", ") << tensor.Describe()
                  << ", was changed in place: it is at version "
                  << Version(tensor) << ", version " << version
                  << " was saved; run the backward of a forward before what "
                     "it used is changed (by an optimizer's step, say), or "
                     "run forward again";
}

void GraphTies::Refresh(const Tensor& view, AutogradMeta& meta) {
  const uint32_t version = Version(view);
  if (version == meta.view_version) return;
  Node::Edge base = GradEdge(meta.base);
  meta.grad_fn = nullptr;
  meta.output_index = 0;
  if (base.node != nullptr) {
    CH_CHECK(meta.view_history != nullptr)
        << "a view of a distributed tensor or of its local tensor, "
        << view.Describe()
        << ", is used after an in-place write to its base; make the view "
           "again";
    std::shared_ptr<Node> node = meta.view_history->of_view(meta.base, view);
    node->edges_.push_back(std::move(base));
    Number(*node);
    node->NoteOutput(view);
    meta.grad_fn = std::move(node);
  }
  meta.view_version = version;
}

bool Tensor::requires_grad() const {
  AutogradMeta* meta = Defined("requires_grad").autograd.get();
  if (meta == nullptr) return false;
  if (meta->base.defined()) GraphTies::Refresh(*this, *meta);
  return meta->requires_grad || meta->grad_fn != nullptr;
}

Tensor& Tensor::set_requires_grad(bool requires_grad) {
  if (!requires_grad && Defined("set_requires_grad").autograd == nullptr) {
    return *this;
  }
  CH_CHECK(is_leaf()) << "set_requires_grad on the result of an op: "
                      << Describe() << "; Detach it first";
  CH_CHECK(!requires_grad || IsFloatingPoint(dtype()) || IsFloat8(dtype()))
      << "only floating point has gradients: " << Describe();
  // Autograd state belongs to one thread, too.
  if (requires_grad && !is_distributed()) {
    internal::CheckMayBeWritten("set_requires_grad", *this);
  }
  AutogradMeta& meta = GraphTies::Meta(*this);
  meta.requires_grad = requires_grad;
  // From here on it is an independent leaf.
  meta.base = Tensor();
  return *this;
}

bool Tensor::is_leaf() const {
  AutogradMeta* meta = Defined("is_leaf").autograd.get();
  if (meta == nullptr) return true;
  if (meta->base.defined()) GraphTies::Refresh(*this, *meta);
  return meta->grad_fn == nullptr;
}

Tensor Tensor::Detach() const {
  const TensorImpl& from = Defined("Detach");
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = from.storage;
  impl->offset = from.offset;
  impl->sizes = from.sizes;
  impl->strides = from.strides;
  impl->dtype = from.dtype;
  impl->handler = from.handler;
  return Tensor(std::move(impl));
}

const Tensor& Tensor::grad() const {
  static const Tensor* const undefined = new Tensor();
  const TensorImpl& impl = Defined("grad");
  return impl.autograd != nullptr ? impl.autograd->grad : *undefined;
}

void Tensor::set_grad(Tensor grad) const {
  if (!grad.defined() && Defined("set_grad").autograd == nullptr) return;
  CH_CHECK(!grad.defined() || grad.sizes() == sizes())
      << "a gradient of " << grad.Describe() << " for " << Describe();
  GraphTies::Meta(*this).grad = std::move(grad);
}

Tensor TensorHandler::ConformGradient(const Tensor& /*leaf*/,
                                      Tensor gradient) const {
  return gradient;
}

}  // namespace crosshatch
