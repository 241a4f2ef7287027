// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dispatch/dispatch_cache.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/dispatch/redistribute_op.h"
#include "crosshatch/dtensor/dispatch/replica_check.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using CallKey = absl::InlinedVector<int64_t, 48>;
using Locals = absl::InlinedVector<Tensor, 4>;

// Replace a layout's number in the key.
constexpr int64_t kPlain = -1;
constexpr int64_t kUndefined = -2;

CallKey KeyOf(const Op& op, TensorSpan inputs) {
  OpKey attributes;
  op.AppendKey(attributes);
  size_t size = 2 + attributes.size();
  for (const Tensor& input : inputs) {
    size += input.defined() ? 2 + input.sizes().size() : 1;
  }
  CallKey key(size);
  int64_t* next = key.data();
  *next++ = reinterpret_cast<int64_t>(&op.info());
  *next++ = static_cast<int64_t>(attributes.size());
  next = std::copy(attributes.begin(), attributes.end(), next);
  for (const Tensor& input : inputs) {
    if (!input.defined()) {
      *next++ = kUndefined;
      continue;
    }
    *next++ = input.is_distributed() ? DTensorHandler::Of(input).interned().id
                                     : kPlain;
    *next++ = static_cast<int64_t>(input.dtype()) << 32 | input.ndim();
    next = std::copy(input.sizes().begin(), input.sizes().end(), next);
  }
  return key;
}

std::vector<RuleInput> RuleInputsOf(TensorSpan inputs, const MeshLayout& mesh) {
  std::vector<RuleInput> described;
  for (const Tensor& input : inputs) {
    if (!input.defined()) {
      described.push_back({.layout = Layout::Replicated(mesh, 0),
                           .plain = true,
                           .defined = false});
      continue;
    }
    const bool plain = !input.is_distributed();
    described.push_back({.layout = plain
                                       ? Layout::Replicated(mesh, input.ndim())
                                       : DTensorHandler::Of(input).layout(),
                         .sizes = input.sizes(),
                         .dtype = input.dtype(),
                         .plain = plain});
  }
  return described;
}

const OpRuleEntry* RuleOf(const DispatchCache& cache, const OpInfo& info) {
  const OpRuleEntry* own = cache.UserRule(info);
  if (own != nullptr) return own;
  const OpRuleTable& table = BuiltinOpRules();
  auto found = table.find(&info);
  return found == table.end() ? nullptr : &found->second;
}

void CheckInputs(const RuleCall& call, const OpRuleEntry& entry,
                 TensorSpan inputs) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const RuleInput& input = call.inputs[i];
    CH_CHECK(input.layout.mesh() == call.mesh)
        << DescribeCall(call) << ": input " << i << " is on "
        << input.layout.mesh().ToString() << ", others are on "
        << call.mesh.ToString()
        << "; bring it to theirs: RedistributeAcross (dtensor/cross_mesh.h), "
           "or FullTensor of it, which every rank then has whole, and "
           "Replicated (dtensor/dtensor.h)";
    const bool may_be_plain =
        input.sizes.empty() || (entry.plain_inputs >> i & 1) != 0;
    if (!input.plain || may_be_plain) continue;
    // A tensor without memory has an error of its own.
    inputs[i].storage()->CheckAttached();
    // The layout of its gradient is unknown.
    CH_CHECK(!inputs[i].requires_grad())
        << DescribeCall(call) << ": input " << i
        << " is a plain tensor among distributed ones and requires a gradient: "
        << "probably a parameter that no style of the plan distributes; give "
        << "its module a style (tp::SequenceParallel replicates parameters), "
        << "replicate the rest (tp::ParallelizeOptions::replicate_rest) or "
        << "distribute it by nn::DistributeParameter. For another tensor, "
        << "declare its layout and that of its gradient with FromLocal "
        << "(dtensor/dtensor.h), or set use_local_output in the style of the "
        << "module that returned the distributed input";
    CH_CHECK(false) << DescribeCall(call) << ": input " << i
                    << " is a plain tensor among distributed ones; if it is "
                    << "equal on all ranks of the mesh, wrap it by Replicated "
                    << "(dtensor/dtensor.h), or set use_local_output in the "
                    << "style of the module that returned the others";
  }
}

