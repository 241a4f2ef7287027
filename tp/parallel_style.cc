// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallel_style.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/grad_layout.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/linear.h"

namespace crosshatch::tp {
namespace {

// The layout of a tensor of `ndim` dims that `placement` gives, in units along
// the dim it splits.
Layout LayoutFor(const DeviceMesh& mesh, int ndim, Placement placement,
                 int64_t unit = 1) {
  Layout layout = Layout::Replicated(mesh.layout(), ndim);
  if (placement.is_partial()) {
    return layout.WithPartial(0, placement.reduce_op());
  }
  if (!placement.is_shard()) return layout;
  const int dim = static_cast<int>(
      NormalizeDim(placement.dim(), ndim, "a tensor-parallel layout"));
  return layout.WithDim(dim, {.axes = {0}, .unit = unit});
}

// `tensor` on `mesh` as `desired`; a plain one lies as `given` says.
Tensor Bring(const Tensor& tensor, const DeviceMesh& mesh, Placement given,
             Placement desired) {
  Tensor spread = tensor;
  if (!tensor.is_distributed()) {
    const Layout layout = LayoutFor(mesh, tensor.ndim(), given);
    spread = FromLocal(tensor, mesh, layout, GradientLayout(layout));
  }
  Layout target = LayoutFor(mesh, tensor.ndim(), desired);
  // A split into units that is there already is the split that is wanted.
  const Layout& layout = LayoutOf(spread);
  if (layout.state_of_axis(0) == target.state_of_axis(0)) target = layout;
  return Redistribute(spread, target);
}

Tensor LocalOutput(const Tensor& output) {
  return ToLocal(output, GradientLayout(LayoutOf(output)));
}

// Gives `parameter` the layout `placement`. A tied parameter may be given one
// layout several times.
absl::Status Spread(nn::Parameter& parameter, const DeviceMesh& mesh,
                    Placement placement, int64_t unit = 1) {
  return nn::DistributeParameter(
      parameter, mesh,
      LayoutFor(mesh, parameter.data().ndim(), placement, unit));
}

absl::Status SpreadAll(nn::Module& module, const DeviceMesh& mesh,
                       Placement placement) {
  for (const auto& [name, parameter] : module.own_parameters()) {
    CH_RETURN_IF_ERROR(Spread(*parameter, mesh, placement));
  }
  return absl::OkStatus();
}

bool IsA(const nn::Module& module, const char* type) {
  return std::strcmp(module.type_name(), type) == 0;
}

absl::Status DoesNotFit(const char* style, const nn::Module& module,
                        const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(
      style, " fits Linear and Embedding; ", name, " is a ", module.type_name(),
      "; give it a style of its own (ParallelStyle)"));
}

nn::Parameter& Own(const nn::Module& module, const std::string& name) {
  for (const auto& [own_name, parameter] : module.own_parameters()) {
    if (own_name == name) return *parameter;
  }
  CH_CHECK(false) << module.type_name() << " has no parameter " << name;
  __builtin_unreachable();
}

// Brings the first input and the first output into their layouts.
void AddInputHook(nn::Module& module, const DeviceMesh& mesh, Placement given,
                  Placement desired) {
  module.AddPreHook([mesh, given, desired](nn::Module&, TensorList& inputs) {
    inputs[0] = Bring(inputs[0], mesh, given, desired);
  });
}

void AddOutputHook(nn::Module& module, const DeviceMesh& mesh, Placement given,
                   Placement desired, bool use_local) {
  module.AddPostHook([mesh, given, desired, use_local](nn::Module&, TensorSpan,
                                                       TensorList& outputs) {
    outputs[0] = Bring(outputs[0], mesh, given, desired);
    if (use_local) outputs[0] = LocalOutput(outputs[0]);
  });
}

class Colwise final : public ParallelStyle {
 public:
  explicit Colwise(ColwiseOptions options) : options_(std::move(options)) {}

