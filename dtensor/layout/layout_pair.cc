// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/layout_pair.h"

#include <algorithm>
#include <vector>

#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

/// Numbers of elements along some dims: of a destination, and of the part of it
/// that is held.
struct Extent {
  int64_t wanted;
  int64_t held;
};

/// The extents of all ranks that can give the largest difference of products.
/// An extent that needs less and holds more cannot.
using Frontier = absl::InlinedVector<Extent, 8>;

void Insert(const Extent& extent, Frontier& frontier) {
  for (const Extent& other : frontier) {
    if (other.wanted >= extent.wanted && other.held <= extent.held) return;
  }
  frontier.erase(std::remove_if(frontier.begin(), frontier.end(),
                                [&extent](const Extent& other) {
                                  return extent.wanted >= other.wanted &&
                                         extent.held <= other.held;
                                }),
                 frontier.end());
  frontier.push_back(extent);
}

/// Returns how much the index of a chunk of `dim` grows along `axis`; 0 for
/// axes that do not split it.
int Stride(const Layout& layout, int dim, int axis) {
  const absl::Span<const int> axes = layout.axes_of_dim(dim);
  if (!HasAxis(axes, axis)) return 0;
  int stride = 1;
  for (size_t i = axes.size(); axes[--i] != axis;) {
    stride *= layout.mesh().size(axes[i]);
  }
  return stride;
}

/// Returns the size of the largest chunk of a dim. Even chunks are largest at
/// coordinate 0.
int64_t LargestChunk(const Layout& layout, int dim, int64_t size) {
  if (layout.sharding(dim).cuts.empty()) {
    const MeshCoordinate first(layout.mesh().ndim(), 0);
    return layout.DimInterval(dim, size, first).size();
  }
  int64_t most = 0;
  for (const Interval& chunk : layout.DimIntervals(dim, size)) {
    most = std::max(most, chunk.size());
  }
  return most;
}

/// The chunks of one dim under both layouts, at a coordinate that changes.
struct DimChunks {
  std::vector<Interval> from;
  std::vector<Interval> to;
  /// The chunks of pooled ranks, relative to the current one.
  std::vector<int> pool = {0};
  absl::InlinedVector<int, 4> from_strides;
  absl::InlinedVector<int, 4> to_strides;
  int from_index = 0;
  int to_index = 0;
};

/// Dims that share an axis in either layout.
struct Component {
  absl::InlinedVector<int, 4> dims;
  AxisList axes;
};

std::vector<Component> Components(const Layout& from, const Layout& to,
                                  absl::Span<const int> pooled) {
  std::vector<Component> components;
  for (int dim = 0; dim < from.ndim(); ++dim) {
    Component joined = {{dim}, {}};
    const auto add_axis = [&](int axis) {
      if (from.mesh().size(axis) > 1 && !HasAxis(pooled, axis) &&
          !HasAxis(joined.axes, axis)) {
        joined.axes.push_back(axis);
      }
    };
    for (int axis : from.axes_of_dim(dim)) add_axis(axis);
    for (int axis : to.axes_of_dim(dim)) add_axis(axis);
    for (size_t c = components.size(); c-- > 0;) {
      Component& other = components[c];
      if (std::none_of(
              other.axes.begin(), other.axes.end(),
              [&joined](int axis) { return HasAxis(joined.axes, axis); })) {
        continue;
      }
      joined.dims.insert(joined.dims.end(), other.dims.begin(),
                         other.dims.end());
      for (int axis : other.axes) add_axis(axis);
      components.erase(components.begin() + c);
    }
    components.push_back(std::move(joined));
  }
  return components;
}

DimChunks ChunksOf(const Layout& from, const Layout& to, int dim, int64_t size,
                   const AxisList& axes, absl::Span<const int> pooled) {
  DimChunks chunks;
  chunks.from = from.DimIntervals(dim, size);
  chunks.to = to.DimIntervals(dim, size);
  for (int axis : axes) {
    chunks.from_strides.push_back(Stride(from, dim, axis));
    chunks.to_strides.push_back(Stride(to, dim, axis));
  }
  for (int axis : pooled) {
    const int stride = Stride(from, dim, axis);
    if (stride == 0) continue;
    std::vector<int> wider;
    for (int offset : chunks.pool) {
      for (int i = 0; i < from.mesh().size(axis); ++i) {
        wider.push_back(offset + i * stride);
      }
    }
    chunks.pool = std::move(wider);
  }
  return chunks;
}

