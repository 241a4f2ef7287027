// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/mesh_layout.h"

#include <algorithm>
#include <cstdint>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {

struct MeshLayout::Impl {
  std::vector<int> shape;
  std::vector<std::string> names;
  std::vector<int> ranks;
  /// (world rank, row-major position), sorted by rank.
  std::vector<std::pair<int, int>> positions;
  /// Null for a root.
  std::shared_ptr<const Impl> root;
  size_t hash = 0;

  bool SameValues(const Impl& other) const {
    return shape == other.shape && names == other.names && ranks == other.ranks;
  }
};

namespace {

std::string ListOf(absl::Span<const std::string> names) {
  return absl::StrJoin(names, ", ");
}

}  // namespace

absl::StatusOr<MeshLayout> MeshLayout::Create(std::vector<MeshAxis> axes) {
  int64_t size = 1;
  for (const MeshAxis& axis : axes) {
    if (axis.size > 0) size *= axis.size;
    if (size > (int64_t{1} << 30)) {
      return absl::InvalidArgumentError("mesh: more than 2^30 ranks");
    }
  }
  std::vector<int> ranks(static_cast<size_t>(size));
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  return Make(std::move(axes), std::move(ranks), nullptr);
}

absl::StatusOr<MeshLayout> MeshLayout::Create(std::vector<MeshAxis> axes,
                                              std::vector<int> ranks) {
  return Make(std::move(axes), std::move(ranks), nullptr);
}

absl::StatusOr<MeshLayout> MeshLayout::Make(std::vector<MeshAxis> axes,
                                            std::vector<int> ranks,
                                            std::shared_ptr<const Impl> root) {
  if (axes.empty()) {
    return absl::InvalidArgumentError("mesh: no axes; give at least one");
  }
  auto impl = std::make_shared<Impl>();
  int64_t size = 1;
  for (MeshAxis& axis : axes) {
    if (axis.name.empty()) {
      return absl::InvalidArgumentError("mesh: an axis without a name");
    }
    // Names are printed in lists and before "=size".
    if (axis.name.find_first_of(",=") != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "mesh: axis name \"", axis.name, "\" holds a \",\" or \"=\""));
    }
    if (std::find(impl->names.begin(), impl->names.end(), axis.name) !=
        impl->names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh: axis name \"", axis.name, "\" is used twice"));
    }
    if (axis.size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("mesh: axis \"", axis.name,
                                                     "\" has size ", axis.size,
                                                     ", needs at least 1"));
    }
    size *= axis.size;
    if (size > (int64_t{1} << 30)) {
      return absl::InvalidArgumentError("mesh: more than 2^30 ranks");
    }
    impl->shape.push_back(axis.size);
    impl->names.push_back(std::move(axis.name));
  }
  if (static_cast<int64_t>(ranks.size()) != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh: shape (", absl::StrJoin(impl->shape, ", "),
                     ") needs ", size, " ranks, got ", ranks.size()));
  }
  impl->positions.reserve(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh: negative rank ", ranks[i]));
    }
    impl->positions.emplace_back(ranks[i], static_cast<int>(i));
  }
  std::sort(impl->positions.begin(), impl->positions.end());
  for (size_t i = 1; i < impl->positions.size(); ++i) {
    if (impl->positions[i - 1].first == impl->positions[i].first) {
      return absl::InvalidArgumentError(absl::StrCat(
          "mesh: rank ", impl->positions[i].first, " appears twice"));
    }
  }
  impl->ranks = std::move(ranks);
  if (root != nullptr && impl->SameValues(*root)) {
    return MeshLayout(std::move(root));
  }
  impl->hash = absl::HashOf(impl->shape, impl->names, impl->ranks,
                            root == nullptr ? size_t{0} : root->hash);
  impl->root = std::move(root);
  return MeshLayout(std::move(impl));
}

