// SPDX-License-Identifier: Apache-2.0

#include "crosshatch/tp/linear_styles.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/tp/style_parts.h"

namespace crosshatch::tp {
namespace {

// The features of a Linear's input or output, divided into units.
struct Features {
  int64_t size;
  int64_t unit;
  int64_t subunit;

  // Returns the unit of the split between `ranks`: the unit or, if some ranks
  // would have none and the largest shard gets smaller, the subunit.
  int64_t UnitFor(int ranks) const {
    if (subunit == 0 || size / unit >= ranks) return unit;
    const int64_t largest = (size / subunit + ranks - 1) / ranks;
    return largest * subunit < unit ? subunit : unit;
  }

  // Returns whether several ranks share each unit, with equally many of `parts`
  // per rank.
  bool RanksShareUnits(int64_t parts, int ranks) const {
    const int64_t units = size / unit;
    return units > 0 && ranks > units && ranks % units == 0 && parts != 0 &&
           parts % ranks == 0;
  }

  // Returns the unit of local shards as plain tensors. Each rank's shard must
  // fit the local shards of other modules, e.g. the keys of its query heads. So
  // units are split only if no rank has parts of two.
  int64_t LocalUnitFor(int ranks) const {
    const int64_t parts = subunit == 0 ? 0 : size / subunit;
    return RanksShareUnits(parts, ranks) ? subunit : unit;
  }

  // Returns the number of neighbouring ranks with a replica of each unit, for
  // units that `query_heads` heads read. It exceeds 1 if each rank's heads read
  // one unit.
  int ReplicasFor(int64_t query_heads, int ranks) const {
    return RanksShareUnits(query_heads, ranks)
               ? static_cast<int>(ranks * unit / size)
               : 1;
  }
};

const nn::Linear* AsLinear(const nn::Module& module) {
  return dynamic_cast<const nn::Linear*>(&module);
}

// Returns the features of the weight's dim `dim`, which a style splits.
template <typename Options>
Features FeaturesOf(const nn::Linear& linear, int dim, const Options& options) {
  return {.size = linear.weight()->data().size(dim),
          .unit = options.unit,
          .subunit = options.subunit};
}

// Checks the units of a style for `module`, whose weight's dim `dim` is split.
absl::Status CheckFits(const char* style, const nn::Module& module,
                       const std::string& name, int dim, int64_t unit,
                       int64_t subunit, int64_t query_heads) {
  const auto error = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(style, " of module \"", name,
                                                   "\" (", module.type_name(),
                                                   "): ", why...));
  };
  const nn::Linear* const linear = AsLinear(module);
  if (linear == nullptr) {
    if (dynamic_cast<const nn::Embedding*>(&module) == nullptr) {
      return error(
          "it fits nn::Linear and nn::Embedding; give this class a "
          "style of its own (ParallelStyle)");
    }
    if (unit == 1 && subunit == 0 && query_heads == 0) return absl::OkStatus();
    return error("units are for nn::Linear");
  }
  const int64_t features = linear->weight()->data().size(dim);
  const char* const side = dim == 0 ? "output" : "input";
  if (unit <= 0 || features % unit != 0) {
    return error("unit ", unit, " does not divide the ", features, " ", side,
                 " features");
  }
  if (subunit < 0 || (subunit > 0 && unit % subunit != 0)) {
    return error("subunit ", subunit, " does not divide the unit ", unit);
  }
  const int64_t units = features / unit;
  if (query_heads < 0 || (units > 0 && query_heads % units != 0)) {
    return error("the ", units, " units do not divide the ", query_heads,
                 " query_heads");
  }
  return absl::OkStatus();
}

