// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/cross_mesh.h"

#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/dispatch/redistribute_op.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {
namespace {

// A rank's plans between meshes. Their keys hold layouts by value, because a
// rank interns only layouts of meshes that it is on.
class CrossMeshPlans final : public RankContext::Extension {
 public:
  static CrossMeshPlans& Of(RankContext& context) {
    return context.Get<CrossMeshPlans>();
  }

  /// Valid until the next call.
  const PreparedCrossMeshPlan& Plan(const CrossMeshEnds& ends, int rank) {
    if (plans_.size() >= DTensorRuntime::kMaxPlans) plans_.clear();
    auto& plan =
        plans_[Key(ends.from, ends.to, ends.sizes, SizeOf(ends.dtype))];
    if (plan == nullptr) {
      absl::StatusOr<CrossMeshPlan> made =
          PlanCrossMesh(ends.from, ends.to, ends.sizes, SizeOf(ends.dtype));
      CH_CHECK_OK(made.status());
      plan = std::make_unique<PreparedCrossMeshPlan>(
          PrepareCrossMesh(*std::move(made), ends.sizes, rank));
    }
    return *plan;
  }

 private:
  using Key = std::tuple<Layout, Layout, Shape, int64_t>;
  absl::flat_hash_map<Key, std::unique_ptr<PreparedCrossMeshPlan>> plans_;
};

// Every rank of either mesh calls it with one input and receives one output:
// its part if it is on the mesh, otherwise a plain scalar that represents the
// tensor in the graph. So its gradient is the same op in the other direction.
class CrossMeshOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {"redistribute_across"};
  // \param ends with the gradient's layout
  explicit CrossMeshOp(const CrossMeshEnds& ends,
                       const CommOrigin& cause = CommOrigin::Explicit())
      : ends_(ends), cause_(cause) {}
  const OpInfo& info() const override { return kInfo; }
  // The input is distributed on a rank of the source's mesh, otherwise plain.
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

 private:
  const CrossMeshEnds& ends_;
  const CommOrigin cause_;
};

TensorList CrossMeshOp::Forward(TensorSpan inputs) const {
  const Tensor& input = inputs[0];
  const int rank = ends_.from_mesh.world().world_rank();
  const bool sends = ends_.from_mesh.coordinate().has_value();
  const bool receives = ends_.to_mesh.coordinate().has_value();
  if (sends) {
    CH_CHECK(input.is_distributed() && input.sizes() == ends_.sizes &&
             input.dtype() == ends_.dtype &&
             DTensorHandler::Of(input).layout() == ends_.from)
        << "redistribute_across: " << input.Describe() << " on rank " << rank
        << " does not match the route from " << ends_.from.ToString() << " on "
        << ends_.from.mesh().ToString() << " of " << ToString(ends_.sizes);
  } else {
    CH_CHECK(!input.is_distributed())
        << "redistribute_across: " << input.Describe() << " on rank " << rank
        << ", which is not on " << ends_.from_mesh.ToString();
  }
  const PreparedCrossMeshPlan& plan =
      CrossMeshPlans::Of(RankContext::Current()).Plan(ends_, rank);
  DTensorRuntime::Current().Record(cause_, plan.plan.cost, [&plan] {
    const CrossMeshPlan& of = plan.plan;
    return absl::StrCat(of.from().ToString(), " on ",
                        of.from().mesh().ToString(), " -> ", of.to().ToString(),
                        " on ", of.to().mesh().ToString());
  });
  const CommOriginScope origin(cause_);
  Tensor local = ExecuteCrossMesh(
      plan, sends ? DTensorHandler::Of(input).local() : Tensor(), ends_.dtype,
      ends_.from_mesh, ends_.to_mesh);
  if (!receives) return {Zeros({})};
  PartInfo info = {.regular = false};
  if (plan.shares_memory) {
    // A rank that holds no part of the input received nothing from it either.
    info = sends
               ? DTensorHandler::Of(input).AliasOrCopyInfo()
               : PartInfo{.aliasing = Aliasing::kAliasOrCopy, .regular = false};
  }
  return {Wrap(std::move(local), DTensorRuntime::Current().Intern(ends_.to),
               ends_.to_mesh, ends_.sizes, std::move(info))};
}

std::shared_ptr<Node> CrossMeshOp::Differentiate(TensorSpan /*inputs*/,
                                                 TensorSpan /*outputs*/) const {
  const Layout of_source = ends_.from.WithoutPartials();
  return MakeNode<0>(
      kInfo, [back = CrossMeshEnds{.from_mesh = ends_.to_mesh,
                                   .from = *ends_.gradient,
                                   .to_mesh = ends_.from_mesh,
                                   .to = of_source,
                                   .sizes = ends_.sizes,
                                   .dtype = ends_.dtype,
                                   .gradient = of_source}](
                 const auto& self, TensorSpan grads, GradientSlots& slots) {
        if (!slots.Needed(0)) return;
        Tensor gradient = grads[0];
        if (back.from_mesh.coordinate().has_value()) {
          gradient = RedistributeGradient(gradient, back.from, self.name());
        }
        slots.Put(0, Apply1(CrossMeshOp(back, CommOrigin::Op(self.name())),
                            {gradient}));
      });
}

}  // namespace

CrossMeshTensor MakeCrossMeshTensor(Tensor held) {
  CrossMeshTensor made;
  made.held_ = std::move(held);
  return made;
}

CrossMeshTensor::CrossMeshTensor(Tensor tensor) : held_(std::move(tensor)) {
  CH_CHECK(held_.is_distributed())
      << "CrossMeshTensor: " << held_.Describe() << " is not distributed";
}

CrossMeshTensor CrossMeshTensor::Absent(bool requires_grad) {
  Tensor tie = Zeros({});
  if (requires_grad) tie.set_requires_grad(true);
  return MakeCrossMeshTensor(std::move(tie));
}

const Tensor& CrossMeshTensor::tensor() const {
  CH_CHECK(present()) << "CrossMeshTensor: this rank is not on its mesh";
  return held_;
}

CrossMeshTensor RedistributeAcross(const CrossMeshTensor& t,
                                   const CrossMeshEnds& ends) {
  CH_CHECK(ends.from.mesh() == ends.from_mesh.layout() &&
           ends.to.mesh() == ends.to_mesh.layout())
      << "RedistributeAcross: layouts on " << ends.from.mesh().ToString()
      << " and " << ends.to.mesh().ToString() << ", meshes "
      << ends.from_mesh.ToString() << " and " << ends.to_mesh.ToString();
  CH_CHECK(&ends.from_mesh.world() == &ends.to_mesh.world())
      << "RedistributeAcross: the meshes are of different worlds";
  if (!ends.from_mesh.coordinate().has_value() &&
      !ends.to_mesh.coordinate().has_value()) {
    CH_CHECK(!t.present()) << "RedistributeAcross: " << t.tie().Describe()
                           << " is on neither mesh";
    return CrossMeshTensor::Absent();
  }
  CrossMeshEnds route = ends;
  if (!route.gradient.has_value()) route.gradient = ends.to.WithoutPartials();
  CH_CHECK_OK(CheckGradLayout("RedistributeAcross", ends.to, *route.gradient));
  return MakeCrossMeshTensor(Apply1(CrossMeshOp(route), {t.tie()}));
}

}  // namespace crosshatch
