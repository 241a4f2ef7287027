// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/autograd.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

/// One run of the backward pass.
class BackwardEngine {
 public:
  BackwardEngine(RankContext& context, const BackwardOptions& options)
      : context_(context), options_(options), outer_(context.backward_) {
    context_.backward_ = this;
  }
  ~BackwardEngine() { context_.backward_ = outer_; }
  BackwardEngine(const BackwardEngine&) = delete;
  BackwardEngine& operator=(const BackwardEngine&) = delete;

  static BackwardEngine* Current() { return RankContext::Current().backward_; }
  const Node* running() const { return running_; }

  /// Captures the gradients of `inputs` instead of accumulating into leaves.
  void Capture(absl::Span<const Tensor> inputs, TensorList& gradients);
  absl::Status Run(const Tensor& root);
  void AtEnd(std::function<void()> callback) {
    callbacks_.push_back(std::move(callback));
  }

 private:
  class Slots;

  /// The state of a node in this run.
  struct Task {
    std::shared_ptr<Node> node;
    /// Edges into the node that have not delivered a gradient yet.
    int dependencies = 0;
    /// Whether a requested gradient depends on this node.
    bool wanted = true;
    /// Whether a requested gradient depends on the node's Backward.
    bool runs = true;
    /// The gradients of its outputs so far.
    TensorList gradients;
  };
  struct Wanted {
    Node::Edge edge;
    Tensor* gradient;
  };
  struct Ready {
    uint64_t sequence;
    int task;
    friend bool operator<(const Ready& a, const Ready& b) {
      // Leaves share a sequence number: the first discovered comes first.
      return a.sequence != b.sequence ? a.sequence < b.sequence
                                      : a.task > b.task;
    }
  };

  int TaskOf(const std::shared_ptr<Node>& node);
  // Returns whether accumulation writes to the memory of `gradient`.
  bool IsPartOfAGrad(const Tensor& gradient) const;
  void Discover(const Node::Edge& root);
  // Checks that no leaf belongs to another thread's graph.
  void CheckLeaves() const;
  // Returns the error of a sink that cannot record the gradients' graph.
  absl::Status CheckMayRecord() const;
  void Prune();
  void RunTask(int index);
  void RunLeaf(Task& task);
  void RunNode(Task& task);
  void Deliver(int task, int output_index, Tensor gradient);
  static void CheckFits(Node& node, int i, const Tensor& gradient);

  // Returns the leaf of a task if its contributions go to their destination one
  // by one; null if they are summed first.
  const Tensor* DirectLeaf(const Task& task) const;
  GradDestination AcquireDestination(const Tensor& leaf) const;
  void WriteTo(const Tensor& leaf, const GradDestination& destination,
               const Tensor& gradient) const;
  void AccumulateDirect(const Tensor& leaf, Tensor gradient) const;
  void Accumulate(const Tensor& leaf, Tensor gradient) const;

  RankContext& context_;
  const BackwardOptions& options_;
  BackwardEngine* const outer_;
  const Node* running_ = nullptr;
  bool capturing_ = false;
  std::vector<Wanted> captures_;
  std::vector<Task> tasks_;
  absl::flat_hash_map<Node*, int> task_of_;
  std::priority_queue<Ready> ready_;
  std::vector<std::function<void()>> callbacks_;
};

namespace {

/// Adds the step of the backward pass to a failed check.
class GradientContext final : public ErrorContext {
 public:
  explicit GradientContext(const Node& node)
      : ErrorContext(Kind::kGradient), node_(node) {}

  std::string Describe() const override {
    if (node_.sequence() != GraphTies::kLeafSequence) {
      return std::string("gradient of ") + node_.name();
    }
    const Tensor& leaf = static_cast<const LeafNode&>(node_).leaf();
    const std::string owner = MemoryOwnerOf(leaf);
    return "gradient for the leaf " + (owner.empty() ? "" : owner + ", ") +
           leaf.Describe();
  }
  std::shared_ptr<const std::string> module() const override {
    return node_.module();
  }
  const char* op_name() const override { return node_.name(); }