// Key and value heads with replicas on neighbouring ranks. Parameters are on a
// view of the tensor-parallel axis as two axes, heads and replicas. Activations
// come from the whole axis and return to it.
class ReplicatedHeads {
 public:
  // `replicas` divides the ranks of `mesh`; `unit` is the width of a head.
  static absl::StatusOr<ReplicatedHeads> Create(const DeviceMesh& mesh,
                                                int replicas, int64_t unit) {
    const std::string& axis = mesh.axis_names()[0];
    CH_ASSIGN_OR_RETURN(
        const DeviceMesh parted,
        mesh.Unflatten(axis,
                       {{absl::StrCat(axis, "_unit"), mesh.size(0) / replicas},
                        {absl::StrCat(axis, "_copy"), replicas}}));
    return ReplicatedHeads(mesh, parted, unit);
  }

  // Shards weight and bias by heads and replicates the shards.
  absl::Status Distribute(const nn::Linear& linear) const {
    for (const auto& parameter : {linear.weight(), linear.bias()}) {
      if (parameter == nullptr) continue;
      const Layout layout =
          Layout::Replicated(parted_.layout(), parameter->data().ndim())
              .WithDim(0, {.axes = {kHeads}, .unit = unit_});
      CH_RETURN_IF_ERROR(nn::DistributeParameter(*parameter, parted_, layout));
    }
    return absl::OkStatus();
  }

  // Returns `x`, replicated over the axis, on the mesh of both axes. Each rank
  // adds a summand to its gradient.
  Tensor Enter(const Tensor& x) const {
    const Layout sum_over_all = LayoutOn(whole_, x.ndim(), Partial());
    const Layout replicated = Layout::Replicated(parted_.layout(), x.ndim());
    const Layout sum_over_both = replicated.WithPartial(kHeads, ReduceOp::kSum)
                                     .WithPartial(kReplicas, ReduceOp::kSum);
    return FromLocal(ToLocal(x, sum_over_all), parted_, replicated, x.sizes(),
                     sum_over_both);
  }

  // Converts `y` [..., heads * unit] from the mesh of both axes to the whole
  // axis: [..., ranks * unit], with each head repeated once per replica, one on
  // each rank. Gradients of replicas are summands of the head's.
  Tensor Leave(const Tensor& y) const {
    const int features = y.ndim() - 1;
    const Layout by_heads =
        Layout::Replicated(parted_.layout(), y.ndim())
            .WithDim(features, {.axes = {kHeads}, .unit = unit_});
    const Tensor local =
        ToLocal(Redistribute(y, by_heads),
                by_heads.WithPartial(kReplicas, ReduceOp::kSum));
    Shape sizes = y.sizes();
    sizes.back() = whole_.size(0) * unit_;
    const Layout by_ranks = LayoutOn(whole_, y.ndim(), Shard(-1), unit_);
    return FromLocal(local, whole_, by_ranks, sizes, by_ranks);
  }

 private:
  static constexpr int kHeads = 0;
  static constexpr int kReplicas = 1;

  ReplicatedHeads(const DeviceMesh& whole, const DeviceMesh& parted,
                  int64_t unit)
      : whole_(whole), parted_(parted), unit_(unit) {}

  DeviceMesh whole_;
  DeviceMesh parted_;
  int64_t unit_;
};

// Checks that a plain tensor, taken as a local shard of `whole`, has the right
// width.
void CheckWidth(const Tensor& given, const Tensor& whole,
                const DeviceMesh& mesh, const Placement& placement,
                const nn::Module& module, const char* style) {
  const nn::Linear* const linear = AsLinear(module);
  if (linear == nullptr || !placement.is_shard() || !given.defined() ||
      given.is_distributed()) {
    return;
  }
  const int64_t width = linear->weight()->data().size(-1);
  CH_CHECK(whole.ndim() == 0 || whole.size(-1) == width)
      << "module " << *module.label() << " with " << style
      << " took the plain tensor " << given.Describe()
      << " as the local shard of one with " << whole.size(-1)
      << " features, placement " << placement.ToString() << " on "
      << mesh.ToString() << ", and takes " << width
      << " features; give it such a shard or a DTensor, or set the style's "
      << "`input` to the placement of the tensor";
}

void AddInputHook(nn::Module& module, const DeviceMesh& mesh,
                  const ActivationLayouts& layouts, const char* style) {
  module.AddPreHook(
      [mesh, layouts, style](nn::Module& called, TensorList& inputs) {
        const Tensor given = inputs[0];
        inputs[0] = RedistributeActivation(given, mesh, layouts);
        CheckWidth(given, inputs[0], mesh, layouts.given, called, style);
      });
}