absl::StatusOr<MeshLayout> MeshLayout::Concatenate(
    absl::Span<const MeshLayout> slices) {
  if (slices.empty()) {
    return absl::InvalidArgumentError("mesh: nothing to concatenate");
  }
  const MeshLayout root = slices[0].root();
  std::vector<MeshAxis> axes;
  for (const MeshLayout& slice : slices) {
    if (slice.root() != root) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh: cannot concatenate slices of different meshes, ",
                       root.ToString(), " and ", slice.root().ToString()));
    }
    for (int axis = 0; axis < slice.ndim(); ++axis) {
      axes.push_back({slice.axis_name(axis), slice.size(axis)});
    }
  }
  std::optional<int> common_rank;
  for (int rank : slices[0].ranks()) {
    if (std::all_of(slices.begin(), slices.end(),
                    [rank](const MeshLayout& s) { return s.Contains(rank); })) {
      common_rank = rank;
      break;
    }
  }
  const auto describe = [&slices] {
    return absl::StrJoin(slices, " and ", [](std::string* out, const auto& s) {
      absl::StrAppend(out, s.ToString());
    });
  };
  if (!common_rank.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mesh: cannot concatenate slices that share no rank: ", describe()));
  }
  // A slice is a set of displacements from the common rank in the root's
  // coordinates. The joined mesh has all sums of one displacement from each
  // slice.
  const MeshCoordinate origin = *root.CoordinateOf(*common_rank);
  const absl::Status overlap = absl::InvalidArgumentError(absl::StrCat(
      "mesh: cannot concatenate slices that overlap: ", describe()));
  std::vector<MeshCoordinate> coordinates = {origin};
  for (const MeshLayout& slice : slices) {
    if (static_cast<int64_t>(coordinates.size()) * slice.size() > root.size()) {
      return overlap;
    }
    std::vector<MeshCoordinate> next;
    next.reserve(coordinates.size() * slice.size());
    for (const MeshCoordinate& place : coordinates) {
      for (int rank : slice.ranks()) {
        MeshCoordinate sum = *root.CoordinateOf(rank);
        for (int axis = 0; axis < root.ndim(); ++axis) {
          sum[axis] += place[axis] - origin[axis];
          if (sum[axis] < 0 || sum[axis] >= root.size(axis)) return overlap;
        }
        next.push_back(std::move(sum));
      }
    }
    coordinates = std::move(next);
  }
  std::vector<int> ranks;
  ranks.reserve(coordinates.size());
  for (const MeshCoordinate& place : coordinates) {
    ranks.push_back(root.rank_at(place));
  }
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return overlap;
  }
  return Make(std::move(axes), std::move(ranks), root.impl_);
}

int MeshLayout::ndim() const { return static_cast<int>(impl_->shape.size()); }

int MeshLayout::size() const { return static_cast<int>(impl_->ranks.size()); }

int MeshLayout::size(int axis) const {
  CH_CHECK(axis >= 0 && axis < ndim())
      << "axis " << axis << " of " << ToString();
  return impl_->shape[axis];
}

absl::Span<const int> MeshLayout::shape() const { return impl_->shape; }

absl::Span<const std::string> MeshLayout::axis_names() const {
  return impl_->names;
}

const std::string& MeshLayout::axis_name(int axis) const {
  CH_CHECK(axis >= 0 && axis < ndim())
      << "axis " << axis << " of " << ToString();
  return impl_->names[axis];
}

absl::StatusOr<int> MeshLayout::AxisIndex(absl::string_view name) const {
  for (int axis = 0; axis < ndim(); ++axis) {
    if (impl_->names[axis] == name) return axis;
  }
  return absl::NotFoundError(absl::StrCat("mesh: no axis \"", name,
                                          "\"; it has ", ListOf(impl_->names)));
}

absl::Span<const int> MeshLayout::ranks() const { return impl_->ranks; }

int MeshLayout::rank_at(absl::Span<const int> coordinate) const {
  CH_CHECK_EQ(static_cast<int>(coordinate.size()), ndim());
  int position = 0;
  for (int axis = 0; axis < ndim(); ++axis) {
    CH_CHECK(coordinate[axis] >= 0 && coordinate[axis] < impl_->shape[axis])
        << "coordinate (" << absl::StrJoin(coordinate, ", ") << ") is outside "
        << ToString();
    position = position * impl_->shape[axis] + coordinate[axis];
  }
  return impl_->ranks[position];
}

std::optional<MeshCoordinate> MeshLayout::CoordinateOf(int world_rank) const {
  const auto it =
      std::lower_bound(impl_->positions.begin(), impl_->positions.end(),
                       std::make_pair(world_rank, 0));
  if (it == impl_->positions.end() || it->first != world_rank) {
    return std::nullopt;
  }
  return CoordinateAt(it->second);
}

bool MeshLayout::Contains(int world_rank) const {
  return CoordinateOf(world_rank).has_value();
}

MeshCoordinate MeshLayout::CoordinateAt(int index) const {
  CH_CHECK(index >= 0 && index < size()) << "index " << index;
  MeshCoordinate coordinate(ndim());
  for (int axis = ndim() - 1; axis >= 0; --axis) {
    coordinate[axis] = index % impl_->shape[axis];
    index /= impl_->shape[axis];
  }
  return coordinate;
}

std::vector<int> MeshLayout::GroupRanks(
    absl::Span<const int> axes, absl::Span<const int> coordinate) const {
  MeshCoordinate place(coordinate.begin(), coordinate.end());
  for (int axis : axes) place[axis] = 0;
  std::vector<int> ranks(GroupSize(axes));
  for (int& rank : ranks) {
    rank = rank_at(place);
    for (size_t i = axes.size(); i-- > 0;) {
      if (++place[axes[i]] < size(axes[i])) break;
      place[axes[i]] = 0;
    }
  }
  return ranks;
}

std::vector<int> MeshLayout::GroupRanks(absl::Span<const int> axes,
                                        int world_rank) const {
  const std::optional<MeshCoordinate> coordinate = CoordinateOf(world_rank);
  CH_CHECK(coordinate.has_value())
      << "rank " << world_rank << " is not on " << ToString();
  return GroupRanks(axes, *coordinate);
}