 private:
  const Node& node_;
};

/// Adds `b` to `a`, in a's memory if that may be written.
Tensor AddTo(Tensor a, const Tensor& b) {
  if (!a.IsUnique()) a = Clone(a);
  AddInPlace(a, b);
  return a;
}

/// Returns a + b, in the memory of one of them if that may be written.
Tensor SumOf(Tensor a, Tensor b, bool recording) {
  if (recording) return Add(a, b);
  // Equal layouts: any order gives the same result without communication, so a
  // rank may choose by its local part.
  if (!a.is_distributed() || !b.is_distributed() ||
      a.handler()->AddsInPlace(b)) {
    if (a.IsUnique() && a.is_contiguous()) return AddTo(std::move(a), b);
    if (b.IsUnique() && b.is_contiguous()) return AddTo(std::move(b), a);
    return Add(a, b);
  }
  // Otherwise the left operand sets the layout, so all ranks must choose alike:
  // by what they share, not by the reference count of a local part.
  const auto takes_sums = [](const Tensor& t) {
    return t.IsOnlyHandle() && t.is_contiguous() && t.handler()->AddsInPlace(t);
  };
  if (takes_sums(a)) return AddTo(std::move(a), b);
  if (takes_sums(b)) return AddTo(std::move(b), a);
  return Add(a, b);
}

}  // namespace

class BackwardEngine::Slots final : public GradientSlots {
 public:
  Slots(BackwardEngine& engine, Node& node, absl::Span<const Node::Edge> edges)
      : engine_(engine), node_(node), edges_(edges), targets_(edges.size()) {
    for (size_t i = 0; i < edges.size(); ++i) {
      if (edges[i].node == nullptr) continue;
      const int task = engine.task_of_.at(edges[i].node.get());
      if (engine.tasks_[static_cast<size_t>(task)].wanted) {
        targets_[i].task = task;
      }
    }
  }

  bool Needed(int i) const override { return At(i).task >= 0; }

  const GradDestination* Destination(int i) override {
    Target& target = At(i);
    if (target.task < 0 || engine_.context_.grad_enabled()) return nullptr;
    const Tensor* leaf = engine_.DirectLeaf(TaskAt(i));
    if (leaf == nullptr) return nullptr;
    CH_CHECK(!target.destination.tensor.defined())
        << node_.name() << " requested the destination twice: gradient " << i;
    target.destination = engine_.AcquireDestination(*leaf);
    return &target.destination;
  }

  void MarkWritten(int i) override {
    Target& target = At(i);
    const Tensor* leaf = engine_.DirectLeaf(TaskAt(i));
    CH_CHECK(leaf != nullptr && target.destination.tensor.defined())
        << node_.name() << " has no destination for gradient " << i;
    target.is_given = true;
    if (GraphTies::Meta(*leaf).sink == nullptr) {
      leaf->set_grad(target.destination.tensor);
    }
  }

  void Put(int i, Tensor gradient) override {
    Target& target = At(i);
    target.is_given = true;
    if (target.task < 0 || !gradient.defined()) return;
    engine_.CheckFits(node_, i, gradient);
    if (target.destination.tensor.defined()) {
      const Tensor& leaf = *engine_.DirectLeaf(TaskAt(i));
      engine_.WriteTo(leaf, target.destination, gradient);
      MarkWritten(i);
      return;
    }
    engine_.Deliver(target.task, edges_[static_cast<size_t>(i)].output_index,
                    std::move(gradient));
  }

  void CheckGaveSome() const {
    for (const Target& target : targets_) {
      if (target.is_given) return;
    }
    for (size_t i = 0; i < targets_.size(); ++i) {
      CH_CHECK(targets_[i].task < 0)
          << "op " << node_.name() << " gave no gradient for its input " << i
          << ", which needs one; Put it, or where it is zero an undefined "
             "Tensor()";
    }
  }

 private:
  struct Target {
    int task = -1;
    bool is_given = false;
    GradDestination destination;
  };

  Target& At(int i) { return targets_[Index(i)]; }
  const Target& At(int i) const { return targets_[Index(i)]; }
  size_t Index(int i) const {
    CH_CHECK(i >= 0 && static_cast<size_t>(i) < targets_.size())
        << "the gradient of op " << node_.name() << " uses slot " << i
        << ": slots are the op's inputs, of which there are " << targets_.size()
        << ", counted from 0";
    return static_cast<size_t>(i);
  }
  const Task& TaskAt(int i) const {
    return engine_.tasks_[static_cast<size_t>(At(i).task)];
  }

  BackwardEngine& engine_;
  Node& node_;
  const absl::Span<const Node::Edge> edges_;
  absl::InlinedVector<Target, 3> targets_;
};

void BackwardEngine::Capture(absl::Span<const Tensor> inputs,
                             TensorList& gradients) {
  capturing_ = true;
  gradients.assign(inputs.size(), Tensor());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Node::Edge edge = GradEdge(inputs[i]);
    CH_CHECK(edge.node != nullptr)
        << "Gradients by a tensor that requires none: " << inputs[i].Describe();
    captures_.push_back({std::move(edge), &gradients[i]});
  }
}

