// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dtensor_handler.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/boundary_ops.h"
#include "crosshatch/dtensor/cross_mesh_op.h"
#include "crosshatch/dtensor/dispatch_plan.h"
#include "crosshatch/dtensor/op_rules.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using CallKey = absl::InlinedVector<int64_t, 48>;
using Locals = absl::InlinedVector<Tensor, 4>;

// In place of a layout's number in the key.
constexpr int64_t kPlain = -1;
constexpr int64_t kUndefined = -2;

CallKey KeyOf(const Op& op, TensorSpan inputs) {
  OpKey attributes;
  op.AppendKey(attributes);
  CallKey key;
  key.push_back(reinterpret_cast<int64_t>(&op.info()));
  key.push_back(static_cast<int64_t>(attributes.size()));
  key.insert(key.end(), attributes.begin(), attributes.end());
  for (const Tensor& input : inputs) {
    if (!input.defined()) {
      key.push_back(kUndefined);
      continue;
    }
    key.push_back(input.is_distributed()
                      ? DTensorHandler::Of(input).interned().id
                      : kPlain);
    key.push_back(static_cast<int64_t>(input.dtype()) << 32 | input.ndim());
    key.insert(key.end(), input.sizes().begin(), input.sizes().end());
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

const OpRuleEntry* RuleOf(const DTensorRuntime& runtime, const OpInfo& info) {
  const OpRuleEntry* own = runtime.UserRule(info);
  if (own != nullptr) return own;
  const OpRuleTable& table = BuiltinOpRules();
  auto found = table.find(&info);
  return found == table.end() ? nullptr : &found->second;
}

void CheckInputs(const RuleCall& call, const OpRuleEntry& entry) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const RuleInput& input = call.inputs[i];
    CH_CHECK(input.layout.mesh() == call.mesh)
        << DescribeCall(call) << ": input " << i << " is on "
        << input.layout.mesh().ToString() << ", others are on "
        << call.mesh.ToString();
    const bool may_be_plain =
        input.sizes.empty() || (entry.plain_inputs >> i & 1) != 0;
    CH_CHECK(!input.plain || may_be_plain)
        << DescribeCall(call) << ": input " << i
        << " is a plain tensor among distributed ones; if it is equal on all "
           "ranks of the mesh, wrap it by Replicated (dtensor/dtensor.h)";
  }
}

void CheckResult(const RuleCall& call, const RuleResult& result) {
  CH_CHECK_EQ(result.inputs.size(), call.inputs.size())
      << "from the rule of " << DescribeCall(call);
  if (!call.op.info().in_place) return;
  CH_CHECK(result.inputs[0] == call.inputs[0].layout)
      << DescribeCall(call) << ": the op writes in place and its rule asks for "
      << result.inputs[0].ToString();
}

std::unique_ptr<DispatchPlan> MakePlan(DTensorRuntime& runtime, const Op& op,
                                       TensorSpan inputs,
                                       const InternedLayout& first) {
  const MeshLayout& mesh = first.layout.mesh();
  const std::vector<RuleInput> described = RuleInputsOf(inputs, mesh);
  const RuleCall call = {op, described, mesh, first.here};
  const OpInfo& info = op.info();
  const OpRuleEntry* entry = RuleOf(runtime, info);
  CH_CHECK(entry != nullptr)
      << DescribeCall(call) << ": the op has no sharding rule; RegisterOpRule "
      << "(dtensor/register_op_rule.h) adds one";
  CheckInputs(call, *entry);
  RuleResult result = entry->rule(call);
  CheckResult(call, result);

  auto plan = std::make_unique<DispatchPlan>();
  for (size_t i = 0; i < described.size(); ++i) {
    plan->redistribute.emplace_back();
    const RuleInput& input = described[i];
    if (!input.defined || result.inputs[i] == input.layout) continue;
    absl::StatusOr<RedistributePlan> path = PlanRedistribute(
        input.layout, result.inputs[i], input.sizes, SizeOf(input.dtype));
    CH_CHECK_OK(path.status());
    PreparedPlan prepared = Prepare(*std::move(path), input.sizes, first.here);
    if (prepared.stays) continue;
    plan->redistribute[i] = std::make_unique<PreparedPlan>(std::move(prepared));
    plan->redistributes = true;
  }
  for (RuleResult::Output& output : result.outputs) {
    plan->outputs.push_back(
        {.layout = &runtime.Intern(output.layout),
         .sizes = output.sizes,
         .local_sizes = output.layout.LocalShape(output.sizes, first.here)});
  }
  plan->local_op = std::move(result.local_op);
  plan->program = std::move(result.program);
  plan->in_place = info.in_place;
  plan->view = info.view;
  return plan;
}

// The local parts of the inputs as the plan wants them.
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
          << "distributed; wrap it by FromLocal";
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

