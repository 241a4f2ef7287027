// SPDX-License-Identifier: Apache-2.0

// SequenceParallel, ReplicateParallel and Combined.

#include <memory>
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
    CH_RETURN_IF_ERROR(DistributeOwnParameters(module, mesh, Replicate()));
    CH_RETURN_IF_ERROR(ReplicateOwnBuffers(module, mesh));
    const ActivationLayouts layouts = {.given = Shard(dim_),
                                       .desired = Shard(dim_)};
    module.AddPreHook([mesh, layouts](nn::Module&, TensorList& inputs) {
      inputs[0] = RedistributeActivation(inputs[0], mesh, layouts);
    });
    module.AddPostHook([mesh, layouts, use_local = use_local_output_](
                           nn::Module&, TensorSpan, TensorList& outputs) {
      outputs[0] = RedistributeActivation(outputs[0], mesh, layouts);
      if (use_local) outputs[0] = LocalShard(outputs[0]);
    });
    return absl::OkStatus();
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
      CH_RETURN_IF_ERROR(
          DistributeParameter(*named.parameter, mesh, Replicate()));
    }
    for (const nn::NamedModule& below : module.NamedModules()) {
      CH_RETURN_IF_ERROR(ReplicateOwnBuffers(*below.module, mesh));
    }
    module.AddPreHook([mesh](nn::Module&, TensorList& inputs) {
      for (Tensor& input : inputs) ReplicateActivation(mesh, input);
    });
    module.AddPostHook([mesh, use_local = options_.use_local_output](
                           nn::Module&, TensorSpan, TensorList& outputs) {
      for (Tensor& output : outputs) {
        ReplicateActivation(mesh, output);
        if (!output.defined() || !output.is_distributed()) continue;
        output = use_local ? LocalShard(output) : WithReducedGradient(output);
      }
    });
    return absl::OkStatus();
  }

 private:
  static void ReplicateActivation(const DeviceMesh& mesh, Tensor& t) {
    if (!t.defined()) return;
    if (!t.is_distributed() && !IsFloatingPoint(t.dtype())) return;
    t = RedistributeActivation(t, mesh, {});
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
