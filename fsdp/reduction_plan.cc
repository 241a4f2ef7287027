// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/reduction_plan.h"

#include "absl/strings/str_cat.h"

namespace crosshatch::fsdp {
namespace {

using Op = ReductionOp;
using Buffer = ReductionBuffer;
using On = ReductionStream;

const char* Name(Op op) {
  switch (op) {
    case Op::kScale:
      return "scale";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kHook:
      return "hook";
    case Op::kCopy:
      return "copy";
    case Op::kAdd:
      return "add";
    case Op::kPublish:
      return "show";
  }
  return "?";
}

const char* Name(Buffer buffer) {
  switch (buffer) {
    case Buffer::kFull:
      return "full";
    case Buffer::kPartial:
      return "partial";
    case Buffer::kReduced:
      return "reduced";
    case Buffer::kSharded:
      return "sharded";
  }
  return "?";
}

const char* Name(On stream) {
  switch (stream) {
    case On::kCompute:
      return "compute";
    case On::kReduceScatter:
      return "reduce_scatter";
    case On::kAllReduce:
      return "all_reduce";
    case On::kHook:
      return "hook";
    case On::kToHost:
      return "to_host";
  }
  return "?";
}

}  // namespace

std::string ReductionStep::ToString() const {
  std::string text = Name(op);
  const bool moves =
      op == Op::kReduceScatter || op == Op::kCopy || op == Op::kAdd;
  if (moves) absl::StrAppend(&text, " ", Name(from), " ->");
  absl::StrAppend(&text, " ", Name(to));
  if (scale != 1) absl::StrAppend(&text, " times ", scale);
  absl::StrAppend(&text, " on ", Name(stream));
  return text;
}

bool ReductionPlan::needs_reduced() const {
  for (const ReductionStep& step : steps) {
    if (step.to == Buffer::kReduced) return true;
  }
  return false;
}

std::string ReductionPlan::ToString() const {
  std::string text;
  for (const ReductionStep& step : steps) {
    absl::StrAppend(&text, step.ToString(), "\n");
  }
  return text;
}

GradientDivision PlanGradientDivision(DType reduce_dtype, double factor,
                                      bool replicated, bool force_sum) {
  GradientDivision division;
  if (force_sum) {
    division.after = 1 / factor;
  } else if (reduce_dtype == kFloat16 && factor > 1) {
    double power = 1;
    while (power * power < factor) power *= 2;
    division.before = 1 / power;
    (replicated ? division.all_reduce : division.reduce_scatter) =
        power / factor;
  } else {
    division.reduce_scatter = 1 / factor;
  }
  return division;
}

ReductionPlan PlanReduction(const ReductionFacts& facts) {
  ReductionPlan plan;
  const GradientDivision& division = facts.division;
  if (division.before != 1) {
    plan.steps.push_back({.op = Op::kScale,
                          .to = Buffer::kFull,
                          .stream = On::kCompute,
                          .scale = division.before});
  }
  const auto reduce_scatter = [&](Buffer to) {
    plan.steps.push_back({.op = Op::kReduceScatter,
                          .from = Buffer::kFull,
                          .to = to,
                          .stream = On::kReduceScatter,
                          .scale = division.reduce_scatter});
  };
  if (facts.replicated && !facts.sums_replicas) {
    plan.result = Buffer::kPartial;
    reduce_scatter(facts.has_partial ? Buffer::kReduced : Buffer::kPartial);
    if (facts.has_partial) {
      plan.steps.push_back({.op = Op::kAdd,
                            .from = Buffer::kReduced,
                            .to = Buffer::kPartial,
                            .stream = On::kReduceScatter});
    }
    return plan;
  }

  // Reduces straight to the sharded gradients if nothing else reads the result.
  const bool straight = !facts.accumulates && !facts.offloaded &&
                        facts.reduce_dtype == facts.shard_dtype;
  const Buffer reduced = straight ? Buffer::kSharded : Buffer::kReduced;
  reduce_scatter(reduced);
  On last = On::kReduceScatter;
  if (facts.has_partial) {
    plan.steps.push_back({.op = Op::kAdd,
                          .from = Buffer::kPartial,
                          .to = reduced,
                          .stream = last});
  }
  if (facts.replicated) {
    last = On::kAllReduce;
    plan.steps.push_back({.op = Op::kAllReduce,
                          .to = reduced,
                          .stream = last,
                          .scale = division.all_reduce});
  }
  if (facts.hook) {
    if (facts.hook_stream) last = On::kHook;
    plan.steps.push_back({.op = Op::kHook, .to = reduced, .stream = last});
  }
  if (division.after != 1) {
    plan.steps.push_back({.op = Op::kScale,
                          .to = reduced,
                          .stream = last,
                          .scale = division.after});
  }
  if (facts.offloaded) last = On::kToHost;
  if (!straight) {
    plan.steps.push_back({.op = facts.accumulates ? Op::kAdd : Op::kCopy,
                          .from = reduced,
                          .to = Buffer::kSharded,
                          .stream = last});
  }
  plan.steps.push_back(
      {.op = Op::kPublish, .to = Buffer::kSharded, .stream = last});
  return plan;
}

}  // namespace crosshatch::fsdp
