// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dtensor.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/boundary_ops.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/dispatch/redistribute_op.h"
#include "crosshatch/dtensor/dispatch/replica_check.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

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
                 const Layout& layout, ShapeView sizes,
                 const Layout& grad_layout) {
  CompareReplicasOfInput("FromLocal", local, mesh, layout, sizes);
  return Apply1(FromLocalOp(mesh, layout, sizes, grad_layout), {local});
}

Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 const Layout& layout, const Layout& grad_layout) {
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

Tensor ToLocal(const Tensor& t, const Layout& grad_layout) {
  HandlerOf(t, "ToLocal");
  return Apply1(ToLocalOp(grad_layout), {t});
}

Tensor FullTensor(const Tensor& t, const Layout& grad_layout) {
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
                        const Layout& layout) {
  CH_CHECK(!full.is_distributed())
      << "DistributeTensor: " << full.Describe() << " is distributed already";
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

Tensor FromLocal(const Tensor& local, const DeviceMesh& mesh,
                 absl::Span<const Placement> placements,
                 absl::Span<const Placement> grad_placements) {
  return FromLocal(local, mesh,
                   LayoutBy("FromLocal", placements, mesh, local.ndim()),
                   LayoutBy("FromLocal", grad_placements, mesh, local.ndim()));
}

Tensor ToLocal(const Tensor& t, absl::Span<const Placement> grad_placements) {
  return ToLocal(t, LayoutBy("ToLocal", grad_placements, MeshOf(t), t.ndim()));
}

Tensor DistributeTensor(const Tensor& full, const DeviceMesh& mesh,
                        absl::Span<const Placement> placements) {
  return DistributeTensor(
      full, mesh, LayoutBy("DistributeTensor", placements, mesh, full.ndim()));
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
