// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/runtime.h"

#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"

namespace crosshatch {

DTensorRuntime& DTensorRuntime::Current() {
  return RankContext::Current().Get<DTensorRuntime>();
}

DTensorRuntime::DTensorRuntime() : context_(RankContext::Current()) {}

const InternedLayout& DTensorRuntime::Intern(const Layout& layout) {
  auto& entry = layouts_[layout];
  if (entry == nullptr) {
    std::optional<MeshCoordinate> here =
        layout.mesh().CoordinateOf(context_.world_rank());
    CH_CHECK(here.has_value())
        << "rank " << context_.world_rank() << " is not on "
        << layout.mesh().ToString() << " and can hold no tensor on it";
    entry = std::make_unique<InternedLayout>(InternedLayout{
        *this, static_cast<int64_t>(layouts_.size()), layout, *here});
  }
  return *entry;
}

absl::StatusOr<const PreparedPlan*> DTensorRuntime::Plan(
    const InternedLayout& from, const InternedLayout& to, ShapeView shape,
    int64_t element_size, const RedistributeCostModel* model,
    std::optional<int64_t> max_elements) {
  absl::InlinedVector<int64_t, 16> key = {from.id, to.id, element_size};
  key.insert(key.end(), shape.begin(), shape.end());
  const RedistributeCostModel otherwise;
  if (model != nullptr || max_elements.has_value()) {
    // Longer than the keys of plans without a model: both layouts have equally
    // many dims.
    if (model == nullptr) model = &otherwise;
    key.push_back(max_elements.value_or(-1));
    key.push_back(model->bytes_per_launch);
    for (const auto& by_axis :
         {model->bytes_per_launch_of_axis, model->weight_of_byte_by_axis}) {
      key.push_back(static_cast<int64_t>(by_axis.size()));
      key.insert(key.end(), by_axis.begin(), by_axis.end());
    }
  }
  if (plans_.size() > kMaxPlans) plans_.clear();
  const auto found = plans_.find(absl::Span<const int64_t>(key));
  if (found != plans_.end()) return found->second.get();
  CH_ASSIGN_OR_RETURN(
      RedistributePlan made,
      PlanRedistribute(from.layout, to.layout, shape, element_size,
                       model == nullptr ? otherwise : *model, max_elements));
  auto& plan = plans_[key];
  plan = std::make_unique<PreparedPlan>(
      Prepare(std::move(made), shape, from.here));
  return plan.get();
}

// Prints or checks the op and the plan as the rank's mode requires; in backward
// the forward op, too.
void DTensorRuntime::CheckImplicit(const PreparedPlan& plan,
                                   const char* for_op) {
  const ImplicitRedistribution mode = CurrentImplicitRedistribution();
  if (mode == ImplicitRedistribution::kAllow || plan.plan.cost.launches == 0) {
    return;
  }
  std::string what = for_op;
  if (const ErrorContext* step =
          ErrorContext::Innermost(ErrorContext::Kind::kGradient)) {
    absl::StrAppend(&what, ", ", step->Describe());
  }
  CH_CHECK(mode != ImplicitRedistribution::kForbid)
      << what << ": an input would be redistributed, which this scope "
      << "forbids: " << plan.plan.ToString();
  const std::string warning =
      absl::StrCat("crosshatch: rank ", context_.world_rank(), ": ", what,
                   ": an input is redistributed: ", plan.plan.ToString());
  if (!warnings_.insert(warning).second) return;
  std::fputs((warning + "\n").c_str(), stderr);
}

void DTensorRuntime::Record(const CommOrigin& cause,
                            const RedistributeCost& cost,
                            absl::FunctionRef<std::string()> subject) {
  const bool is_explicit = cause.kind == CommOrigin::Kind::kExplicit;
  (is_explicit                                 ? counts_.explicit_calls
   : cause.kind == CommOrigin::Kind::kImplicit ? counts_.implicit_calls
                                               : counts_.op_calls) += 1;
  counts_.cost += cost;
  EventSink* const sink = context_.sink();
  if (sink == nullptr) return;
  const std::string text = subject();
  const std::string where = cause.op;
  sink->Write({.kind = EventKind::kRedistribute,
               .what = Name(cause.kind),
               .subject = &text,
               .where = is_explicit ? nullptr : &where,
               .bytes = cost.bytes});
}

Tensor DTensorRuntime::Redistribute(const PreparedPlan& plan,
                                    const Tensor& local, const DeviceMesh& mesh,
                                    const CommOrigin& cause, Event* done) {
  if (plan.stays) return local;
  if (cause.kind == CommOrigin::Kind::kImplicit) CheckImplicit(plan, cause.op);
  Record(cause, plan.plan.cost, [&plan] {
    return absl::StrCat(plan.plan.from.ToString(), " -> ",
                        plan.plan.to.ToString());
  });
  const CommOriginScope origin(cause);
  return done == nullptr ? Execute(plan, local, mesh)
                         : ExecuteAsync(plan, local, mesh, *done);
}

}  // namespace crosshatch
