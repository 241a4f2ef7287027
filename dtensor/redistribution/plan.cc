// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/cost.h"
#include "crosshatch/dtensor/redistribution/moves.h"
#include "crosshatch/dtensor/redistribution/search.h"

namespace crosshatch {
namespace {

using Steps = std::vector<RedistributeStep>;

/// Returns nullopt if no plan respects the bound on memory.
std::optional<Steps> LightestSteps(const RedistributeProblem& problem) {
  if (LargestShard(problem.from, problem.shape) > problem.max_elements) {
    return std::nullopt;
  }
  if (problem.from == problem.to) return Steps();
  // No elements to move or to reduce.
  if (NumElements(problem.shape) == 0) {
    return Steps{LocalStep(problem.from, problem.to)};
  }
  std::optional<RedistributePath> path = LightestCandidate(problem);
  const PartialChanges changes(problem.from, problem.to);
  // One exchange is the lightest, unless it sends bytes over a heavy axis that
  // others could send over lighter ones.
  const bool one_exchange = changes.reduced.empty() &&
                            changes.created.empty() &&
                            problem.model.WeighsBytesAlike();
  if (path.has_value() &&
      (one_exchange || path->weight <= LeastWeight(problem, problem.from))) {
    return std::move(path->steps);
  }
  std::optional<RedistributePath> better = SearchAllLayouts(
      problem,
      path.has_value() ? path->weight : std::numeric_limits<int64_t>::max());
  if (better.has_value()) return std::move(better->steps);
  if (path.has_value()) return std::move(path->steps);
  return std::nullopt;
}

}  // namespace

std::string RedistributePlan::ToString() const {
  std::string text =
      absl::StrCat(from.ToString(), " -> ", to.ToString(), ": ", cost.launches,
                   " collective", cost.launches == 1 ? "" : "s", ", ",
                   cost.bytes, " bytes (lower bound ", least_bytes, ")\n");
  for (const RedistributeStep& step : steps) {
    absl::StrAppend(&text, "  ", step.ToString(), " -> ", step.to.ToString(),
                    "\n");
  }
  return text;
}

absl::StatusOr<RedistributePlan> PlanRedistribute(
    const Layout& from, const Layout& to, ShapeView shape, int64_t element_size,
    const RedistributeCostModel& model, std::optional<int64_t> max_elements) {
  const auto describe = [&] {
    return absl::StrCat(from.ToString(), " of ", from.ndim(), " dims on ",
                        from.mesh().ToString(), " to ", to.ToString(), " of ",
                        to.ndim(), " dims on ", to.mesh().ToString());
  };
  if (from.mesh() != to.mesh()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "redistribute: the layouts have different meshes: ", describe()));
  }
  if (from.ndim() != to.ndim() ||
      from.ndim() != static_cast<int>(shape.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("redistribute: a tensor of shape ",
                     crosshatch::ToString(shape), " from ", describe()));
  }
  if (std::any_of(shape.begin(), shape.end(),
                  [](int64_t size) { return size < 0; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "redistribute: negative size in ", crosshatch::ToString(shape)));
  }
  for (const auto& by_axis :
       {model.bytes_per_launch_of_axis, model.weight_of_byte_by_axis}) {
    if (by_axis.empty()) continue;
    if (static_cast<int>(by_axis.size()) != from.mesh().ndim()) {
      return absl::InvalidArgumentError(
          absl::StrCat("redistribute: the cost model has weights of ",
                       by_axis.size(), " axes of ", describe()));
    }
    if (*std::min_element(by_axis.begin(), by_axis.end()) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "redistribute: the cost model has a negative weight for an axis of ",
          describe()));
    }
  }
  RedistributeProblem problem = {from, to, shape, element_size, model};
  if (max_elements.has_value()) problem.max_elements = *max_elements;
  std::optional<Steps> steps = LightestSteps(problem);
  if (!steps.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("redistribute: no plan keeps within ", *max_elements,
                     " elements on each rank for a tensor of shape ",
                     crosshatch::ToString(shape), " from ", describe()));
  }
  RedistributePlan plan = {.from = from, .to = to};
  plan.least_bytes = RedistributeLowerBound(from, to, shape) * element_size;
  HeldElements held(from, shape);
  plan.steps = *std::move(steps);
  for (const RedistributeStep& step : plan.steps) {
    plan.cost += StepCost(step, shape, element_size);
    held.Run(step, shape);
  }
  plan.peak_elements = held.peak();
  return plan;
}

}  // namespace crosshatch