int BackwardEngine::TaskOf(const std::shared_ptr<Node>& node) {
  const auto [it, inserted] =
      task_of_.try_emplace(node.get(), static_cast<int>(tasks_.size()));
  if (inserted) tasks_.push_back({.node = node});
  return it->second;
}

void BackwardEngine::Discover(const Node::Edge& root) {
  TaskOf(root.node);
  // tasks_ is also the queue of nodes whose edges are not yet followed.
  for (size_t i = 0; i < tasks_.size(); ++i) {
    for (const Node::Edge& edge : tasks_[i].node->edges()) {
      if (edge.node == nullptr) continue;
      ++tasks_[static_cast<size_t>(TaskOf(edge.node))].dependencies;
    }
  }
}

void BackwardEngine::CheckLeaves() const {
  for (const Task& task : tasks_) {
    if (task.node->sequence() != GraphTies::kLeafSequence) continue;
    const Tensor& leaf = static_cast<const LeafNode&>(*task.node).leaf();
    if (leaf.is_distributed()) continue;
    const uint64_t maker = leaf.storage()->context();
    if (maker == 0 || maker == context_.id()) continue;
    internal::CheckMayBeWritten("the gradient of a leaf", leaf);
  }
}

absl::Status BackwardEngine::CheckMayRecord() const {
  for (const Task& task : tasks_) {
    if (task.node->sequence() != GraphTies::kLeafSequence) continue;
    const Tensor& leaf = static_cast<const LeafNode&>(*task.node).leaf();
    const std::shared_ptr<GradSink> sink = GraphTies::Meta(leaf).sink;
    if (sink == nullptr) continue;
    const std::string why = sink->WhyNoCreateGraph();
    if (!why.empty()) return absl::UnimplementedError(why);
  }
  return absl::OkStatus();
}

bool BackwardEngine::IsPartOfAGrad(const Tensor& gradient) const {
  const auto memory = [](const Tensor& t) -> const Storage* {
    return t.is_distributed() ? &t.handler()->memory() : t.storage().get();
  };
  if (!options_.gradient.defined()) return false;
  return std::any_of(tasks_.begin(), tasks_.end(), [&](const Task& task) {
    if (task.node->sequence() != GraphTies::kLeafSequence) return false;
    const Tensor& grad = static_cast<const LeafNode&>(*task.node).leaf().grad();
    return grad.defined() && memory(grad) == memory(gradient);
  });
}

void BackwardEngine::Prune() {
  for (Task& task : tasks_) task.wanted = task.runs = false;
  for (const Wanted& capture : captures_) {
    const auto it = task_of_.find(capture.edge.node.get());
    if (it == task_of_.end()) continue;
    tasks_[static_cast<size_t>(it->second)].wanted = true;
  }
  // A node is younger than the nodes that its edges lead to. Leaves, which
  // share one sequence number, have no edges.
  std::vector<Task*> by_age;
  by_age.reserve(tasks_.size());
  for (Task& task : tasks_) by_age.push_back(&task);
  std::sort(by_age.begin(), by_age.end(), [](const Task* a, const Task* b) {
    return a->node->sequence() < b->node->sequence();
  });
  for (Task* task : by_age) {
    for (const Node::Edge& edge : task->node->edges()) {
      if (edge.node == nullptr) continue;
      if (tasks_[static_cast<size_t>(TaskOf(edge.node))].wanted) {
        task->wanted = task->runs = true;
      }
    }
  }
}

absl::Status BackwardEngine::Run(const Tensor& root) {
  CH_CHECK(root.requires_grad())
      << "Backward from a tensor that requires no gradient: " << root.Describe()
      << "; FullTensor and LocalTensor of one argument, Detach and NoGrad "
         "leave "
         "the graph";
  const bool recording = options_.create_graph;
  GradModeScope grad_mode(recording);
  Tensor gradient = options_.gradient;
  if (gradient.defined()) {
    CH_CHECK(gradient.sizes() == root.sizes())
        << "Backward from " << root.Describe() << " with a gradient of "
        << gradient.Describe();
  } else {
    CH_CHECK_EQ(root.numel(), 1)
        << "Backward from " << root.Describe() << " needs a gradient";
    gradient = OnesLike(root.Detach());
  }

  const Node::Edge root_edge = GradEdge(root);
  Discover(root_edge);
  CheckLeaves();
  if (recording) {
    if (absl::Status status = CheckMayRecord(); !status.ok()) return status;
  }
  if (!capturing_ && IsPartOfAGrad(gradient)) gradient = Clone(gradient);
  if (capturing_) Prune();
  if (tasks_[0].wanted) {
    Deliver(0, root_edge.output_index, std::move(gradient));
  }
  ready_.push({tasks_[0].node->sequence(), 0});
  while (!ready_.empty() && !context_.poisoned()) {
    const int task = ready_.top().task;
    ready_.pop();
    running_ = tasks_[static_cast<size_t>(task)].node.get();
    const GradientContext running_context(*running_);
    RunTask(task);
  }
  running_ = nullptr;
  // A callback may register another.
  for (size_t i = 0; i < callbacks_.size(); ++i) {
    const std::function<void()> callback = std::move(callbacks_[i]);
    callback();
  }
  return context_.status();
}

