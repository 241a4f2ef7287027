// SPDX-License-Identifier: Apache-2.0

// ColwiseParallel and RowwiseParallel.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tp/parallel_style.h"
#include "crosshatch/tp/style_parts.h"
#include "crosshatch/tp/unit_copies.h"

namespace crosshatch::tp {
namespace {

absl::Status CheckFits(const char* style, const nn::Module& module,
                       const std::string& name) {
  if (dynamic_cast<const nn::Linear*>(&module) != nullptr ||
      dynamic_cast<const nn::Embedding*>(&module) != nullptr) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      style, " fits nn::Linear and nn::Embedding; module \"", name,
      "\" is of another class, which calls itself ", module.type_name(),
      "; give it a style of its own (ParallelStyle)"));
}

// That what a Linear took as this rank's part has the width of one: `whole` is
// what it is a part of.
void CheckWidth(const Tensor& given, const Tensor& whole,
                const DeviceMesh& mesh, const Placement& placement,
                nn::Module& module, const char* style) {
  auto* const linear = dynamic_cast<nn::Linear*>(&module);
  if (linear == nullptr || !placement.is_shard() || !given.defined() ||
      given.is_distributed()) {
    return;
  }
  const int64_t width = linear->weight()->data().size(-1);
  CH_CHECK(whole.ndim() == 0 || whole.size(-1) == width)
      << "module " << *module.label() << " with " << style
      << " took the plain tensor " << given.Describe() << " as this rank's "
      << "part " << placement.ToString() << " on " << mesh.ToString()
      << ", one of " << whole.size(-1) << " features in all, and takes "
      << width << "; give it such a part, a DTensor, or say by the style's "
      << "`input` how the tensor lies";
}

void AddInputHook(nn::Module& module, const DeviceMesh& mesh,
                  const Crossing& crossing, const char* style) {
  module.AddPreHook(
      [mesh, crossing, style](nn::Module& called, TensorList& inputs) {
        const Tensor given = inputs[0];
        inputs[0] = TakeIn(given, mesh, crossing, called, style);
        CheckWidth(given, inputs[0], mesh, crossing.given, called, style);
      });
}

void AddOutputHook(nn::Module& module, const DeviceMesh& mesh,
                   const Crossing& crossing, bool use_local,
                   const char* style) {
  module.AddPostHook([mesh, crossing, use_local, style](
                         nn::Module& called, TensorSpan, TensorList& outputs) {
    Tensor& output = outputs[0];
    output = TakeIn(output, mesh, crossing, called, style);
    if (use_local) {
      output = HandOut(output, mesh, crossing.desired, called, style);
    }
  });
}

class Colwise final : public ParallelStyle {
 public:
  explicit Colwise(const ColwiseOptions& options) : options_(options) {}

  const char* name() const override { return "ColwiseParallel"; }

  absl::Status Check(const nn::Module& module,
                     const std::string& module_name) const override {
    return CheckFits(name(), module, module_name);
  }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    CH_RETURN_IF_ERROR(Check(module, module_name));
    int64_t in_unit = 1;
    int64_t out_unit = 1;
    std::optional<UnitCopies> copies;
    if (const auto* linear = dynamic_cast<const nn::Linear*>(&module)) {
      in_unit = linear->in_unit();
      // A rank's own heads, as plain tensors, come with their keys.
      out_unit = options_.use_local_output ? linear->own_out_unit(mesh.size(0))
                                           : linear->out_unit(mesh.size(0));
      const int count = linear->out_copies(mesh.size(0));
      if (count > 1 && options_.output == Shard(-1)) {
        out_unit = linear->out_unit();
        CH_ASSIGN_OR_RETURN(copies, UnitCopies::Create(mesh, count, out_unit));
        CH_RETURN_IF_ERROR(copies->Spread(*linear));
      } else {
        for (const auto& parameter : {linear->weight(), linear->bias()}) {
          if (parameter == nullptr) continue;
          CH_RETURN_IF_ERROR(
              SpreadParameter(*parameter, mesh, Shard(0), out_unit));
        }
      }
    } else {
      CH_RETURN_IF_ERROR(SpreadOwnParameters(module, mesh, Shard(1)));
    }
    AddInputHook(module, mesh,
                 {.given = options_.input,
                  .given_unit = in_unit,
                  .desired_unit = in_unit},
                 name());
    if (copies.has_value()) {
      // Within all hooks: those of a program see tensors of `mesh`.
      module.AddForwardWrapper(
          [copies](TensorSpan inputs,
                   const nn::Module::ForwardFunction& forward) {
            TensorList entered(inputs.begin(), inputs.end());
            entered[0] = copies->Enter(entered[0]);
            TensorList outputs = forward(entered);
            outputs[0] = copies->Leave(outputs[0]);
            return outputs;
          });
    }
    AddOutputHook(module, mesh,
                  {.given = Shard(-1),
                   .desired = options_.output,
                   .given_unit = out_unit,
                   .desired_unit = out_unit},
                  options_.use_local_output, name());
    return absl::OkStatus();
  }

  std::optional<Placement> PlainInput(const nn::Module&) const override {
    return options_.input;
  }
  std::optional<HandedOut> FirstOutput(const nn::Module&) const override {
    return HandedOut{options_.output, options_.use_local_output};
  }

 private:
  const ColwiseOptions options_;
};

class Rowwise final : public ParallelStyle {
 public:
  explicit Rowwise(const RowwiseOptions& options) : options_(options) {}

  const char* name() const override { return "RowwiseParallel"; }

  absl::Status Check(const nn::Module& module,
                     const std::string& module_name) const override {
    return CheckFits(name(), module, module_name);
  }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    CH_RETURN_IF_ERROR(Check(module, module_name));
    Crossing input = {.desired = Wanted(module)};
    input.given = options_.input.value_or(input.desired);
    int64_t out_unit = 1;
    if (const auto* linear = dynamic_cast<const nn::Linear*>(&module)) {
      out_unit = linear->out_unit();
      input.given_unit = linear->own_in_unit(mesh.size(0));
      input.desired_unit = linear->in_unit(mesh.size(0));
      CH_RETURN_IF_ERROR(SpreadParameter(*linear->weight(), mesh, Shard(1),
                                         input.desired_unit));
      if (linear->bias() != nullptr) {
        CH_RETURN_IF_ERROR(SpreadParameter(*linear->bias(), mesh, Replicate()));
      }
    } else {
      CH_RETURN_IF_ERROR(SpreadOwnParameters(module, mesh, Shard(0)));
    }
    AddInputHook(module, mesh, input, name());
    AddOutputHook(module, mesh,
                  {.given = Partial(),
                   .desired = options_.output,
                   .given_unit = out_unit,
                   .desired_unit = out_unit},
                  options_.use_local_output, name());
    return absl::OkStatus();
  }

  std::optional<Placement> PlainInput(const nn::Module& module) const override {
    return options_.input.value_or(Wanted(module));
  }
  std::optional<HandedOut> FirstOutput(const nn::Module&) const override {
    return HandedOut{options_.output, options_.use_local_output};
  }

 private:
  static Placement Wanted(const nn::Module& module) {
    return dynamic_cast<const nn::Embedding*>(&module) != nullptr ? Replicate()
                                                                  : Shard(-1);
  }

  const RowwiseOptions options_;
};

}  // namespace

Style ColwiseParallel(ColwiseOptions options) {
  return std::make_shared<Colwise>(options);
}
Style RowwiseParallel(RowwiseOptions options) {
  return std::make_shared<Rowwise>(options);
}

}  // namespace crosshatch::tp
