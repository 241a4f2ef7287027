// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/oracle.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch {
namespace {

std::vector<int> PartialAxes(const Layout& layout) {
  std::vector<int> axes;
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_partial()) axes.push_back(axis);
  }
  return axes;
}

/// Returns the reduction of one value for each index along the partial axes,
/// given in row-major order. The ops commute, so sums and averages may be
/// combined.
double ReducePartial(const Layout& layout, const std::vector<double>& values) {
  const std::vector<int> axes = PartialAxes(layout);
  if (axes.empty()) return values.at(0);
  int64_t averaged = 1;
  ReduceOp op = ReduceOp::kSum;
  for (int axis : axes) {
    const ReduceOp of_axis = layout.state_of_axis(axis).op;
    if (of_axis == ReduceOp::kAvg) {
      averaged *= layout.mesh().size(axis);
    } else {
      op = of_axis;
    }
  }
  return ReduceValues(op, values) / static_cast<double>(averaged);
}

}  // namespace

DenseTensor::DenseTensor(const Layout& layout, ShapeView shape,
                         std::mt19937& random)
    : layout_(layout),
      shape_(shape.begin(), shape.end()),
      summands_(layout.mesh().GroupSize(PartialAxes(layout)),
                Values(NumElements(shape))),
      values_(NumElements(shape)) {
  std::uniform_int_distribution<int> small(1, 3);
  for (Values& summand : summands_) {
    for (double& x : summand) x = small(random);
  }
  std::vector<double> values(summands_.size());
  for (size_t e = 0; e < values_.size(); ++e) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = summands_[i][e];
    values_[e] = ReducePartial(layout, values);
  }
}

std::vector<Values> DenseTensor::Shards() const {
  const std::vector<int> axes = PartialAxes(layout_);
  return CutAll(layout_, shape_,
                [&](const MeshCoordinate& at) -> const Values& {
                  return summands_[layout_.mesh().GroupIndex(axes, at)];
                });
}

std::string DenseTensor::Mismatch(const Layout& to,
                                  const std::vector<Values>& shards) const {
  const MeshLayout& mesh = to.mesh();
  const std::vector<int> axes = PartialAxes(to);
  std::vector<int> position(
      1 + *std::max_element(mesh.ranks().begin(), mesh.ranks().end()));
  for (int i = 0; i < mesh.size(); ++i) position[mesh.ranks()[i]] = i;
  for (int i = 0; i < mesh.size(); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    const Values expected = Cut(values_, shape_, to.LocalBox(shape_, at));
    if (shards[i].size() != expected.size()) {
      return absl::StrCat("position ", i, " has ", shards[i].size(),
                          " elements instead of ", expected.size());
    }
    const std::vector<int> group = mesh.GroupRanks(axes, at);
    std::vector<double> values(group.size());
    for (size_t e = 0; e < expected.size(); ++e) {
      for (size_t r = 0; r < group.size(); ++r) {
        values[r] = shards[position[group[r]]].at(e);
      }
      const double actual = ReducePartial(to, values);
      // Only averages over 3 ranks and their sums are rounded.
      if (std::abs(actual - expected[e]) > 1e-12 * std::abs(expected[e])) {
        return absl::StrCat("position ", i, " element ", e, ": ", actual,
                            " instead of ", expected[e]);
      }
    }
  }
  return "";
}

}  // namespace crosshatch
