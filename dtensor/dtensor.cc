// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dtensor.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/dispatch/redistribute_op.h"
#include "crosshatch/dtensor/dispatch/replica_check.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// (local) -> the distributed tensor whose shard on this rank is `local`. It
// shares memory with the input, as a view. Under autograd it cannot be
// written. The local gradient is this rank's part of the distributed gradient
// in `grad_layout`. If there is a gradient, CheckBoundaryGradLayout must
// accept that layout.
class FromLocalOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {.name = "from_local", .view = true};
  FromLocalOp(const DeviceMesh& mesh, const Layout& layout, ShapeView sizes,
              const Layout& grad_layout)
      : mesh(mesh), layout(layout), sizes(sizes), grad_layout(grad_layout) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const DeviceMesh& mesh;
  const Layout& layout;
  const ShapeView sizes;
  const Layout& grad_layout;
};

// (distributed) -> this rank's part. It shares memory with the input, as a
// view. Under autograd it cannot be written. The local gradient is this rank's
// part of a distributed gradient in `grad_layout`. If there is a gradient,
// CheckBoundaryGradLayout must accept that layout.
class ToLocalOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {.name = "to_local", .view = true};
  explicit ToLocalOp(const Layout& grad_layout) : grad_layout(grad_layout) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const Layout& grad_layout;
};

class ToLocalNode final : public Node {
 public:
  ToLocalNode(const Tensor& input, Layout grad_layout)
      : mesh_(DTensorHandler::Of(input).mesh()),
        layout_(DTensorHandler::Of(input).layout()),
        sizes_(input.sizes()),
        grad_layout_(std::move(grad_layout)) {}
  const char* name() const override { return "to_local"; }
  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    if (!slots.Needed(0)) return;
    const Tensor& local = output_grads[0];
    CH_CHECK(!local.is_distributed())
        << "to_local: the gradient of a local tensor is distributed";
    slots.Put(
        0, Apply1(FromLocalOp(mesh_, grad_layout_, sizes_, layout_), {local}));
  }
  void ReleaseSaved() override {}

  const Layout& layout() const { return layout_; }

 private:
  const DeviceMesh mesh_;
  const Layout layout_;
  const Shape sizes_;
  const Layout grad_layout_;
};

TensorList FromLocalOp::Forward(TensorSpan inputs) const {
  CH_CHECK(!inputs[0].is_distributed())
      << "from_local: " << inputs[0].Describe() << " is distributed already";
  CH_CHECK(layout.mesh() == mesh.layout())
      << "from_local: the layout is on " << layout.mesh().ToString()
      << ", the mesh is " << mesh.ToString();
  return {Wrap(inputs[0].Detach(), DTensorRuntime::Current().Intern(layout),
               mesh, Shape(sizes.begin(), sizes.end()),
               {.aliasing = Aliasing::kAlias, .regular = false})};
}

std::shared_ptr<Node> FromLocalOp::Differentiate(TensorSpan /*inputs*/,
                                                 TensorSpan /*outputs*/) const {
  CH_CHECK_OK(CheckBoundaryGradLayout(kInfo.name, layout, grad_layout));
  return MakeNode<0>(
      kInfo, [layout = layout, grad_layout = grad_layout](
                 const auto& self, TensorSpan grads, GradientSlots& slots) {
        if (!slots.Needed(0)) return;
        const Tensor gradient =
            RedistributeGradient(grads[0], grad_layout, self.name());
        slots.Put(0, Apply1(ToLocalOp(layout), {gradient}));
      });
}

TensorList ToLocalOp::Forward(TensorSpan inputs) const {
  CH_CHECK(inputs[0].is_distributed())
      << "to_local: " << inputs[0].Describe() << " is local already";
  return {DTensorHandler::Of(inputs[0]).local().Detach()};
}

std::shared_ptr<Node> ToLocalOp::Differentiate(TensorSpan inputs,
                                               TensorSpan /*outputs*/) const {
  CH_CHECK_OK(CheckBoundaryGradLayout(
      kInfo.name, DTensorHandler::Of(inputs[0]).layout(), grad_layout));
  return std::make_shared<ToLocalNode>(inputs[0], grad_layout);
}

const DTensorHandler& HandlerOf(const Tensor& t, const char* what) {
  CH_CHECK(t.is_distributed())
      << what << ": " << t.Describe() << " is not distributed";
  return DTensorHandler::Of(t);
}