int MeshLayout::GroupIndex(absl::Span<const int> axes,
                           absl::Span<const int> coordinate) const {
  int index = 0;
  for (int axis : axes) index = index * size(axis) + coordinate[axis];
  return index;
}

int MeshLayout::GroupSize(absl::Span<const int> axes) const {
  int size = 1;
  for (int axis : axes) size *= this->size(axis);
  return size;
}

absl::StatusOr<std::vector<int>> MeshLayout::AxesNamed(
    absl::Span<const std::string> names) const {
  if (names.empty()) {
    return absl::InvalidArgumentError("mesh: no axis named");
  }
  std::vector<int> axes;
  for (const std::string& name : names) {
    CH_ASSIGN_OR_RETURN(const int axis, AxisIndex(name));
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh: axis \"", name, "\" is named twice"));
    }
    axes.push_back(axis);
  }
  return axes;
}

std::shared_ptr<const MeshLayout::Impl> MeshLayout::RootImpl() const {
  return is_root() ? impl_ : impl_->root;
}

absl::StatusOr<MeshLayout> MeshLayout::Slice(
    absl::Span<const std::string> names, int world_rank) const {
  CH_ASSIGN_OR_RETURN(const std::vector<int> axes, AxesNamed(names));
  const std::optional<MeshCoordinate> coordinate = CoordinateOf(world_rank);
  if (!coordinate.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh: rank ", world_rank, " is not on ", ToString(),
                     ", so it has no slice ", ListOf(names)));
  }
  std::vector<MeshAxis> kept;
  for (int axis : axes) kept.push_back({axis_name(axis), size(axis)});
  return Make(std::move(kept), GroupRanks(axes, *coordinate), RootImpl());
}

absl::StatusOr<MeshLayout> MeshLayout::Flatten(
    absl::Span<const std::string> names, std::string new_name) const {
  CH_ASSIGN_OR_RETURN(const std::vector<int> flat, AxesNamed(names));
  const int first = *std::min_element(flat.begin(), flat.end());
  // Axes in the order in which the ranks of the result vary, slowest first.
  std::vector<int> order;
  std::vector<MeshAxis> axes;
  for (int axis = 0; axis < ndim(); ++axis) {
    if (axis == first) {
      order.insert(order.end(), flat.begin(), flat.end());
      axes.push_back({new_name, GroupSize(flat)});
    } else if (std::find(flat.begin(), flat.end(), axis) == flat.end()) {
      order.push_back(axis);
      axes.push_back({axis_name(axis), size(axis)});
    }
  }
  return Make(std::move(axes), GroupRanks(order, MeshCoordinate(ndim(), 0)),
              RootImpl());
}

absl::StatusOr<MeshLayout> MeshLayout::Unflatten(
    absl::string_view name, absl::Span<const MeshAxis> axes) const {
  CH_ASSIGN_OR_RETURN(const int split, AxisIndex(name));
  int64_t product = 1;
  for (const MeshAxis& axis : axes) {
    if (axis.size < 1 || product > size()) break;
    product *= axis.size;
  }
  if (axes.empty() || product != size(split)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh: cannot split axis \"", name, "\" of size ",
                     size(split), " into sizes (",
                     absl::StrJoin(axes, ", ",
                                   [](std::string* out, const MeshAxis& axis) {
                                     absl::StrAppend(out, axis.size);
                                   }),
                     ")"));
  }
  std::vector<MeshAxis> all;
  for (int axis = 0; axis < ndim(); ++axis) {
    if (axis == split) {
      all.insert(all.end(), axes.begin(), axes.end());
    } else {
      all.push_back({axis_name(axis), size(axis)});
    }
  }
  return Make(std::move(all), impl_->ranks, RootImpl());
}

MeshLayout MeshLayout::root() const { return MeshLayout(RootImpl()); }

bool MeshLayout::is_root() const { return impl_->root == nullptr; }

std::string MeshLayout::ToString() const {
  std::string text = "mesh(";
  for (int axis = 0; axis < ndim(); ++axis) {
    absl::StrAppend(&text, axis == 0 ? "" : ", ", impl_->names[axis], "=",
                    impl_->shape[axis]);
  }
  bool in_order = true;
  for (int i = 0; i < size(); ++i) in_order &= impl_->ranks[i] == i;
  if (!in_order) {
    absl::StrAppend(&text, ", ranks=[", absl::StrJoin(impl_->ranks, ","), "]");
  }
  return text + ")";
}

size_t MeshLayout::hash() const { return impl_->hash; }

bool MeshLayout::ValuesEqual(const MeshLayout& a, const MeshLayout& b) {
  if (a.impl_->hash != b.impl_->hash || !a.impl_->SameValues(*b.impl_)) {
    return false;
  }
  const Impl* root_a = a.impl_->root.get();
  const Impl* root_b = b.impl_->root.get();
  if (root_a == root_b) return true;
  return root_a != nullptr && root_b != nullptr && root_a->SameValues(*root_b);
}

}  // namespace crosshatch
