// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/step.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/dtensor/layout/layout_pair.h"

namespace crosshatch {
namespace {

using Kind = RedistributeStepKind;

/// Returns whether the rank at `coordinate` writes its values into the result
/// of a kToPartial step: the first of the ranks that hold the same ones.
bool Contributes(const RedistributeStep& step,
                 absl::Span<const int> coordinate) {
  for (int axis : step.axes) {
    if (IsFilled(step.to.state_of_axis(axis).op) &&
        step.from.state_of_axis(axis).is_replicate() && coordinate[axis] != 0) {
      return false;
    }
  }
  return true;
}

std::string DimList(const std::vector<int>& dims) {
  return absl::StrJoin(dims, ", ", [](std::string* out, int dim) {
    absl::StrAppend(out, "dim ", dim);
  });
}

}  // namespace

const char* Name(RedistributeStepKind kind) {
  switch (kind) {
    case Kind::kLocal:
      return "local";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kToPartial:
      return "to_partial";
  }
  return "unknown";
}

std::string RedistributeStep::ToString() const {
  // Dims that the group's axes split in the source, and dims whose split
  // changes.
  std::vector<int> sources;
  std::vector<int> changed;
  for (int dim = 0; dim < from.ndim(); ++dim) {
    const absl::Span<const int> split = from.axes_of_dim(dim);
    if (std::any_of(split.begin(), split.end(), [this](int axis) {
          return std::find(axes.begin(), axes.end(), axis) != axes.end();
        })) {
      sources.push_back(dim);
    }
    if (from.sharding(dim) != to.sharding(dim) && to.is_sharded(dim)) {
      changed.push_back(dim);
    }
  }
  std::vector<std::string> parts;
  switch (kind) {
    case Kind::kLocal:
      if (!changed.empty()) parts.push_back(DimList(changed));
      break;
    case Kind::kAllGather:
      parts.push_back(DimList(sources));
      break;
    case Kind::kAllToAll:
      parts.push_back(
          changed.empty() || changed == sources
              ? DimList(sources)
              : absl::StrCat(DimList(sources), " -> ", DimList(changed)));
      break;
    case Kind::kReduceScatter:
    case Kind::kAllReduce:
    case Kind::kToPartial:
      parts.emplace_back(crosshatch::ToString(op));
      if (divisor != 1) absl::StrAppend(&parts.back(), "/", divisor);
      if (kind == Kind::kReduceScatter) parts.push_back(DimList(changed));
      break;
  }
  if (kind != Kind::kLocal) {
    parts.push_back(absl::StrCat(
        "axes=[",
        absl::StrJoin(axes, ",",
                      [this](std::string* out, int axis) {
                        absl::StrAppend(out, from.mesh().axis_name(axis));
                      }),
        "]"));
  }
  return absl::StrCat(Name(kind), "(", absl::StrJoin(parts, ", "), ")");
}

TransferBoxes StepTransfers(const RedistributeStep& step, ShapeView shape,
                            absl::Span<const int> coordinate) {
  const Box source = step.from.LocalBox(shape, coordinate);
  const Box destination = step.to.LocalBox(shape, coordinate);
  TransferBoxes boxes;
  const auto exchange = [&](const Box& sent, const Box& received) {
    boxes.sends.push_back(RelativeTo(sent, source.offsets));
    boxes.receives.push_back(RelativeTo(received, destination.offsets));
  };
  if (!step.communicates() || step.kind == Kind::kAllReduce) {
    const bool copies =
        step.kind != Kind::kToPartial || Contributes(step, coordinate);
    const Box both = Intersect(source, destination);
    if (copies && !both.empty()) exchange(both, both);
    return boxes;
  }
  const MeshLayout& mesh = step.from.mesh();
  boxes.self = mesh.GroupIndex(step.axes, coordinate);
  for (int rank : mesh.GroupRanks(step.axes, coordinate)) {
    const MeshCoordinate peer = *mesh.CoordinateOf(rank);
    const Box sent = Intersect(source, step.to.LocalBox(shape, peer));
    if (step.kind == Kind::kReduceScatter) {
      exchange(sent, destination);
    } else {
      exchange(sent, Intersect(step.from.LocalBox(shape, peer), destination));
    }
  }
  return boxes;
}

RedistributeCost StepCost(const RedistributeStep& step, ShapeView shape,
                          int64_t element_size) {
  if (!step.communicates()) return {};
  const int64_t group = step.from.mesh().GroupSize(step.axes);
  int64_t most = 0;
  switch (step.kind) {
    case Kind::kReduceScatter:
      most = (group - 1) * LargestShard(step.to, shape);
      break;
    case Kind::kAllReduce: {
      // Each rank reduces a piece and gathers the others.
      const int64_t count = LargestShard(step.to, shape);
      const int64_t piece = (count + group - 1) / group;
      most = (group - 1) * piece + count - piece;
      break;
    }
    default:
      most = MostMissing(step.from, step.to, shape);
  }
  return {most * element_size, 1};
}

}  // namespace crosshatch