// Returns the global shape of the tensor whose shard is `local`. There is one
// exchange for all dims; each rank sums the sizes along each dim's axes.
absl::StatusOr<Shape> GlobalShape(const Tensor& local, const DeviceMesh& mesh,
                                  const Layout& layout) {
  CH_CHECK(layout.mesh() == mesh.layout())
      << "FromLocal: the layout " << layout.ToString() << " is on "
      << layout.mesh().ToString() << ", the mesh is " << mesh.ToString();
  CH_CHECK_EQ(layout.ndim(), local.ndim())
      << "FromLocal of " << local.Describe() << " as " << layout.ToString();
  Shape sizes = local.sizes();
  absl::InlinedVector<int, 4> axes;
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_shard()) axes.push_back(axis);
  }
  if (axes.empty()) return sizes;
  CH_ASSIGN_OR_RETURN(
      Communicator * communicator,
      mesh.communicator(axes, RankContext::Current().current_stream().name()));
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      communicator->Exchange(absl::StrJoin(local.sizes(), ","), "FromLocal"));
  std::vector<Shape> shapes;
  for (const std::string& text : all) {
    Shape& shape = shapes.emplace_back();
    for (absl::string_view number :
         absl::StrSplit(text, ',', absl::SkipEmpty())) {
      int64_t size = 0;
      if (!absl::SimpleAtoi(number, &size)) {
        return absl::InternalError(absl::StrCat("FromLocal: sizes ", text));
      }
      shape.push_back(size);
    }
    if (shape.size() != sizes.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("FromLocal: ranks have parts of sizes ",
                       ToString(local.sizes()), " and ", ToString(shape)));
    }
  }
  for (int d = 0; d < layout.ndim(); ++d) {
    if (!layout.is_sharded(d)) continue;
    // The ranks along the dim's axes, at index 0 of the others.
    int64_t size = 0;
    for (size_t r = 0; r < shapes.size(); ++r) {
      size_t rest = r;
      bool on_line = true;
      for (size_t i = axes.size(); i-- > 0;) {
        const auto along = static_cast<size_t>(mesh.size(axes[i]));
        const bool of_dim = layout.state_of_axis(axes[i]).dim == d;
        on_line = on_line && (of_dim || rest % along == 0);
        rest /= along;
      }
      if (on_line) size += shapes[r][d];
    }
    sizes[d] = size;
  }
  return sizes;
}

// Returns the element as a plain tensor that has been computed.
Tensor WholeOf(const Tensor& t) {
  if (!t.is_distributed()) return t;
  const NoGrad no_grad;
  CommOrigin origin = CommOrigin::Explicit();
  origin.about = "Item, which every rank of the mesh calls";
  const Layout whole = Layout::Replicated(MeshOf(t).layout(), t.ndim());
  return LocalTensor(Apply1(RedistributeOp(whole, origin), {t}));
}

absl::StatusOr<Tensor> Computed(const Tensor& t) {
  CH_CHECK(t.defined() && t.numel() == 1)
      << "Item of " << t.Describe() << ", which has not one element";
  RankContext& context = RankContext::Current();
  const Tensor whole = WholeOf(t);
  if (whole.device().is_meta()) {
    return absl::FailedPreconditionError("Item: a dry run has no values");
  }
  context.current_stream().Synchronize();
  CH_RETURN_IF_ERROR(context.status());
  return whole;
}

// Sends the parts of the source's `full` to each rank's `local`. `source` is
// the source's index among the ranks of the mesh.
absl::Status Scatter(int source, const Tensor& full, const Tensor& local,
                     const DeviceMesh& mesh, const Layout& layout) {
  Stream& stream = RankContext::Current().current_stream();
  CH_ASSIGN_OR_RETURN(Communicator * group, MeshCommunicator(mesh));
  const bool sends = group->rank() == source;
  Collective collective;
  collective.dtype = full.dtype();
  collective.label = "DistributeTensorFrom";
  const SegmentList mine = SegmentsOf(local, WholeBox(local.sizes()));
  if (layout.is_replicated()) {
    collective.kind = CollectiveKind::kBroadcast;
    collective.root = source;
    if (sends) {
      collective.send.push_back(SegmentsOf(full, WholeBox(full.sizes())));
    }
    collective.recv.push_back(mine);
    return group->Issue(std::move(collective), stream);
  }
  collective.kind = CollectiveKind::kAllToAll;
  collective.send.resize(group->size());
  collective.recv.resize(group->size());
  collective.recv[source] = mine;
  if (sends) {
    for (int rank = 0; rank < group->size(); ++rank) {
      collective.send[rank] = SegmentsOf(
          full,
          layout.LocalBox(full.sizes(), mesh.layout().CoordinateAt(rank)));
    }
  }
  return group->Issue(std::move(collective), stream);
}

}  // namespace