void BackwardEngine::RunTask(int index) {
  Task& task = tasks_[static_cast<size_t>(index)];
  for (const Wanted& capture : captures_) {
    if (capture.edge.node != task.node || task.gradients.empty()) continue;
    *capture.gradient =
        task.gradients[static_cast<size_t>(capture.edge.output_index)];
  }
  if (task.node->sequence() == GraphTies::kLeafSequence) {
    if (!capturing_) RunLeaf(task);
    return;
  }
  if (task.runs && !task.gradients.empty()) RunNode(task);
  task.gradients.clear();
  for (const Node::Edge& edge : task.node->edges()) {
    if (edge.node == nullptr) continue;
    const int next = task_of_.at(edge.node.get());
    if (--tasks_[static_cast<size_t>(next)].dependencies == 0) {
      ready_.push({edge.node->sequence(), next});
    }
  }
}

void BackwardEngine::RunNode(Task& task) {
  Node& node = *task.node;
  node.RunPreHooks();
  // A pre-hook that failed poisons the rank.
  if (context_.poisoned()) return;
  {
    const TensorList gradients = std::move(task.gradients);
    Slots slots(*this, node, node.edges());
    node.Backward(gradients, slots);
    // A failed Backward may have left some out.
    if (!context_.poisoned()) slots.CheckGaveSome();
  }
  if (!options_.retain_graph && !options_.create_graph) node.ReleaseSaved();
  node.RunPostHooks();
}

void BackwardEngine::RunLeaf(Task& task) {
  const Tensor& leaf = static_cast<const LeafNode&>(*task.node).leaf();
  task.node->RunPreHooks();
  if (!task.gradients.empty()) {
    Accumulate(leaf, std::move(task.gradients[0]));
    task.gradients.clear();
  }
  const std::shared_ptr<GradSink> sink = GraphTies::Meta(leaf).sink;
  if (sink != nullptr) sink->Complete();
  task.node->RunPostHooks();
}

void BackwardEngine::CheckFits(Node& node, int i, const Tensor& gradient) {
  const Node::Edge& edge = node.edges()[static_cast<size_t>(i)];
  const bool is_leaf = edge.node->sequence() == GraphTies::kLeafSequence;
  const auto check = [&](const Shape& sizes, DType dtype) {
    // Accumulation into a leaf converts the dtype.
    CH_CHECK(gradient.sizes() == sizes &&
             (is_leaf || gradient.dtype() == dtype))
        << "op " << node.name() << " gave the gradient " << gradient.Describe()
        << " for its input " << i << ", which is " << dtype << ToString(sizes)
        << ": a gradient has the sizes and the dtype of what it is of";
  };
  if (is_leaf) {
    const Tensor& leaf = static_cast<const LeafNode&>(*edge.node).leaf();
    check(leaf.sizes(), leaf.dtype());
  } else {
    const Node::OutputType& type =
        edge.node->output_types_[static_cast<size_t>(edge.output_index)];
    check(type.sizes, type.dtype);
  }
}

void BackwardEngine::Deliver(int index, int output_index, Tensor gradient) {
  Task& task = tasks_[static_cast<size_t>(index)];
  if (const Tensor* leaf = DirectLeaf(task)) {
    AccumulateDirect(*leaf, std::move(gradient));
    return;
  }
  if (task.gradients.empty()) {
    task.gradients.resize(static_cast<size_t>(task.node->num_outputs()));
  }
  Tensor& sum = task.gradients[static_cast<size_t>(output_index)];
  sum = sum.defined()
            ? SumOf(std::move(sum), std::move(gradient), options_.create_graph)
            : std::move(gradient);
}

