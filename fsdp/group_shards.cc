// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/group_shards.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch::fsdp {

absl::StatusOr<int> ShardDim(const nn::Parameter& parameter,
                             const FullyShardOptions& options) {
  const Tensor& data = parameter.data();
  if (data.ndim() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FullyShard: parameter ", parameter.name(),
        " is a scalar, which has no dim to shard; give it the shape [1], or "
        "list it in FullyShardOptions::ignored_params"));
  }
  const int dim = options.shard_dim ? options.shard_dim(parameter) : 0;
  const int counted = dim < 0 ? dim + data.ndim() : dim;
  if (options.ragged_shard.has_value() && counted != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("FullyShard: FullyShardOptions::shard_dim gives dim ", dim,
                     " of parameter ", parameter.name(),
                     ", but ragged_shard cuts dim 0; set one of the two"));
  }
  if (counted < 0 || counted >= data.ndim()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FullyShard: parameter ", parameter.name(), " of shape ",
        ToString(data.sizes()), " cannot be sharded on dim ", dim));
  }
  return counted;
}

std::vector<Interval> ShardIntervals(const ShardedForm& form, int fsdp_axis,
                                     ShapeView global_shape, int dim) {
  MeshCoordinate at = *form.mesh.coordinate();
  const Box whole =
      form.layout.WithReplicate(fsdp_axis).LocalBox(global_shape, at);
  std::vector<Interval> intervals;
  for (int r = 0; r < form.mesh.size(fsdp_axis); ++r) {
    at[static_cast<size_t>(fsdp_axis)] = r;
    intervals.push_back(
        RelativeTo(form.layout.LocalBox(global_shape, at), whole.offsets)
            .interval(dim));
  }
  return intervals;
}

absl::StatusOr<GroupPlan> MakeRagged(std::vector<PlannedParameter> planned,
                                     const std::vector<int>& fsdp_axes,
                                     const RaggedShard& ragged,
                                     std::vector<GroupMember>& members) {
  std::vector<RaggedParameter> first;
  bool has_first_shape = true;
  for (size_t i = 0; i < members.size(); ++i) {
    const nn::Parameter& parameter = *members[i].parameter;
    const ShardedForm& form = members[i].sharded_form;
    const absl::Span<const int> axes = form.layout.axes_of_dim(0);
    if (axes.empty() || axes.back() != fsdp_axes[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "FullyShard: ragged_shard needs parameter ", parameter.name(),
          " to be split on dim 0 by the FSDP axis last, but its layout is ",
          form.layout.ToStringByDim()));
    }
    const int64_t block =
        ragged.rows_per_block ? ragged.rows_per_block(parameter) : 1;
    if (block < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "FullyShard: RaggedShard::rows_per_block of parameter ",
          parameter.name(), " is ", block, "; it must be at least 1"));
    }
    const MeshCoordinate origin(static_cast<size_t>(form.mesh.ndim()), 0);
    const Shape shape = form.layout.WithReplicate(fsdp_axes[i])
                            .LocalShape(parameter.data().sizes(), origin);
    first.push_back(
        {shape[0], NumElements(ShapeView(shape).subspan(1)), block});
    has_first_shape = has_first_shape && shape == planned[i].full_shape;
  }
  const auto num_shards = static_cast<int>(planned[0].intervals.size());
  RaggedPlan plan = PlanRaggedShards(first, num_shards);
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    ShardedForm& form = members[i].sharded_form;
    form.layout = form.layout.WithCuts(0, std::move(plan.cuts[i]));
    planned[i].intervals = ShardIntervals(
        form, fsdp_axes[i], members[i].parameter->data().sizes(), /*dim=*/0);
    offsets.push_back(end);
    end += RoundUp(NumElements(planned[i].full_shape), kFullAlignment);
  }
  return has_first_shape
             ? GroupPlan::Ragged(std::move(planned), num_shards,
                                 std::move(plan.offsets), plan.slot_elems)
             : GroupPlan::Ragged(std::move(planned), num_shards,
                                 std::move(offsets), /*slot_elems=*/0);
}

}  // namespace crosshatch::fsdp