const Layout& LayoutOf(const Tensor& t) {
  return HandlerOf(t, "LayoutOf").layout();
}

const DeviceMesh& MeshOf(const Tensor& t) {
  return HandlerOf(t, "MeshOf").mesh();
}

Box LocalBoxOf(const Tensor& t) {
  const InternedLayout& interned = HandlerOf(t, "LocalBoxOf").interned();
  return interned.layout.LocalBox(t.sizes(), interned.here);
}

Tensor LocalTensor(const Tensor& t) {
  return t.is_distributed() ? DTensorHandler::Of(t).local().Detach() : t;
}

Tensor WritableLocalTensor(const Tensor& t, const char* what) {
  return t.is_distributed() ? DTensorHandler::Of(t).WritableLocal(what).Detach()
                            : t;
}

Tensor MakeDTensor(Tensor local, const DeviceMesh& mesh, const Layout& layout,
                   Shape sizes) {
  NoGrad no_grad;
  return Apply1(FromLocalOp(mesh, layout, sizes, layout), {local});
}

Tensor MakeDTensorLike(const Tensor& whole, Tensor local) {
  if (!whole.is_distributed()) return local;
  return MakeDTensor(std::move(local), MeshOf(whole), LayoutOf(whole),
                     whole.sizes());
}

Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 const LayoutSpec& spec, ShapeView sizes,
                 const LayoutSpec& grad_spec) {
  const Layout& layout = spec.Of("FromLocal", mesh.layout(), local.ndim());
  const Layout& grad_layout =
      grad_spec.Of("FromLocal", mesh.layout(), local.ndim());
  CompareReplicasOfInput("FromLocal", local, mesh, layout, sizes);
  return Apply1(FromLocalOp(mesh, layout, sizes, grad_layout), {local});
}

Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 const LayoutSpec& spec, const LayoutSpec& grad_layout) {
  const Layout& layout = spec.Of("FromLocal", mesh.layout(), local.ndim());
  absl::StatusOr<Shape> sizes = GlobalShape(local, mesh, layout);
  if (!sizes.ok()) {
    // With those of an even split the rank continues until its error is
    // returned.
    RankContext::Current().Poison(sizes.status());
    sizes = local.sizes();
    for (int d = 0; d < layout.ndim(); ++d) {
      (*sizes)[d] *= layout.num_chunks(d);
    }
  }
  return FromLocal(local, mesh, layout, *sizes, grad_layout);
}

const Layout* ToLocalLayout(const Tensor& local) {
  const auto* node =
      dynamic_cast<const ToLocalNode*>(GradEdge(local).node.get());
  return node == nullptr ? nullptr : &node->layout();
}

Tensor ToLocal(const Tensor& t, const LayoutSpec& grad_layout) {
  const MeshLayout& mesh = HandlerOf(t, "ToLocal").layout().mesh();
  return Apply1(ToLocalOp(grad_layout.Of("ToLocal", mesh, t.ndim())), {t});
}

Tensor FullTensor(const Tensor& t, const LayoutSpec& grad_layout) {
  if (!t.is_distributed()) return t;
  const Layout& layout = LayoutOf(t);
  return ToLocal(
      Redistribute(t, Layout::Replicated(layout.mesh(), layout.ndim())),
      grad_layout);
}

Tensor FullTensor(const Tensor& t) {
  if (!t.is_distributed()) return t;
  NoGrad no_grad;
  const Layout& layout = LayoutOf(t);
  return FullTensor(t, Layout::Replicated(layout.mesh(), layout.ndim()));
}

Tensor DistributeTensor(const Tensor& full, const DeviceMesh& mesh,
                        const LayoutSpec& spec) {
  CH_CHECK(!full.is_distributed())
      << "DistributeTensor: " << full.Describe() << " is distributed already";
  const Layout& layout =
      spec.Of("DistributeTensor", mesh.layout(), full.ndim());
  const bool requires_grad = full.requires_grad();
  NoGrad no_grad;
  const auto spread = [&] {
    if (!full.storage()->attached()) {
      const InternedLayout& interned = DTensorRuntime::Current().Intern(layout);
      return MakeDTensor(
          Deferred(layout.LocalShape(full.sizes(), interned.here), full.dtype(),
                   full.storage()->owner()),
          mesh, layout, full.sizes());
    }
    const Layout whole = Layout::Replicated(mesh.layout(), full.ndim());
    // Elements that the layout does not use here may differ between ranks.
    if (ComparesReplicas()) {
      CompareReplicasOfInput("DistributeTensor", full, mesh, whole,
                             full.sizes());
    }
    // Until it is copied, the part shares the global tensor's memory.
    return Clone(Redistribute(
        MakeDTensor(full.Detach(), mesh, whole, full.sizes()), layout));
  };
  Tensor spread_tensor = spread();
  if (requires_grad) spread_tensor.set_requires_grad(true);
  return spread_tensor;
}