const Tensor* BackwardEngine::DirectLeaf(const Task& task) const {
  if (capturing_ || task.node->sequence() != GraphTies::kLeafSequence) {
    return nullptr;
  }
  const Tensor& leaf = static_cast<const LeafNode&>(*task.node).leaf();
  const AutogradMeta& meta = GraphTies::Meta(leaf);
  if (meta.sink != nullptr) return &leaf;
  // A distributed gradient is conformed once, when complete. A recorded one is
  // not written in place.
  const bool direct = !options_.create_graph && !leaf.is_distributed() &&
                      (!meta.grad.defined() || (!meta.grad.is_distributed() &&
                                                !meta.grad.requires_grad() &&
                                                meta.grad.is_contiguous()));
  return direct ? &leaf : nullptr;
}

GradDestination BackwardEngine::AcquireDestination(const Tensor& leaf) const {
  const AutogradMeta& meta = GraphTies::Meta(leaf);
  if (meta.sink != nullptr) {
    GradDestination destination = meta.sink->Acquire();
    CH_CHECK(destination.tensor.sizes() == leaf.sizes())
        << "a sink gave " << destination.tensor.Describe()
        << " for the gradient of " << leaf.Describe();
    return destination;
  }
  if (meta.grad.defined()) return {meta.grad, true};
  MemoryClassScope memory_class(MemoryClass::kGradient);
  return {Empty(leaf.sizes(), leaf.dtype()), false};
}

void BackwardEngine::WriteTo(const Tensor& leaf,
                             const GradDestination& destination,
                             const Tensor& gradient) const {
  CH_CHECK(gradient.sizes() == leaf.sizes())
      << "a gradient of " << gradient.Describe() << " for the leaf "
      << leaf.Describe();
  NoGrad no_grad;
  // Perform its pending reductions here: for the ops below they would be an
  // implicit redistribution.
  const Tensor conformed = leaf.is_distributed()
                               ? leaf.handler()->ConformGradient(leaf, gradient)
                               : gradient;
  if (destination.accumulate) {
    AddInPlace(destination.tensor, conformed);
  } else {
    CopyInPlace(destination.tensor, conformed);
  }
}

void BackwardEngine::AccumulateDirect(const Tensor& leaf,
                                      Tensor gradient) const {
  const AutogradMeta& meta = GraphTies::Meta(leaf);
  if (meta.sink != nullptr || meta.grad.defined()) {
    WriteTo(leaf, AcquireDestination(leaf), gradient);
  } else {
    Accumulate(leaf, std::move(gradient));
  }
}

void BackwardEngine::Accumulate(const Tensor& leaf, Tensor gradient) const {
  CH_CHECK(gradient.sizes() == leaf.sizes())
      << "a gradient of " << gradient.Describe() << " for the leaf "
      << leaf.Describe();
  MemoryClassScope memory_class(MemoryClass::kGradient);
  AutogradMeta& meta = GraphTies::Meta(leaf);
  if (leaf.is_distributed()) {
    gradient = leaf.handler()->ConformGradient(leaf, std::move(gradient));
  }
  gradient = ToDType(std::move(gradient), leaf.dtype());
  if (meta.grad.defined()) {
    if (options_.create_graph || meta.grad.requires_grad()) {
      meta.grad = Add(meta.grad, gradient);
    } else {
      AddInPlace(meta.grad, gradient);
    }
    return;
  }
  if (!gradient.IsUnique() || !gradient.is_contiguous()) {
    gradient = Clone(gradient);
  } else if (!gradient.is_distributed()) {
    context_.allocator().Reclassify(gradient.storage()->block(),
                                    MemoryClass::kGradient);
  }
  meta.grad = std::move(gradient);
}

absl::Status Backward(const Tensor& root, const BackwardOptions& options) {
  RankContext& context = RankContext::Current();
  if (context.poisoned()) return context.status();
  BackwardEngine engine(context, options);
  return engine.Run(root);
}

absl::StatusOr<TensorList> Gradients(const Tensor& root,
                                     absl::Span<const Tensor> inputs,
                                     const BackwardOptions& options) {
  RankContext& context = RankContext::Current();
  if (context.poisoned()) return context.status();
  BackwardEngine engine(context, options);
  TensorList gradients;
  engine.Capture(inputs, gradients);
  CH_RETURN_IF_ERROR(engine.Run(root));
  return gradients;
}

void AtBackwardEnd(std::function<void()> callback) {
  BackwardEngine* const engine = BackwardEngine::Current();
  CH_CHECK(engine != nullptr) << "AtBackwardEnd outside of a Backward";
  engine->AtEnd(std::move(callback));
}

bool InBackward() { return RankContext::Current().in_backward(); }

const Node* RunningNode() {
  const BackwardEngine* const engine = BackwardEngine::Current();
  return engine == nullptr ? nullptr : engine->running();
}

}  // namespace crosshatch
