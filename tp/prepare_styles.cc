// SPDX-License-Identifier: Apache-2.0

// PrepareModuleInput, PrepareModuleOutput and both.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tp/parallel_style.h"
#include "crosshatch/tp/style_parts.h"

namespace crosshatch::tp {
namespace {

// Layouts by position; nullopt leaves a tensor unchanged.
using LayoutsList = std::vector<std::optional<ActivationLayouts>>;

absl::StatusOr<LayoutsList> Paired(const std::string& what,
                                   const PlacementList& given,
                                   const PlacementList& desired) {
  const auto& from = given.entries();
  const auto& to = desired.entries();
  if (from.size() != to.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " has ", from.size(), " placements of inputs and ", to.size(),
        " desired placements; give one of each per input"));
  }
  LayoutsList layouts(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].has_value() != to[i].has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, ", entry ", i, ": ",
          from[i].has_value() ? "the desired placement is missing"
                              : "the placement of the input is missing",
          "; give both a placement, or both std::nullopt"));
    }
    if (from[i].has_value()) {
      layouts[i] = ActivationLayouts{.given = *from[i], .desired = *to[i]};
    }
  }
  return layouts;
}

void RedistributeEach(const DeviceMesh& mesh, const LayoutsList& layouts,
                      bool local, bool sum_gradients, const char* what,
                      TensorList& tensors) {
  CH_CHECK(layouts.size() <= tensors.size())
      << "the module's style has placements of " << layouts.size() << " "
      << what << "s, and there are " << tensors.size();
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (!layouts[i].has_value() || !tensors[i].defined()) continue;
    Tensor& tensor = tensors[i];
    tensor = RedistributeActivation(tensor, mesh, *layouts[i]);
    if (local) tensor = LocalShard(tensor, sum_gradients);
  }
}

// Returns the layouts of options.input and those by name.
absl::StatusOr<LayoutsList> InputLayouts(const PrepareInputOptions& options,
                                         const char* style,
                                         const nn::Module& module,
                                         const std::string& module_name) {
  const std::string what =
      absl::StrCat(style, " of module \"", module_name, "\"");
  CH_ASSIGN_OR_RETURN(LayoutsList layouts,
                      Paired(what, options.input, options.desired));
  if (options.sum_local_gradients && !options.use_local_input) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": sum_local_gradients is of local inputs; set use_local_input"));
  }
  if (options.named.empty()) return layouts;
  const auto* named = dynamic_cast<const nn::NamedInputs*>(&module);
  if (named == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " names inputs, and ", module.type_name(),
        " does not (nn::NamedInputs); give their placements by position"));
  }
  const std::vector<std::string> names = named->input_names();
  for (const auto& [name, placement] : options.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": no input is called \"", name,
                       "\"; there are: ", absl::StrJoin(names, ", ")));
    }
    const auto at = static_cast<size_t>(found - names.begin());
    if (layouts.size() <= at) layouts.resize(at + 1);
    if (layouts[at].has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": the input \"", name, "\" is number ", at,
                       " of `input`, too; if all inputs are named, set `input` "
                       "and `desired` to {}"));
    }
    layouts[at] = ActivationLayouts{.given = placement.input,
                                    .desired = placement.desired};
  }
  return layouts;
}

class PrepareInput final : public ParallelStyle {
 public:
  explicit PrepareInput(PrepareInputOptions options)
      : options_(std::move(options)) {}

  const char* name() const override { return "PrepareModuleInput"; }

  absl::Status Check(const nn::Module& module,
                     const std::string& module_name) const override {
    return InputLayouts(options_, name(), module, module_name).status();
  }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    CH_ASSIGN_OR_RETURN(const LayoutsList layouts,
                        InputLayouts(options_, name(), module, module_name));
    module.AddPreHook(
        [mesh, layouts, local = options_.use_local_input,
         sum = options_.sum_local_gradients](nn::Module&, TensorList& inputs) {
          RedistributeEach(mesh, layouts, local, sum, "input", inputs);
        });
    return absl::OkStatus();
  }

 private:
  const PrepareInputOptions options_;
};

class PrepareOutput final : public ParallelStyle {
 public:
  explicit PrepareOutput(PrepareOutputOptions options)
      : options_(std::move(options)) {}

  const char* name() const override { return "PrepareModuleOutput"; }

  absl::Status Check(const nn::Module&,
                     const std::string& module_name) const override {
    return OutputLayouts(module_name).status();
  }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    CH_ASSIGN_OR_RETURN(const LayoutsList layouts, OutputLayouts(module_name));
    module.AddPostHook([mesh, layouts, local = options_.use_local_output](
                           nn::Module&, TensorSpan, TensorList& outputs) {
      RedistributeEach(mesh, layouts, local, /*sum_gradients=*/false, "output",
                       outputs);
    });
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<LayoutsList> OutputLayouts(
      const std::string& module_name) const {
    return Paired(absl::StrCat(name(), " of module \"", module_name, "\""),
                  options_.output, options_.desired);
  }

  const PrepareOutputOptions options_;
};

}  // namespace

Style PrepareModuleInput(PrepareInputOptions options) {
  return std::make_shared<PrepareInput>(std::move(options));
}
Style PrepareModuleOutput(PrepareOutputOptions options) {
  return std::make_shared<PrepareOutput>(std::move(options));
}
Style PrepareModuleInputOutput(PrepareInputOutputOptions options) {
  return Combined({PrepareModuleInput(std::move(options.inputs)),
                   PrepareModuleOutput(std::move(options.outputs))});
}

}  // namespace crosshatch::tp
