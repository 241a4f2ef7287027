// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/cross_mesh_op.h"

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
  const PreparedCrossMeshPlan& Plan(const CrossMeshRoute& route, int rank) {
    if (plans_.size() >= DTensorRuntime::kMaxPlans) plans_.clear();
    auto& plan =
        plans_[Key(route.from, route.to, route.sizes, SizeOf(route.dtype))];
    if (plan == nullptr) {
      absl::StatusOr<CrossMeshPlan> made =
          PlanCrossMesh(route.from, route.to, route.sizes, SizeOf(route.dtype));
      CH_CHECK_OK(made.status());
      plan = std::make_unique<PreparedCrossMeshPlan>(
          PrepareCrossMesh(*std::move(made), route.sizes, rank));
    }
    return *plan;
  }

 private:
  using Key = std::tuple<Layout, Layout, Shape, int64_t>;
  absl::flat_hash_map<Key, std::unique_ptr<PreparedCrossMeshPlan>> plans_;
};

CommOrigin CauseOf(const CrossMeshRoute& route) {
  return route.of_gradient ? CommOrigin::Op(CrossMeshOp::kInfo.name)
                           : CommOrigin::Explicit();
}

void CountAndLog(const CrossMeshPlan& plan, const CommOrigin& cause) {
  DTensorRuntime::Current().Count(cause.kind, plan.cost);
  EventSink* const sink = RankContext::Current().sink();
  if (sink == nullptr) return;
  const std::string subject = absl::StrCat(
      plan.from().ToString(), " on ", plan.from().mesh().ToString(), " -> ",
      plan.to().ToString(), " on ", plan.to().mesh().ToString());
  const std::string where = cause.op;
  const bool asked_for = cause.kind == CommOrigin::Kind::kExplicit;
  sink->Write({.kind = EventKind::kRedistribute,
               .what = Name(cause.kind),
               .subject = &subject,
               .where = asked_for ? nullptr : &where,
               .bytes = plan.cost.bytes});
}

class CrossMeshNode final : public Node {
 public:
  explicit CrossMeshNode(const CrossMeshRoute& forward)
      : back_{.from_mesh = forward.to_mesh,
              .from = forward.gradient,
              .to_mesh = forward.from_mesh,
              .to = GradientLayout(forward.from),
              .sizes = forward.sizes,
              .dtype = forward.dtype,
              .gradient = GradientLayout(GradientLayout(forward.from)),
              .of_gradient = true} {}
  const char* name() const override { return "redistribute_across"; }
  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    if (!slots.Needed(0)) return;
    Tensor gradient = output_grads[0];
    if (back_.from_mesh.coordinate().has_value()) {
      gradient = RedistributeGradient(gradient, back_.from, name());
    }
    slots.Put(0, Apply1(CrossMeshOp(back_), {gradient}));
  }
  void ReleaseSaved() override {}

 private:
  const CrossMeshRoute back_;
};

}  // namespace

TensorList CrossMeshOp::Forward(TensorSpan inputs) const {
  const Tensor& input = inputs[0];
  const int rank = route.from_mesh.world().world_rank();
  const bool sends = route.from_mesh.coordinate().has_value();
  const bool receives = route.to_mesh.coordinate().has_value();
  if (sends) {
    CH_CHECK(input.is_distributed() && input.sizes() == route.sizes &&
             input.dtype() == route.dtype &&
             DTensorHandler::Of(input).layout() == route.from)
        << "redistribute_across: " << input.Describe() << " on rank " << rank
        << " does not match the route from " << route.from.ToString() << " on "
        << route.from.mesh().ToString() << " of " << ToString(route.sizes);
  } else {
    CH_CHECK(!input.is_distributed())
        << "redistribute_across: " << input.Describe() << " on rank " << rank
        << ", which is not on " << route.from_mesh.ToString();
  }
  const PreparedCrossMeshPlan& plan =
      CrossMeshPlans::Of(RankContext::Current()).Plan(route, rank);
  CountAndLog(plan.plan, CauseOf(route));
  const CommOriginScope origin(CauseOf(route));
  Tensor local = ExecuteCrossMesh(
      plan, sends ? DTensorHandler::Of(input).local() : Tensor(), route.dtype,
      route.from_mesh, route.to_mesh);
  if (!receives) return {Zeros({})};
  PartInfo info = {.regular = false};
  if (plan.shares_memory) {
    // A rank that holds no part of the input received nothing from it either.
    info = sends
               ? DTensorHandler::Of(input).AliasOrCopyInfo()
               : PartInfo{.aliasing = Aliasing::kAliasOrCopy, .regular = false};
  }
  return {Wrap(std::move(local), DTensorRuntime::Current().Intern(route.to),
               route.to_mesh, route.sizes, std::move(info))};
}

std::shared_ptr<Node> CrossMeshOp::Differentiate(TensorSpan /*inputs*/,
                                                 TensorSpan /*outputs*/) const {
  return std::make_shared<CrossMeshNode>(route);
}

}  // namespace crosshatch
