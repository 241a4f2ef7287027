// SPDX-License-Identifier: Apache-2.0

// SequenceParallel, ReplicateParallel and Combined.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tp/parallel_style.h"
#include "crosshatch/tp/style_parts.h"

namespace crosshatch::tp {
namespace {

class Sequence final : public ParallelStyle {
 public:
  Sequence(int dim, bool use_local_output)
      : dim_(dim), use_local_output_(use_local_output) {}

  const char* name() const override { return "SequenceParallel"; }

  absl::Status Apply(nn::Module& module, const std::string&,
                     const DeviceMesh& mesh) const override {
    CH_RETURN_IF_ERROR(SpreadOwnParameters(module, mesh, Replicate()));
    CH_RETURN_IF_ERROR(ReplicateOwnBuffers(module, mesh));
    const Crossing crossing = {.given = Shard(dim_), .desired = Shard(dim_)};
    module.AddPreHook([mesh, crossing, style = name()](nn::Module& called,
                                                       TensorList& inputs) {
      inputs[0] = TakeIn(inputs[0], mesh, crossing, called, style);
    });
    module.AddPostHook(
        [mesh, crossing, style = name(), use_local = use_local_output_](
            nn::Module& called, TensorSpan, TensorList& outputs) {
          Tensor& output = outputs[0];
          output = TakeIn(output, mesh, crossing, called, style);
          if (use_local) {
            output = HandOut(output, mesh, crossing.desired, called, style);
          }
        });
    return absl::OkStatus();
  }

  std::optional<Placement> PlainInput(const nn::Module&) const override {
    return Shard(dim_);
  }
  std::optional<HandedOut> FirstOutput(const nn::Module&) const override {
    return HandedOut{Shard(dim_), use_local_output_};
  }

 private:
  const int dim_;
  const bool use_local_output_;
};

class Replicated final : public ParallelStyle {
 public:
  explicit Replicated(const ReplicateOptions& options) : options_(options) {}

  const char* name() const override { return "ReplicateParallel"; }

  absl::Status Apply(nn::Module& module, const std::string&,
                     const DeviceMesh& mesh) const override {
    for (const nn::NamedParameter& named : module.NamedParameters()) {
      if (named.parameter->data().is_distributed()) continue;
      CH_RETURN_IF_ERROR(SpreadParameter(*named.parameter, mesh, Replicate()));
    }
    for (const nn::NamedModule& below : module.NamedModules()) {
      CH_RETURN_IF_ERROR(ReplicateOwnBuffers(*below.module, mesh));
    }
    module.AddPreHook(
        [mesh, style = name()](nn::Module& called, TensorList& inputs) {
          for (Tensor& input : inputs) BringAll(mesh, called, style, input);
        });
    module.AddPostHook(
        [mesh, style = name(), use_local = options_.use_local_output](
            nn::Module& called, TensorSpan, TensorList& outputs) {
          for (Tensor& output : outputs) {
            BringAll(mesh, called, style, output);
            if (!output.defined() || !output.is_distributed()) continue;
            output = use_local
                         ? HandOut(output, mesh, Replicate(), called, style)
                         : WithWholeGradient(output);
          }
        });
    return absl::OkStatus();
  }

  std::optional<Placement> PlainInput(const nn::Module&) const override {
    return Replicate();
  }
  bool SpreadsBelow() const override { return true; }
  std::optional<HandedOut> FirstOutput(const nn::Module&) const override {
    return HandedOut{Replicate(), options_.use_local_output};
  }

 private:
  static void BringAll(const DeviceMesh& mesh, const nn::Module& module,
                       const char* style, Tensor& t) {
    if (!t.defined()) return;
    if (!t.is_distributed() && !IsFloatingPoint(t.dtype())) return;
    t = TakeIn(t, mesh, {}, module, style);
  }

  const ReplicateOptions options_;
};

class Several final : public ParallelStyle {
 public:
  explicit Several(std::vector<Style> styles) : styles_(std::move(styles)) {}

  const char* name() const override { return "Combined"; }

  absl::Status Check(const nn::Module& module,
                     const std::string& module_name) const override {
    for (const Style& style : styles_) {
      if (style == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Combined for module \"", module_name, "\" holds a null style"));
      }
      CH_RETURN_IF_ERROR(style->Check(module, module_name));
    }
    return absl::OkStatus();
  }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    for (const Style& style : styles_) {
      CH_RETURN_IF_ERROR(style->Apply(module, module_name, mesh));
    }
    return absl::OkStatus();
  }

  // The first to see an input takes it as plain, the last to see an output
  // hands it out.
  std::optional<Placement> PlainInput(const nn::Module& module) const override {
    for (const Style& style : styles_) {
      if (const auto input = style->PlainInput(module)) return input;
    }
    return std::nullopt;
  }
  std::optional<HandedOut> HandedIn(const nn::Module& module) const override {
    std::optional<HandedOut> last;
    for (const Style& style : styles_) {
      if (const auto input = style->HandedIn(module)) last = input;
    }
    return last;
  }
  bool SpreadsBelow() const override {
    return std::any_of(styles_.begin(), styles_.end(), [](const Style& style) {
      return style->SpreadsBelow();
    });
  }
  std::optional<HandedOut> FirstOutput(
      const nn::Module& module) const override {
    std::optional<HandedOut> last;
    for (const Style& style : styles_) {
      if (const auto output = style->FirstOutput(module)) last = output;
    }
    return last;
  }

 private:
  const std::vector<Style> styles_;
};

}  // namespace

Style SequenceParallel(int sequence_dim, bool use_local_output) {
  return std::make_shared<Sequence>(sequence_dim, use_local_output);
}
Style ReplicateParallel(ReplicateOptions options) {
  return std::make_shared<Replicated>(options);
}
Style Combined(std::vector<Style> styles) {
  return std::make_shared<Several>(std::move(styles));
}

}  // namespace crosshatch::tp