  const char* name() const override { return "ColwiseParallel"; }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    if (IsA(module, "Linear")) {
      const auto& linear = static_cast<const nn::Linear&>(module);
      for (const auto& parameter : {linear.weight(), linear.bias()}) {
        if (parameter == nullptr) continue;
        CH_RETURN_IF_ERROR(
            Spread(*parameter, mesh, Shard(0), linear.out_unit()));
      }
    } else if (IsA(module, "Embedding")) {
      CH_RETURN_IF_ERROR(Spread(Own(module, "weight"), mesh, Shard(1)));
    } else {
      return DoesNotFit(name(), module, module_name);
    }
    AddInputHook(module, mesh, options_.input, Replicate());
    AddOutputHook(module, mesh, Shard(-1), options_.output,
                  options_.use_local_output);
    return absl::OkStatus();
  }

 private:
  const ColwiseOptions options_;
};

class Rowwise final : public ParallelStyle {
 public:
  explicit Rowwise(RowwiseOptions options) : options_(std::move(options)) {}

  const char* name() const override { return "RowwiseParallel"; }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    Placement wanted = Replicate();
    if (IsA(module, "Linear")) {
      const auto& linear = static_cast<const nn::Linear&>(module);
      CH_RETURN_IF_ERROR(
          Spread(*linear.weight(), mesh, Shard(1), linear.in_unit()));
      if (linear.bias() != nullptr) {
        CH_RETURN_IF_ERROR(Spread(*linear.bias(), mesh, Replicate()));
      }
      wanted = Shard(-1);
    } else if (IsA(module, "Embedding")) {
      CH_RETURN_IF_ERROR(Spread(Own(module, "weight"), mesh, Shard(0)));
    } else {
      return DoesNotFit(name(), module, module_name);
    }
    AddInputHook(module, mesh, options_.input.value_or(wanted), wanted);
    AddOutputHook(module, mesh, Partial(), options_.output,
                  options_.use_local_output);
    return absl::OkStatus();
  }

 private:
  const RowwiseOptions options_;
};

class Sequence final : public ParallelStyle {
 public:
  Sequence(int dim, bool use_local_output)
      : dim_(dim), use_local_output_(use_local_output) {}

  const char* name() const override { return "SequenceParallel"; }

  absl::Status Apply(nn::Module& module, const std::string&,
                     const DeviceMesh& mesh) const override {
    CH_RETURN_IF_ERROR(SpreadAll(module, mesh, Replicate()));
    AddInputHook(module, mesh, Shard(dim_), Shard(dim_));
    AddOutputHook(module, mesh, Shard(dim_), Shard(dim_), use_local_output_);
    return absl::OkStatus();
  }

 private:
  const int dim_;
  const bool use_local_output_;
};

class PrepareInput final : public ParallelStyle {
 public:
  explicit PrepareInput(PrepareInputOptions options) : options_(options) {}

  const char* name() const override { return "PrepareModuleInput"; }

  absl::Status Apply(nn::Module& module, const std::string&,
                     const DeviceMesh& mesh) const override {
    AddInputHook(module, mesh, options_.input, options_.desired);
    return absl::OkStatus();
  }

 private:
  const PrepareInputOptions options_;
};

class PrepareOutput final : public ParallelStyle {
 public:
  explicit PrepareOutput(PrepareOutputOptions options) : options_(options) {}

  const char* name() const override { return "PrepareModuleOutput"; }

  absl::Status Apply(nn::Module& module, const std::string&,
                     const DeviceMesh& mesh) const override {
    AddOutputHook(module, mesh, options_.output, options_.desired,
                  options_.use_local_output);
    return absl::OkStatus();
  }

 private:
  const PrepareOutputOptions options_;
};

}  // namespace

Style ColwiseParallel(ColwiseOptions options) {
  return std::make_shared<Colwise>(std::move(options));
}
Style RowwiseParallel(RowwiseOptions options) {
  return std::make_shared<Rowwise>(std::move(options));
}
Style SequenceParallel(int sequence_dim, bool use_local_output) {
  return std::make_shared<Sequence>(sequence_dim, use_local_output);
}
Style PrepareModuleInput(PrepareInputOptions options) {
  return std::make_shared<PrepareInput>(options);
}
Style PrepareModuleOutput(PrepareOutputOptions options) {
  return std::make_shared<PrepareOutput>(options);
}

}  // namespace crosshatch::tp