Tensor Replicated(const Tensor& constant, const DeviceMesh& mesh) {
  CH_CHECK(!constant.requires_grad())
      << "Replicated: " << constant.Describe()
      << " requires a gradient; declare its layout with FromLocal";
  const Layout layout = Layout::Replicated(mesh.layout(), constant.ndim());
  CompareReplicasOfInput("Replicated", constant, mesh, layout,
                         constant.sizes());
  return MakeDTensor(constant, mesh, layout, constant.sizes());
}

Tensor ReplicatedLike(const Tensor& constant, const Tensor& other) {
  if (constant.is_distributed() || !other.is_distributed()) return constant;
  return Replicated(constant, MeshOf(other));
}

Tensor DistributeTensorFrom(int source_rank, const Tensor& full,
                            const DeviceMesh& mesh, const LayoutSpec& spec) {
  CH_CHECK(!full.is_distributed())
      << "DistributeTensorFrom: " << full.Describe()
      << " is distributed already";
  const auto ranks = mesh.layout().ranks();
  const auto found = std::find(ranks.begin(), ranks.end(), source_rank);
  CH_CHECK(found != ranks.end()) << "DistributeTensorFrom: rank " << source_rank
                                 << " is not on " << mesh.ToString();
  const Layout& layout =
      spec.Of("DistributeTensorFrom", mesh.layout(), full.ndim());
  const bool requires_grad = full.requires_grad();
  NoGrad no_grad;
  const Layout plain = layout.WithoutPartials();
  DTensorRuntime& runtime = DTensorRuntime::Current();
  const Tensor local = Empty(
      plain.LocalShape(full.sizes(), runtime.Intern(plain).here), full.dtype());
  {
    const CommOriginScope origin(
        {CommOrigin::Kind::kExplicit, "distribute_tensor"});
    // A collective reads each element of memory once.
    const Tensor sent =
        Repeats(full.sizes(), full.strides()) ? Clone(full) : full;
    absl::Status status = Scatter(static_cast<int>(found - ranks.begin()), sent,
                                  local, mesh, plain);
    if (!status.ok()) RankContext::Current().Poison(std::move(status));
  }
  Tensor spread =
      Redistribute(MakeDTensor(local, mesh, plain, full.sizes()), layout);
  if (requires_grad) spread.set_requires_grad(true);
  return spread;
}

Interval RowsOf(const DeviceMesh& data, int64_t rows) {
  CH_CHECK(rows >= 0) << "RowsOf: a batch of " << rows << " rows";
  CH_CHECK(data.coordinate().has_value())
      << "RowsOf: rank " << data.world().world_rank() << " is not on "
      << data.ToString() << " and reads no rows of its batch";
  Layout layout = Layout::Replicated(data.layout(), 1);
  for (int axis = 0; axis < data.ndim(); ++axis) {
    layout = layout.WithShard(axis, 0);
  }
  return layout.DimInterval(0, rows, *data.coordinate());
}

absl::StatusOr<double> Item(const Tensor& t) {
  CH_ASSIGN_OR_RETURN(const Tensor whole, Computed(t));
  return whole.ToVector<double>()[0];
}

template <typename T>
absl::StatusOr<T> Item(const Tensor& t) {
  CH_CHECK(t.defined() && t.dtype() == DTypeOf<T>)
      << "Item<" << Name(DTypeOf<T>) << "> of " << t.Describe();
  CH_ASSIGN_OR_RETURN(const Tensor whole, Computed(t));
  return whole.ToVector<T>()[0];
}

template absl::StatusOr<float> Item<float>(const Tensor& t);
template absl::StatusOr<double> Item<double>(const Tensor& t);
template absl::StatusOr<int32_t> Item<int32_t>(const Tensor& t);
template absl::StatusOr<int64_t> Item<int64_t>(const Tensor& t);

}  // namespace crosshatch