TensorList DTensorHandler::Dispatch(const Op& op, TensorSpan inputs) const {
  const OpInfo& info = op.info();
  if (&info == &RedistributeOp::kInfo) {
    return static_cast<const RedistributeOp&>(op).Run(inputs[0]);
  }
  if (&info == &CrossMeshOp::kInfo) {
    return static_cast<const CrossMeshOp&>(op).Run(inputs[0]);
  }
  if (&info == &ToLocalOp::kInfo) {
    return static_cast<const ToLocalOp&>(op).Run(inputs[0]);
  }
  CH_CHECK(&info != &FromLocalOp::kInfo)
      << "from_local: " << inputs[0].Describe() << " is distributed already";

  DTensorRuntime& runtime = layout_.runtime;
  const CallKey key = KeyOf(op, inputs);
  auto& plans = runtime.dispatch_plans();
  auto found = plans.find(absl::Span<const int64_t>(key));
  if (found == plans.end()) {
    if (plans.size() >= DTensorRuntime::kMaxPlans) plans.clear();
    std::shared_ptr<DispatchPlan> made = MakePlan(runtime, op, inputs, layout_);
    found =
        plans
            .emplace(absl::InlinedVector<int64_t, 16>(key.begin(), key.end()),
                     std::move(made))
            .first;
  }
  const DispatchPlan& plan = *found->second;
  // A user's program may run distributed ops, and these may empty the cache.
  const std::shared_ptr<DispatchPlan> kept =
      plan.program != nullptr ? found->second : nullptr;

  const Locals locals = LocalsOf(op, inputs, plan, runtime, mesh_);
  if (plan.in_place) {
    const Tensor& written = inputs[0];
    CH_CHECK(written.is_distributed() && !Of(written).unwritable())
        << info.name << ": " << written.Describe() << " is not written to: "
        << (written.is_distributed()
                ? "a view that had to be copied would not reach the tensor "
                  "that it is a view of, and what was redistributed without "
                  "communication may be a part of another tensor, of which "
                  "other ranks have copies; Clone it"
                : "a plain tensor cannot take what is distributed");
  }
  TensorList outputs;
  if (plan.program != nullptr) {
    const DTensorRuntime::OriginScope origin(runtime,
                                             CommOrigin::Op(info.name));
    outputs = plan.program->Run(op, locals, mesh_);
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
        << " asks for " << ToString(output.local_sizes);
    const bool unwritable =
        plan.view && (Of(inputs[0]).unwritable() ||
                      outputs[i].storage() != Of(inputs[0]).local().storage());
    const DType dtype = outputs[i].dtype();
    outputs[i] = MakeHandled(
        std::make_shared<DTensorHandler>(std::move(outputs[i]), *output.layout,
                                         mesh_, unwritable),
        output.sizes, dtype);
  }
  return outputs;
}

std::string DTensorHandler::Describe() const {
  return absl::StrCat(local_.Describe(), " here|", layout().ToString(), " on ",
                      mesh_.ToString());
}

Tensor DTensorHandler::ConformGradient(const Tensor& leaf,
                                       Tensor gradient) const {
  CH_CHECK(gradient.is_distributed())
      << "the gradient of the distributed tensor " << leaf.Describe()
      << " is the plain tensor " << gradient.Describe();
  if (Of(gradient).layout() != layout()) {
    return Apply1(RedistributeOp(layout(), CommOrigin::Implicit("backward")),
                  {gradient});
  }
  if (gradient.IsUnique()) {
    RankContext::Current().allocator().Reclassify(
        Of(gradient).local().storage()->block(), MemoryClass::kGradient);
  }
  return gradient;
}

uint32_t DTensorHandler::Version() const { return local_.storage()->version(); }

std::string DTensorHandler::MemoryOwner() const {
  return MemoryOwnerOf(local_);
}

bool DTensorHandler::OwnsMemory() const {
  // A view of a part would keep the rest from being freed.
  return !unwritable_ && local_.IsUnique() && local_.is_contiguous() &&
         local_.storage()->bytes() == local_.numel() * SizeOf(local_.dtype());
}

void DTensorHandler::WaitFor(InFlight& work) {
  Stream& stream = RankContext::Current().current_stream();
  for (const Stream* ordered : work.ordered) {
    if (ordered == &stream) return;
  }
  stream.Wait(work.written);
  work.ordered.push_back(&stream);
}

Tensor Wrap(Tensor local, const InternedLayout& layout, const DeviceMesh& mesh,
            Shape sizes, Event written, bool unwritable) {
  CH_CHECK(!local.is_distributed());
  CH_CHECK_EQ(static_cast<int>(sizes.size()), layout.layout.ndim());
  const Shape expected = layout.layout.LocalShape(sizes, layout.here);
  CH_CHECK(local.sizes() == expected)
      << "the shard of " << ToString(sizes) << " by "
      << layout.layout.ToString() << " on " << mesh.ToString() << " is "
      << ToString(expected) << " on rank " << mesh.world().rank()
      << ", the local tensor is " << ToString(local.sizes());
  const DType dtype = local.dtype();
  return MakeHandled(
      std::make_shared<DTensorHandler>(std::move(local), layout, mesh,
                                       unwritable, std::move(written)),
      std::move(sizes), dtype);
}

}  // namespace crosshatch
