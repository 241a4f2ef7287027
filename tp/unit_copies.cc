// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/unit_copies.h"

#include "absl/strings/str_cat.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/tp/style_parts.h"

namespace crosshatch::tp {
namespace {

// The axes of the parted mesh.
constexpr int kUnits = 0;
constexpr int kCopies = 1;

}  // namespace

absl::StatusOr<UnitCopies> UnitCopies::Create(const DeviceMesh& mesh,
                                              int copies, int64_t unit) {
  const std::string& axis = mesh.axis_names()[0];
  CH_ASSIGN_OR_RETURN(
      const DeviceMesh parted,
      mesh.Unflatten(axis,
                     {{absl::StrCat(axis, "_unit"), mesh.size(0) / copies},
                      {absl::StrCat(axis, "_copy"), copies}}));
  return UnitCopies(mesh, parted, unit);
}

absl::Status UnitCopies::Spread(const nn::Linear& linear) const {
  for (const auto& parameter : {linear.weight(), linear.bias()}) {
    if (parameter == nullptr) continue;
    const Layout layout =
        Layout::Replicated(parted_.layout(), parameter->data().ndim())
            .WithDim(0, {.axes = {kUnits}, .unit = unit_});
    CH_RETURN_IF_ERROR(nn::DistributeParameter(*parameter, parted_, layout));
  }
  return absl::OkStatus();
}

Tensor UnitCopies::Enter(const Tensor& x) const {
  const Layout sum_over_all = LayoutOn(whole_, x.ndim(), Partial());
  const Layout replicated = Layout::Replicated(parted_.layout(), x.ndim());
  const Layout sum_over_both = replicated.WithPartial(kUnits, ReduceOp::kSum)
                                   .WithPartial(kCopies, ReduceOp::kSum);
  return FromLocal(ToLocal(x, sum_over_all), parted_, replicated, x.sizes(),
                   sum_over_both);
}

Tensor UnitCopies::Leave(const Tensor& y) const {
  const int features = y.ndim() - 1;
  const Layout by_units =
      Layout::Replicated(parted_.layout(), y.ndim())
          .WithDim(features, {.axes = {kUnits}, .unit = unit_});
  const Tensor local = ToLocal(Redistribute(y, by_units),
                               by_units.WithPartial(kCopies, ReduceOp::kSum));
  Shape sizes = y.sizes();
  sizes.back() = whole_.size(0) * unit_;
  const Layout by_ranks = LayoutOn(whole_, y.ndim(), Shard(-1), unit_);
  return FromLocal(local, whole_, by_ranks, sizes, by_ranks);
}

}  // namespace crosshatch::tp
