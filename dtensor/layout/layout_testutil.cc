// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/layout_testutil.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "crosshatch/dtensor/layout/placement.h"

namespace crosshatch {
namespace {

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

MeshLayout RandomMesh(const std::vector<std::vector<int>>& shapes, int world,
                      std::mt19937& random) {
  std::vector<int> shape;
  int size = 0;
  do {
    shape = shapes[random() % shapes.size()];
    size = std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>());
  } while (size > world);
  std::vector<int> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  ranks.resize(size);
  return OracleMesh(shape, std::move(ranks));
}

Layout LayoutOf(const MeshLayout& mesh, int ndim, const std::string& text) {
  return Layout::FromPlacements(mesh, ndim, ParsePlacements(text).value())
      .value();
}

std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim,
                               const std::vector<ReduceOp>& ops, int64_t unit) {
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
  if (unit == 1) return layouts;
  for (Layout& layout : layouts) {
    for (int dim = 0; dim < ndim; ++dim) {
      if (!layout.is_sharded(dim)) continue;
      DimSharding sharding = layout.sharding(dim);
      sharding.unit = unit;
      layout = layout.WithDim(dim, sharding);
    }
  }
  return layouts;
}

std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim, bool sums) {
  return AllLayouts(
      mesh, ndim,
      sums ? std::vector<ReduceOp>{ReduceOp::kSum} : std::vector<ReduceOp>());
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
    if (sharding.axes.empty() || Pick(3, random) != 0) continue;
    if (sharding.fine_axes == 0) sharding.unit = 1;
    for (int i = 1; i < mesh.size(sharding.axes.back()); ++i) {
      sharding.cuts.push_back(Pick(6, random));
    }
    std::sort(sharding.cuts.begin(), sharding.cuts.end());
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
