// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallel_style.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/grad_layout.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/embedding.h"
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

// The layout of an activation whose last dim, that of features, comes in units.
Layout ActivationLayout(const DeviceMesh& mesh, int ndim, Placement placement,
                        int64_t unit) {
  const bool splits_features =
      placement.is_shard() &&
      NormalizeDim(placement.dim(), ndim, "a tensor-parallel layout") ==
          ndim - 1;
  return LayoutFor(mesh, ndim, placement, splits_features ? unit : 1);
}

// `tensor` on `mesh` as `desired`; a plain one lies as `given` says.
Tensor Bring(const Tensor& tensor, const DeviceMesh& mesh, Placement given,
             Placement desired, int64_t given_unit, int64_t desired_unit) {
  Tensor spread = tensor;
  if (!tensor.is_distributed()) {
    const Layout layout =
        ActivationLayout(mesh, tensor.ndim(), given, given_unit);
    spread = FromLocal(tensor, mesh, layout, GradientLayout(layout));
  }
  Layout target = ActivationLayout(mesh, tensor.ndim(), desired, desired_unit);
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

absl::Status DoesNotFit(const char* style, const nn::Module& module,
                        const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(
      style, " fits nn::Linear and nn::Embedding; ", name,
      " is of another class, which calls itself ", module.type_name(),
      "; give it a style of its own (ParallelStyle)"));
}

// Brings the first input and the first output into their layouts; units are of
// their features.
void AddInputHook(nn::Module& module, const DeviceMesh& mesh, Placement given,
                  Placement desired, int64_t given_unit = 1,
                  int64_t desired_unit = 1) {
  module.AddPreHook([=](nn::Module&, TensorList& inputs) {
    inputs[0] =
        Bring(inputs[0], mesh, given, desired, given_unit, desired_unit);
  });
}

void AddOutputHook(nn::Module& module, const DeviceMesh& mesh, Placement given,
                   Placement desired, bool use_local, int64_t unit = 1) {
  module.AddPostHook([mesh, given, desired, use_local, unit](
                         nn::Module&, TensorSpan, TensorList& outputs) {
    outputs[0] = Bring(outputs[0], mesh, given, desired, unit, unit);
    if (use_local) outputs[0] = LocalOutput(outputs[0]);
  });
}

class Colwise final : public ParallelStyle {
 public:
  explicit Colwise(ColwiseOptions options) : options_(std::move(options)) {}

  const char* name() const override { return "ColwiseParallel"; }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    int64_t in_unit = 1;
    int64_t out_unit = 1;
    if (const auto* linear = dynamic_cast<const nn::Linear*>(&module)) {
      in_unit = linear->in_unit();
      // A rank's own heads, as plain tensors, come with their keys.
      out_unit = options_.use_local_output ? linear->out_unit()
                                           : linear->out_unit(mesh.size(0));
      for (const auto& parameter : {linear->weight(), linear->bias()}) {
        if (parameter == nullptr) continue;
        CH_RETURN_IF_ERROR(Spread(*parameter, mesh, Shard(0), out_unit));
      }
    } else if (const auto* table =
                   dynamic_cast<const nn::Embedding*>(&module)) {
      CH_RETURN_IF_ERROR(Spread(*table->weight(), mesh, Shard(1)));
    } else {
      return DoesNotFit(name(), module, module_name);
    }
    AddInputHook(module, mesh, options_.input, Replicate(), in_unit, in_unit);
    AddOutputHook(module, mesh, Shard(-1), options_.output,
                  options_.use_local_output, out_unit);
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
    int64_t in_unit = 1;
    int64_t wanted_unit = 1;
    int64_t out_unit = 1;
    if (const auto* linear = dynamic_cast<const nn::Linear*>(&module)) {
      in_unit = linear->in_unit();
      out_unit = linear->out_unit();
      wanted_unit = linear->in_unit(mesh.size(0));
      CH_RETURN_IF_ERROR(
          Spread(*linear->weight(), mesh, Shard(1), wanted_unit));
      if (linear->bias() != nullptr) {
        CH_RETURN_IF_ERROR(Spread(*linear->bias(), mesh, Replicate()));
      }
      wanted = Shard(-1);
    } else if (const auto* table =
                   dynamic_cast<const nn::Embedding*>(&module)) {
      CH_RETURN_IF_ERROR(Spread(*table->weight(), mesh, Shard(0)));
    } else {
      return DoesNotFit(name(), module, module_name);
    }
    AddInputHook(module, mesh, options_.input.value_or(wanted), wanted, in_unit,
                 wanted_unit);
    AddOutputHook(module, mesh, Partial(), options_.output,
                  options_.use_local_output, out_unit);
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
