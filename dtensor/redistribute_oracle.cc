// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute_oracle.h"

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

/// The reduction of one value for each place along the partial axes, given in
/// row-major order. The ops commute, so sums and averages may be done at once.
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

int Pick(int n, std::mt19937& random) {
  return std::uniform_int_distribution<int>(0, n - 1)(random);
}

}  // namespace

MeshLayout OracleMesh(const std::vector<int>& sizes, std::vector<int> ranks) {
  const std::vector<std::string> names = {"dp", "tp", "cp"};
  std::vector<MeshAxis> axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    axes.push_back({names[i], sizes[i]});
  }
  return ranks.empty()
             ? MeshLayout::Create(std::move(axes)).value()
             : MeshLayout::Create(std::move(axes), std::move(ranks)).value();
}

Layout LayoutOf(const MeshLayout& mesh, int ndim, const std::string& text) {
  return Layout::FromPlacements(mesh, ndim, ParsePlacements(text).value())
      .value();
}

DenseTensor::DenseTensor(const Layout& layout, ShapeView shape,
                         std::mt19937& random)
    : layout_(layout),
      shape_(shape.begin(), shape.end()),
      summands_(layout.mesh().GroupSize(PartialAxes(layout)),
                Values(NumElements(shape))),
      values_(NumElements(shape)) {
  for (Values& summand : summands_) {
    for (double& x : summand) x = 1 + Pick(3, random);
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
      // Only averages over 3 ranks and their sums round.
      if (std::abs(actual - expected[e]) > 1e-12 * std::abs(expected[e])) {
        return absl::StrCat("position ", i, " element ", e, ": ", actual,
                            " instead of ", expected[e]);
      }
    }
  }
  return "";
}

std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim,
                               const std::vector<ReduceOp>& ops) {
  std::vector<Layout> layouts = {Layout::Replicated(mesh, ndim)};
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    std::vector<Layout> next;
    for (const Layout& layout : layouts) {
      next.push_back(layout);
      for (int dim = 0; dim < ndim; ++dim) {
        const int others = static_cast<int>(layout.axes_of_dim(dim).size());
        for (int position = 0; position <= others; ++position) {
          next.push_back(layout.WithShard(axis, dim, position));
        }
      }
      for (ReduceOp op : ops) {
        bool commutes = true;
        for (const AxisState& state : layout.axis_states()) {
          commutes &= !state.is_partial() || Commute(state.op, op);
        }
        if (commutes) next.push_back(layout.WithPartial(axis, op));
      }
    }
    layouts = std::move(next);
  }
  return layouts;
}

Layout RandomLayout(const MeshLayout& mesh, int ndim, std::mt19937& random) {
  std::vector<DimSharding> dims(ndim);
  Layout::Partials partials(mesh.ndim());
  const bool linear = Pick(2, random) == 0;
  const std::vector<ReduceOp> linear_ops = {ReduceOp::kSum, ReduceOp::kAvg};
  const std::vector<ReduceOp> other_ops = {ReduceOp::kProduct, ReduceOp::kMin,
                                           ReduceOp::kMax};
  const ReduceOp other = other_ops[Pick(3, random)];
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const int choice = Pick(ndim + 2, random);
    if (choice < ndim) {
      auto& axes = dims[choice].axes;
      axes.insert(
          axes.begin() + Pick(static_cast<int>(axes.size()) + 1, random), axis);
      if (Pick(2, random) == 0) dims[choice].unit = 1 + Pick(3, random);
    } else if (choice == ndim) {
      partials[axis] = linear ? linear_ops[Pick(2, random)] : other;
    }
  }
  for (DimSharding& sharding : dims) {
    sharding.fine_axes =
        Pick(static_cast<int>(sharding.axes.size()) + 1, random);
  }
  return Layout(mesh, std::move(dims), std::move(partials));
}

Shape RandomShape(int ndim, int most, std::mt19937& random) {
  Shape shape;
  for (int dim = 0; dim < ndim; ++dim) {
    shape.push_back(Pick(most + 1, random));
  }
  return shape;
}

}  // namespace crosshatch