void CheckResult(const RuleCall& call, const RuleResult& result) {
  CH_CHECK_EQ(result.inputs.size(), call.inputs.size())
      << "from the rule of " << DescribeCall(call);
  if (!call.op.info().in_place) return;
  CH_CHECK(result.inputs[0] == call.inputs[0].layout)
      << DescribeCall(call) << ": the op writes in place and its rule needs "
      << result.inputs[0].ToString();
}

std::unique_ptr<DispatchPlan> MakePlan(const DispatchCache& cache, const Op& op,
                                       TensorSpan inputs,
                                       const InternedLayout& first) {
  const MeshLayout& mesh = first.layout.mesh();
  const std::vector<RuleInput> described = RuleInputsOf(inputs, mesh);
  const RuleCall call = {op, described, mesh, first.here};
  const OpInfo& info = op.info();
  const OpRuleEntry* entry = RuleOf(cache, info);
  CH_CHECK(entry != nullptr)
      << DescribeCall(call) << ": the op has no sharding rule; RegisterOpRule "
      << "(dtensor/dispatch/register_op_rule.h) adds one";
  CheckInputs(call, *entry, inputs);
  RuleResult result = entry->rule(call);
  CheckResult(call, result);

  auto plan = std::make_unique<DispatchPlan>();
  for (size_t i = 0; i < described.size(); ++i) {
    plan->redistribute.emplace_back();
    const RuleInput& input = described[i];
    if (!input.defined || result.inputs[i] == input.layout) continue;
    PreparedPlan prepared = Prepare(input.layout, result.inputs[i], input.sizes,
                                    input.dtype, first.here);
    if (i == 0) plan->moves_apart = prepared.plan.cost.launches > 0;
    if (prepared.stays) continue;
    plan->redistribute[i] = std::make_unique<PreparedPlan>(std::move(prepared));
    plan->redistributes = true;
  }
  for (RuleResult::Output& output : result.outputs) {
    plan->outputs.push_back(
        {.layout = &first.runtime.Intern(output.layout),
         .sizes = output.sizes,
         .local_sizes = output.layout.LocalShape(output.sizes, first.here)});
  }
  plan->local_op = std::move(result.local_op);
  plan->program = std::move(result.program);
  plan->in_place = info.in_place;
  // The result of a program has memory of its own. If the program implements a
  // view, the result is a copy in place of an alias.
  const bool by_program = plan->program != nullptr;
  plan->view = info.view && (!by_program || info.view_history != nullptr);
  plan->moves_first =
      by_program ||
      (described[0].defined &&
       !SameShards(described[0].layout, result.inputs[0], described[0].sizes));
  return plan;
}

struct ViewResult {
  Shape strides;
  PartInfo info;
};

// Returns an alias of the operand on every rank if the global strides allow a
// view. Returns kAliasOrCopy if some rank's part may have to be copied.
// Otherwise copies on every rank. May replace `output`.
ViewResult FinishView(const Op& op, const Tensor& input,
                      const DispatchPlan& plan, const Shape& sizes,
                      Tensor& output) {
  const DTensorHandler& from = DTensorHandler::Of(input);
  std::optional<Shape> strides = op.AliasStrides(input, input.strides());
  if (!strides.has_value()) {
    // A local part may allow a view although the global strides do not.
    if (output.storage().get() == &from.memory() || !output.is_contiguous()) {
      output = CloneOp().Forward({output})[0];
    }
    return {ContiguousStrides(sizes), {}};
  }
  // Strides of all ones allow a view only if any strides do.
  const bool any_rank_may_copy =
      plan.moves_first ||
      (!from.regular() &&
       !op.AliasStrides(input, Shape(input.sizes().size(), 1)).has_value());
  if (any_rank_may_copy) {
    // An op that returns the same values, not a view of another form: the
    // communicated values are independent of the source.
    if (op.info().view_history == nullptr && plan.moves_apart) {
      return {ContiguousStrides(sizes), {}};
    }
    return {*std::move(strides), from.AliasOrCopyInfo()};
  }
  CH_CHECK(output.storage().get() == &from.memory())
      << op.info().name << " of " << input.Describe()
      << ": the part was copied, as a view of the whole was expected";
  PartInfo info;
  if (from.is_alias_or_copy()) {
    info = from.AliasOrCopyInfo();
  } else {
    info.aliasing = Aliasing::kAlias;
  }
  info.regular = from.regular();
  return {*std::move(strides), std::move(info)};
}

