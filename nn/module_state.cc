// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/module_state.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/in_place.h"

namespace crosshatch::nn {
namespace {

constexpr char kWhat[] = "ModuleState";

absl::Status CheckWhole(const std::string& name, const Parameter& parameter) {
  const Tensor& data = parameter.data();
  if (!data.is_distributed() || !LayoutOf(data).is_partial()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      kWhat, ": parameter ", name, " holds partial sums: ", data.Describe()));
}

}  // namespace

std::vector<NamedParameter> NamedState(Module& module) {
  std::vector<NamedParameter> all = module.NamedParameters();
  for (const auto& [name, buffer] : module.NamedBuffers()) {
    if (buffer->persistent()) all.push_back({name, buffer});
  }
  return all;
}

absl::Status ModuleState::CheckAlive() const {
  if (life_->module != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      kWhat, ": its module ", *life_->label,
      " was destroyed; keep the module for as long as its ModuleState"));
}

absl::StatusOr<StateDict> ModuleState::State() {
  CH_RETURN_IF_ERROR(CheckAlive());
  CH_RETURN_IF_ERROR(CheckReadable(module_, kWhat));
  StateDict state;
  for (const auto& [name, parameter] : NamedState(module_)) {
    CH_RETURN_IF_ERROR(CheckWhole(name, *parameter));
    if (!parameter->has_memory()) {
      return absl::FailedPreconditionError(
          absl::StrCat(kWhat, ": parameter ", name,
                       " has no memory yet; call Module::Materialize"));
    }
    CH_RETURN_IF_ERROR(state.Add(name, parameter->data()));
  }
  return state;
}

absl::StatusOr<StateDict> ModuleState::StateToFill(
    const std::vector<std::string>& saved) {
  CH_RETURN_IF_ERROR(CheckAlive());
  CH_RETURN_IF_ERROR(CheckWritable(module_, kWhat));
  std::map<std::string, Parameter*> parameters;
  for (const auto& [name, parameter] : NamedState(module_)) {
    parameters.emplace(name, parameter);
  }
  std::vector<std::string> own;
  for (const auto& [name, parameter] : parameters) own.push_back(name);
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> names,
      MatchStateNames(absl::StrCat("this ", module_.type_name()), own, saved,
                      options_));
  StateDict state;
  std::vector<Parameter*> filled;
  for (const auto& [name, parameter] : parameters) {
    if (std::binary_search(names.begin(), names.end(), name)) {
      CH_RETURN_IF_ERROR(CheckWhole(name, *parameter));
      CH_RETURN_IF_ERROR(state.Add(name, parameter->data()));
      filled.push_back(parameter);
    } else if (!parameter->has_memory()) {
      return absl::FailedPreconditionError(absl::StrCat(
          kWhat, ": parameter ", name,
          " is not in the state that was kept and has no memory yet; call "
          "Module::Materialize before, for its first values"));
    }
  }
  // Non-persistent buffers: no state contains them, so nothing else fills them.
  std::vector<Parameter*> beside;
  for (const auto& [name, buffer] : module_.NamedBuffers()) {
    if (!buffer->persistent()) beside.push_back(buffer);
  }
  CH_RETURN_IF_ERROR(Materialize(beside, {}));
  std::vector<Parameter*> leased;
  for (Parameter* parameter : filled) {
    if (!parameter->has_memory()) leased.push_back(parameter);
  }
  LeaseParameters(filled);
  // NaN reveals parameters that are not filled after all.
  const NoGrad no_grad;
  for (Parameter* parameter : leased) {
    const Tensor data = WritableLocalTensor(parameter->data(), kWhat);
    if (IsFloatingPoint(data.dtype())) {
      FillInPlace(data, std::numeric_limits<double>::quiet_NaN());
    }
  }
  return state;
}

absl::Status ModuleState::Restore(const StateDict& state) {
  CH_RETURN_IF_ERROR(CheckAlive());
  std::vector<Tensor> filled;
  for (const auto& [name, parameter] : NamedState(module_)) {
    if (state.Find(name) == nullptr && options_.allow_missing) continue;
    CH_RETURN_IF_ERROR(CheckFilled(state, name, parameter->data()));
    filled.push_back(WritableLocalTensor(parameter->data(), kWhat));
  }
  // Invalidates what was saved for backward or gathered.
  for (const Tensor& local : filled) BeginWrite(kWhat, local);
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