Frontier FrontierOf(const Component& component, const Layout& from,
                    const Layout& to, ShapeView shape,
                    absl::Span<const int> pooled) {
  const MeshLayout& mesh = from.mesh();
  Frontier frontier;
  std::vector<DimChunks> dims;
  for (int dim : component.dims) {
    // The dim does not change and shares no axis: the rank that needs most
    // counts.
    if (component.dims.size() == 1 && from.sharding(dim) == to.sharding(dim)) {
      const int64_t most = LargestChunk(to, dim, shape[dim]);
      return {{most, most}};
    }
    dims.push_back(ChunksOf(from, to, dim, shape[dim], component.axes, pooled));
  }
  MeshCoordinate place(component.axes.size(), 0);
  Extent last = {-1, -1};
  while (true) {
    Extent extent = {1, 1};
    for (const DimChunks& chunks : dims) {
      const Interval& wanted = chunks.to[chunks.to_index];
      int64_t held = 0;
      for (int offset : chunks.pool) {
        held +=
            Intersect(chunks.from[chunks.from_index + offset], wanted).size();
      }
      extent.wanted *= wanted.size();
      extent.held *= held;
    }
    // Adjacent extents are often equal.
    if (extent.wanted != last.wanted || extent.held != last.held) {
      Insert(extent, frontier);
      last = extent;
    }
    size_t i = place.size();
    while (i > 0) {
      --i;
      const bool wraps = ++place[i] == mesh.size(component.axes[i]);
      const int steps = wraps ? 1 - place[i] : 1;
      for (DimChunks& chunks : dims) {
        chunks.from_index += steps * chunks.from_strides[i];
        chunks.to_index += steps * chunks.to_strides[i];
      }
      if (!wraps) break;
      place[i] = 0;
      if (i == 0) return frontier;
    }
    if (place.empty()) return frontier;
  }
}

}  // namespace

int64_t LargestShard(const Layout& layout, ShapeView shape) {
  int64_t numel = 1;
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    numel *= LargestChunk(layout, dim, shape[dim]);
  }
  return numel;
}

int64_t MostMissing(const Layout& from, const Layout& to, ShapeView shape,
                    absl::Span<const int> pooled) {
  CH_CHECK(from.mesh() == to.mesh());
  // The product of the dims so far.
  Frontier product = {{1, 1}};
  for (const Component& component : Components(from, to, pooled)) {
    Frontier next;
    for (const Extent& extent :
         FrontierOf(component, from, to, shape, pooled)) {
      for (const Extent& other : product) {
        Insert({extent.wanted * other.wanted, extent.held * other.held}, next);
      }
    }
    product = std::move(next);
  }
  int64_t most = 0;
  for (const Extent& extent : product) {
    most = std::max(most, extent.wanted - extent.held);
  }
  return most;
}

bool IsBeforeReduction(const Layout& from, const Layout& to) {
  for (int axis = 0; axis < to.mesh().ndim(); ++axis) {
    const AxisState& state = from.state_of_axis(axis);
    if (!state.is_partial() && state != to.state_of_axis(axis)) return false;
  }
  return true;
}

AxisList NeededAxes(const Layout& from, const Layout& to, int dim,
                    int64_t size) {
  AxisList needed;
  if (size == 0 || from.sharding(dim) == to.sharding(dim)) return needed;
  const MeshLayout& mesh = from.mesh();
  struct SharedAxis {
    int axis;
    int from_stride;
    int to_stride;
  };
  absl::InlinedVector<SharedAxis, 4> shared;
  for (int axis : from.axes_of_dim(dim)) {
    if (mesh.size(axis) == 1) continue;
    if (HasAxis(to.axes_of_dim(dim), axis)) {
      shared.push_back({axis, Stride(from, dim, axis), Stride(to, dim, axis)});
    } else {
      // Ranks along it need the same and hold different parts.
      needed.push_back(axis);
    }
  }
  // An element's holder and its receiver differ along an axis if their chunks
  // have different digits. Chunks ascend in both layouts.
  const std::vector<Interval> held = from.DimIntervals(dim, size);
  const std::vector<Interval> wanted = to.DimIntervals(dim, size);
  size_t first = 0;
  for (size_t h = 0; h < held.size() && !shared.empty(); ++h) {
    if (held[h].size() == 0) continue;
    while (wanted[first].end <= held[h].begin) ++first;
    for (size_t w = first; w < wanted.size() && wanted[w].begin < held[h].end;
         ++w) {
      if (wanted[w].size() == 0) continue;
      for (size_t i = shared.size(); i-- > 0;) {
        const int count = mesh.size(shared[i].axis);
        if (static_cast<int>(h) / shared[i].from_stride % count ==
            static_cast<int>(w) / shared[i].to_stride % count) {
          continue;
        }
        needed.push_back(shared[i].axis);
        shared.erase(shared.begin() + i);
      }
    }
  }
  std::sort(needed.begin(), needed.end());
  return needed;
}

bool SameShards(const Layout& a, const Layout& b, ShapeView shape) {
  if (a == b) return true;
  if (a.partials() != b.partials()) return false;
  for (int i = 0; i < a.mesh().size(); ++i) {
    const MeshCoordinate at = a.mesh().CoordinateAt(i);
    const Box box_a = a.LocalBox(shape, at);
    const Box box_b = b.LocalBox(shape, at);
    if (box_a.sizes != box_b.sizes) return false;
    if (!box_a.empty() && box_a != box_b) return false;
  }
  return true;
}

}  // namespace crosshatch