// Returns a result's part, if it is not a view: contiguous and in its own
// memory. Copies `part` if the op or the user's program returned another.
Tensor OwnPart(Tensor&& part, TensorSpan inputs) {
  const bool shared =
      !(part.IsOnlyHandle() && part.storage().use_count() == 1) &&
      std::any_of(inputs.begin(), inputs.end(), [&](const Tensor& input) {
        return input.defined() &&
               part.storage().get() ==
                   (input.is_distributed() ? &DTensorHandler::Of(input).memory()
                                           : input.storage().get());
      });
  if (!shared && part.is_contiguous()) return std::move(part);
  return CloneOp().Forward({part})[0];
}

// Returns the local parts of the inputs in the layouts of the plan.
Locals LocalsOf(const Op& op, TensorSpan inputs, const DispatchPlan& plan,
                DTensorRuntime& runtime, const DeviceMesh& mesh) {
  Locals locals;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& input = inputs[i];
    if (!input.defined()) {
      locals.emplace_back();
    } else if (input.is_distributed()) {
      locals.push_back(DTensorHandler::Of(input).local());
    } else {
      CH_CHECK(!input.requires_grad())
          << op.info().name << ": input " << i << ", a plain tensor among "
          << "distributed ones, requires a gradient, which would be "
          << "distributed; wrap it by FromLocal, or set use_local_output in "
          << "the style of the module that returned the others";
      CompareReplicasOfInput(op.info().name, input, mesh,
                             Layout::Replicated(mesh.layout(), input.ndim()),
                             input.sizes());
      locals.push_back(input);
    }
    if (plan.redistributes && plan.redistribute[i] != nullptr) {
      locals.back() =
          runtime.Redistribute(*plan.redistribute[i], locals.back(), mesh,
                               CommOrigin::Implicit(op.info().name));
    }
  }
  return locals;
}

}  // namespace

DispatchCache& DispatchCache::Current() {
  return RankContext::Current().Get<DispatchCache>();
}

const OpRuleEntry* DispatchCache::UserRule(const OpInfo& info) const {
  auto found = rules_.find(&info);
  return found == rules_.end() ? nullptr : &found->second;
}

void DispatchCache::AddUserRule(const OpInfo& info, OpRuleEntry entry) {
  rules_[&info] = std::move(entry);
  // Plans of an earlier rule of the op are invalid.
  plans_.clear();
}

void RegisterOpRule(const OpInfo& info, OpRule rule, uint32_t plain_inputs) {
  DispatchCache::Current().AddUserRule(info, {std::move(rule), plain_inputs});
}