void AddOutputHook(nn::Module& module, const DeviceMesh& mesh,
                   const ActivationLayouts& layouts, bool use_local) {
  module.AddPostHook(
      [mesh, layouts, use_local](nn::Module&, TensorSpan, TensorList& outputs) {
        outputs[0] = RedistributeActivation(outputs[0], mesh, layouts);
        if (use_local) outputs[0] = LocalShard(outputs[0]);
      });
}

class Colwise final : public ParallelStyle {
 public:
  explicit Colwise(const ColwiseOptions& options) : options_(options) {}

  const char* name() const override { return "ColwiseParallel"; }
  const ColwiseOptions& options() const { return options_; }

  absl::Status Check(const nn::Module& module,
                     const std::string& module_name) const override {
    return CheckFits(name(), module, module_name, /*dim=*/0, options_.unit,
                     options_.subunit, options_.query_heads);
  }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    CH_RETURN_IF_ERROR(Check(module, module_name));
    int64_t out_unit = 1;
    std::optional<ReplicatedHeads> heads;
    if (const nn::Linear* const linear = AsLinear(module)) {
      const int ranks = mesh.size(0);
      const Features output = FeaturesOf(*linear, /*dim=*/0, options_);
      // A rank's own query heads, as plain tensors, need their keys on the same
      // rank.
      out_unit = options_.use_local_output ? output.LocalUnitFor(ranks)
                                           : output.UnitFor(ranks);
      const int replicas = output.ReplicasFor(options_.query_heads, ranks);
      if (replicas > 1 && options_.output == Shard(-1)) {
        out_unit = options_.unit;
        CH_ASSIGN_OR_RETURN(heads,
                            ReplicatedHeads::Create(mesh, replicas, out_unit));
        CH_RETURN_IF_ERROR(heads->Distribute(*linear));
      } else {
        for (const auto& parameter : {linear->weight(), linear->bias()}) {
          if (parameter == nullptr) continue;
          CH_RETURN_IF_ERROR(
              DistributeParameter(*parameter, mesh, Shard(0), out_unit));
        }
      }
    } else {
      CH_RETURN_IF_ERROR(DistributeOwnParameters(module, mesh, Shard(1)));
    }
    AddInputHook(module, mesh, {.given = options_.input}, name());
    if (heads.has_value()) {
      // Innermost wrapper, because hooks of a program see tensors of `mesh`.
      module.AddForwardWrapper(
          [heads](TensorSpan inputs,
                  const nn::Module::ForwardFunction& forward) {
            TensorList entered(inputs.begin(), inputs.end());
            entered[0] = heads->Enter(entered[0]);
            TensorList outputs = forward(entered);
            outputs[0] = heads->Leave(outputs[0]);
            return outputs;
          });
    }
    AddOutputHook(module, mesh,
                  {.given = Shard(-1),
                   .desired = options_.output,
                   .given_unit = out_unit,
                   .desired_unit = out_unit},
                  options_.use_local_output);
    return absl::OkStatus();
  }

 private:
  const ColwiseOptions options_;
};

class Rowwise final : public ParallelStyle {
 public:
  explicit Rowwise(const RowwiseOptions& options) : options_(options) {}

  const char* name() const override { return "RowwiseParallel"; }
  const RowwiseOptions& options() const { return options_; }

  absl::Status Check(const nn::Module& module,
                     const std::string& module_name) const override {
    return CheckFits(name(), module, module_name, /*dim=*/1, options_.unit,
                     options_.subunit, /*query_heads=*/0);
  }

