// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/local_map.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

template <typename... Args>
absl::Status Invalid(const std::string& what, const Args&... args) {
  return absl::InvalidArgumentError(
      absl::StrCat("LocalMap: ", what, ": ", args...));
}

absl::Status CheckLayout(const std::string& what, const Layout& layout,
                         const DeviceMesh& mesh, int ndim) {
  if (layout.mesh() != mesh.layout()) {
    return Invalid(what, "the layout ", layout.ToString(), " is on ",
                   layout.mesh().ToString(), ", the mesh is ", mesh.ToString());
  }
  if (layout.ndim() != ndim) {
    return Invalid(what, "the layout ", layout.ToString(), " is of ",
                   layout.ndim(), " dims, the tensor has ", ndim);
  }
  return absl::OkStatus();
}

// That a gradient in `grad` is one of a tensor in `layout`: the table in
// local_map.h.
absl::Status CheckGradLayout(const std::string& what, const Layout& layout,
                             const Layout& grad, const DeviceMesh& mesh) {
  CH_RETURN_IF_ERROR(CheckLayout(absl::StrCat(what, "'s gradient"), grad, mesh,
                                 layout.ndim()));
  bool shards_agree = true;
  for (int d = 0; d < layout.ndim(); ++d) {
    shards_agree = shards_agree && layout.sharding(d) == grad.sharding(d);
  }
  if (!shards_agree) {
    return Invalid(what, "its gradient must be split as the tensor is, by ",
                   layout.ToString(), ", and is declared ", grad.ToString());
  }
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    const AxisState& state = layout.state_of_axis(axis);
    const AxisState& of_grad = grad.state_of_axis(axis);
    if (!of_grad.is_partial()) continue;
    if (state.is_partial()) {
      return Invalid(
          what, "each summand of ", layout.ToString(),
          " has the whole gradient, which is declared a sum itself: ",
          grad.ToString());
    }
    if (of_grad.op != ReduceOp::kSum) {
      return Invalid(what, "gradients add up, and this one is declared ",
                     grad.ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInput(const std::string& what, const Tensor& input,
                        const LocalMapSpec::Input& spec, const DeviceMesh& mesh,
                        bool redistribute) {
  const bool differentiated =
      input.requires_grad() && RankContext::Current().grad_enabled();
  if (!spec.layout.has_value()) {
    if (input.is_distributed()) {
      return Invalid(what, input.Describe(), " is declared plain");
    }
    if (differentiated) {
      return Invalid(what, "the plain tensor ", input.Describe(),
                     " requires a gradient, of which each rank would have its "
                     "own; FromLocal says what these are of the whole");
    }
    return absl::OkStatus();
  }
  if (!input.is_distributed()) {
    return Invalid(what, "the plain tensor ", input.Describe(),
                   " is declared to lie as ", spec.layout->ToString());
  }
  CH_RETURN_IF_ERROR(CheckLayout(what, *spec.layout, mesh, input.ndim()));
  const Layout& actual = LayoutOf(input);
  if (actual.mesh() != mesh.layout()) {
    return Invalid(what, input.Describe(), " is not on ", mesh.ToString());
  }
  if (actual != *spec.layout && !redistribute) {
    return Invalid(what, "lies as ", actual.ToString(), ", is declared ",
                   spec.layout->ToString(),
                   "; redistribute it, or set redistribute_inputs");
  }
  if (spec.grad_layout.has_value()) {
    return CheckGradLayout(what, *spec.layout, *spec.grad_layout, mesh);
  }
  if (differentiated) {
    return Invalid(what, input.Describe(),
                   " requires a gradient and no grad_layout is declared");
  }
  return absl::OkStatus();
}

absl::Status CheckOutput(const std::string& what,
                         const LocalMapSpec::Output& spec,
                         const DeviceMesh& mesh) {
  CH_RETURN_IF_ERROR(CheckLayout(what, spec.layout, mesh,
                                 static_cast<int>(spec.sizes.size())));
  if (!spec.grad_layout.has_value()) return absl::OkStatus();
  return CheckGradLayout(what, spec.layout, *spec.grad_layout, mesh);
}

// What depends on whether the function's output has a gradient.
absl::Status CheckResult(const std::string& what, const Tensor& local,
                         const LocalMapSpec::Output& spec) {
  CH_CHECK(local.defined() && !local.is_distributed())
      << "LocalMap: " << what << ": the function gave "
      << (local.defined() ? local.Describe() : "an undefined tensor")
      << " instead of a local one";
  if (!local.requires_grad()) return absl::OkStatus();
  if (!spec.grad_layout.has_value()) {
    return Invalid(what, local.Describe(),
                   " requires a gradient and no grad_layout is declared");
  }
  for (const AxisState& state : spec.layout.axis_states()) {
    if (state.is_partial() && state.op != ReduceOp::kSum) {
      return Invalid(what,
                     "gradients go through pending sums only, and it is "
                     "declared ",
                     spec.layout.ToString());
    }
  }
  return absl::OkStatus();
}

std::string InputName(size_t i) { return absl::StrCat("input ", i); }
std::string OutputName(size_t i) { return absl::StrCat("output ", i); }

}  // namespace

absl::StatusOr<TensorList> LocalMap(LocalFunction function, TensorSpan inputs,
                                    const DeviceMesh& mesh,
                                    const LocalMapSpec& spec) {
  if (inputs.size() != spec.inputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("LocalMap: ", inputs.size(), " inputs, ",
                     spec.inputs.size(), " are declared"));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    CH_RETURN_IF_ERROR(CheckInput(InputName(i), inputs[i], spec.inputs[i], mesh,
                                  spec.redistribute_inputs));
  }
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    CH_RETURN_IF_ERROR(CheckOutput(OutputName(i), spec.outputs[i], mesh));
  }

  TensorList locals;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const LocalMapSpec::Input& input = spec.inputs[i];
    if (!input.layout.has_value()) {
      locals.push_back(inputs[i]);
      continue;
    }
    const Tensor lying = LayoutOf(inputs[i]) == *input.layout
                             ? inputs[i]
                             : Redistribute(inputs[i], *input.layout);
    locals.push_back(ToLocal(lying, input.grad_layout.has_value()
                                        ? *input.grad_layout
                                        : *input.layout));
  }
  const TensorList results = function(locals);
  if (results.size() != spec.outputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("LocalMap: the function gave ", results.size(),
                     " outputs, ", spec.outputs.size(), " are declared"));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    CH_RETURN_IF_ERROR(CheckResult(OutputName(i), results[i], spec.outputs[i]));
  }
  TensorList outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    const LocalMapSpec::Output& output = spec.outputs[i];
    const Shape here =
        output.layout.LocalShape(output.sizes, *mesh.coordinate());
    CH_CHECK(results[i].sizes() == here)
        << "LocalMap: output " << i << ": the function gave "
        << results[i].Describe() << "; the shard of " << ToString(output.sizes)
        << " by " << output.layout.ToString() << " here is " << ToString(here);
    outputs.push_back(FromLocal(
        results[i], mesh, output.layout, output.sizes,
        output.grad_layout.has_value() ? *output.grad_layout : output.layout));
  }
  return outputs;
}

}  // namespace crosshatch
