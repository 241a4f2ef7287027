// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/local_map.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
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
                     " requires a gradient, which would differ between ranks; "
                     "declare the layouts of both with FromLocal");
    }
    return absl::OkStatus();
  }
  if (!input.is_distributed()) {
    return Invalid(what, "the plain tensor ", input.Describe(),
                   " is declared as ", spec.layout->ToString());
  }
  CH_RETURN_IF_ERROR(CheckLayout(what, *spec.layout, mesh, input.ndim()));
  const Layout& actual = LayoutOf(input);
  if (actual.mesh() != mesh.layout()) {
    return Invalid(what, input.Describe(), " is not on ", mesh.ToString());
  }
  if (actual != *spec.layout && !redistribute) {
    return Invalid(what, "has layout ", actual.ToString(), ", is declared ",
                   spec.layout->ToString(),
                   "; redistribute it, or set redistribute_inputs");
  }
  if (spec.grad_layout.has_value()) {
    const std::string name = absl::StrCat("LocalMap: ", what);
    return differentiated
               ? CheckBoundaryGradLayout(name, *spec.layout, *spec.grad_layout)
               : CheckGradLayout(name, *spec.layout, *spec.grad_layout);
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
  return CheckGradLayout(absl::StrCat("LocalMap: ", what), spec.layout,
                         *spec.grad_layout);
}

// Checks that depend on whether the function's output has a gradient.
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
  return CheckBoundaryGradLayout(absl::StrCat("LocalMap: ", what), spec.layout,
                                 *spec.grad_layout);
}

std::string InputName(size_t i) { return absl::StrCat("input ", i); }
std::string OutputName(size_t i) { return absl::StrCat("output ", i); }

}  // namespace

absl::StatusOr<TensorList> LocalMap(LocalFunction function, TensorSpan inputs,
                                    const DeviceMesh& mesh,
                                    const LocalMapSpec& spec) {
  if (!mesh.coordinate().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "LocalMap: rank ", mesh.world().world_rank(), " is not on ",
        mesh.ToString(), " and has no part of a tensor on it"));
  }
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