  absl::Status Apply(nn::Module& module, const std::string& module_name,
                     const DeviceMesh& mesh) const override {
    CH_RETURN_IF_ERROR(Check(module, module_name));
    ActivationLayouts input;
    if (const nn::Linear* const linear = AsLinear(module)) {
      const Features features = FeaturesOf(*linear, /*dim=*/1, options_);
      input.desired = Shard(-1);
      input.given_unit = features.LocalUnitFor(mesh.size(0));
      input.desired_unit = features.UnitFor(mesh.size(0));
      CH_RETURN_IF_ERROR(DistributeParameter(*linear->weight(), mesh, Shard(1),
                                             input.desired_unit));
      if (linear->bias() != nullptr) {
        CH_RETURN_IF_ERROR(
            DistributeParameter(*linear->bias(), mesh, Replicate()));
      }
    } else {
      CH_RETURN_IF_ERROR(DistributeOwnParameters(module, mesh, Shard(0)));
    }
    input.given = options_.input.value_or(input.desired);
    AddInputHook(module, mesh, input, name());
    AddOutputHook(module, mesh,
                  {.given = Partial(), .desired = options_.output},
                  options_.use_local_output);
    return absl::OkStatus();
  }

 private:
  const RowwiseOptions options_;
};

// Returns the features that `module` splits if it is a projection of the same
// attention as `keys` and uses local query heads: its outputs if it is
// ColwiseParallel with local outputs, its inputs if it is RowwiseParallel.
std::optional<Features> QueriesOf(const StyledModule& module,
                                  const nn::Module& keys) {
  const nn::Linear* const linear = AsLinear(*module.named.module);
  if (linear == nullptr || linear->parent() != keys.parent()) {
    return std::nullopt;
  }
  if (const auto* rows = dynamic_cast<const Rowwise*>(module.style.get())) {
    return FeaturesOf(*linear, /*dim=*/1, rows->options());
  }
  const auto* columns = dynamic_cast<const Colwise*>(module.style.get());
  if (columns == nullptr || !columns->options().use_local_output ||
      columns->options().query_heads != 0) {
    return std::nullopt;
  }
  return FeaturesOf(*linear, /*dim=*/0, columns->options());
}

}  // namespace

absl::Status CheckLocalHeads(const std::vector<StyledModule>& modules,
                             int ranks) {
  const auto entry = [](const StyledModule& module) {
    return absl::StrCat("\"", module.pattern, "\" for module \"",
                        module.named.name, "\"");
  };
  for (const StyledModule& keys : modules) {
    const auto* style = dynamic_cast<const Colwise*>(keys.style.get());
    const nn::Linear* const linear = AsLinear(*keys.named.module);
    if (style == nullptr || linear == nullptr) continue;
    const ColwiseOptions& options = style->options();
    const int64_t heads = options.query_heads;
    if (!options.use_local_output || options.output != Shard(-1) ||
        FeaturesOf(*linear, /*dim=*/0, options).ReplicasFor(heads, ranks) ==
            1) {
      continue;
    }
    for (const StyledModule& module : modules) {
      const std::optional<Features> queries = QueriesOf(module, *linear);
      if (!queries.has_value()) continue;
      const auto refuse = [&](const auto&... why) {
        return absl::InvalidArgumentError(absl::StrCat(
            "ParallelizeModule: ", entry(keys), " (", style->name(),
            ", query_heads=", heads, ") returns one key head on each of ",
            ranks, " ranks, of width ", options.unit, ", and ", entry(module),
            why...));
      };
      const int64_t width = queries->subunit;
      if (width != 0 && width != options.unit &&
          queries->size == heads * width) {
        return refuse(" has heads of width ", width,
                      "; on the former set unit to ", width);
      }
      if (queries->size == heads * options.unit &&
          queries->size / queries->LocalUnitFor(ranks) % ranks != 0) {
        return refuse(" splits ", heads, " query heads in units of ",
                      queries->unit / options.unit, " heads, so that ranks ",
                      "lack the queries of their key head; set its subunit to ",
                      options.unit);
      }
    }
  }
  return absl::OkStatus();
}

Style ColwiseParallel(ColwiseOptions options) {
  return std::make_shared<Colwise>(options);
}
Style RowwiseParallel(RowwiseOptions options) {
  return std::make_shared<Rowwise>(options);
}

}  // namespace crosshatch::tp