TensorList DTensorHandler::Dispatch(const Op& op, TensorSpan inputs) const {
  const OpInfo& info = op.info();
  DTensorRuntime& runtime = interned().runtime;
  DispatchCache& cache = DispatchCache::Current();
  const CallKey key = KeyOf(op, inputs);
  auto& plans = cache.plans();
  auto found = plans.find(absl::Span<const int64_t>(key));
  if (found == plans.end()) {
    // It never has a plan. Testing here keeps calls with a plan fast.
    if (dynamic_cast<const WholeOp*>(&op) != nullptr) return op.Forward(inputs);
    if (plans.size() >= DTensorRuntime::kMaxPlans) plans.clear();
    std::shared_ptr<DispatchPlan> made =
        MakePlan(cache, op, inputs, interned());
    found =
        plans
            .emplace(absl::InlinedVector<int64_t, 16>(key.begin(), key.end()),
                     std::move(made))
            .first;
  }
  const DispatchPlan& plan = *found->second;
  // A user's program may run distributed ops, which may clear the cache.
  const std::shared_ptr<DispatchPlan> kept =
      plan.program != nullptr ? found->second : nullptr;

  if (plan.in_place) {
    const Tensor& written = inputs[0];
    CH_CHECK(written.is_distributed())
        << info.name << ": " << written.Describe() << " cannot be written: "
        << "it is a plain tensor, and the result is distributed";
    CH_CHECK(!Repeats(written.sizes(), written.strides()))
        << info.name << " into an expanded tensor, " << written.Describe()
        << ": several of its elements are one";
    Of(written).WritableLocal(info.name);
  }
  const Locals locals = LocalsOf(op, inputs, plan, runtime, mesh());
  TensorList outputs;
  if (plan.program != nullptr) {
    const CommOriginScope origin(CommOrigin::Op(info.name));
    outputs = plan.program(op, locals, mesh());
  } else {
    outputs = (plan.local_op != nullptr ? *plan.local_op : op).Forward(locals);
  }

  CH_CHECK_EQ(outputs.size(), plan.outputs.size())
      << "outputs of " << info.name << " and of its rule";
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    if (i == 0 && plan.in_place) {
      outputs[0] = inputs[0];
      continue;
    }
    const DispatchPlan::Output& output = plan.outputs[i];
    CH_CHECK(outputs[i].sizes() == output.local_sizes)
        << info.name << ": output " << i << " is locally "
        << outputs[i].Describe() << ", its layout "
        << output.layout->layout.ToString() << " of " << ToString(output.sizes)
        << " needs " << ToString(output.local_sizes);
    const DType dtype = outputs[i].dtype();
    if (i == 0 && plan.view) {
      ViewResult view =
          FinishView(op, inputs[0], plan, output.sizes, outputs[0]);
      outputs[0] = Like(std::move(outputs[0]), *output.layout, output.sizes,
                        std::move(view.strides), std::move(view.info));
      continue;
    }
    outputs[i] = MakeHandled(
        std::make_shared<DTensorHandler>(OwnPart(std::move(outputs[i]), inputs),
                                         *output.layout, mesh()),
        output.sizes, dtype);
  }
  return outputs;
}

Tensor DTensorHandler::ConformGradient(const Tensor& leaf,
                                       Tensor gradient) const {
  CH_CHECK(gradient.is_distributed())
      << "the gradient of the distributed tensor " << leaf.Describe()
      << " is the plain tensor " << gradient.Describe();
  if (const Layout& from = Of(gradient).layout(); from != layout()) {
    // The pending sum of a leaf that several ranks use is part of an op.
    const CommOrigin origin = IsBeforeReduction(from, layout())
                                  ? CommOrigin::Op("gradient")
                                  : CommOrigin::Implicit("backward");
    return Apply1(RedistributeOp(layout(), origin), {gradient});
  }
  if (gradient.IsUnique()) {
    RankContext::Current().allocator().Reclassify(
        Of(gradient).local().storage()->block(), MemoryClass::kGradient);
  }
  return gradient;
}

Tensor DTensorHandler::Like(Tensor local, const InternedLayout& layout,
                            Shape sizes, Shape strides, PartInfo info) const {
  const DType dtype = local.dtype();
  return MakeHandled(std::make_shared<DTensorHandler>(std::move(local), layout,
                                                      mesh(), std::move(info)),
                     std::move(sizes), std::move(strides), dtype);
}

Tensor Wrap(Tensor local, const InternedLayout& layout, const DeviceMesh& mesh,
            Shape sizes, PartInfo info) {
  CH_CHECK(!local.is_distributed());
  CH_CHECK_EQ(static_cast<int>(sizes.size()), layout.layout.ndim());
  const Shape expected = layout.layout.LocalShape(sizes, layout.here);
  CH_CHECK(local.sizes() == expected)
      << "the shard of " << ToString(sizes) << " by "
      << layout.layout.ToString() << " on " << mesh.ToString() << " is "
      << ToString(expected) << " on rank " << mesh.world().world_rank()
      << ", the local tensor is " << ToString(local.sizes());
  const DType dtype = local.dtype();
  return MakeHandled(std::make_shared<DTensorHandler>(std::move(local), layout,
                                                      mesh, std::move(info)),
                     std::move(sizes), dtype);
}

}  // namespace crosshatch
