// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_MESH_LAYOUT_H_
#define CROSSHATCH_MESH_MESH_LAYOUT_H_

/// \file
/// MeshLayout: an arrangement of ranks on named axes, as a value.
///
/// A mesh of shape (2, 3) with axes "fsdp" and "tp" has a world rank at each
/// coordinate, by default in row-major order:
///
///              tp=0  tp=1  tp=2
///     fsdp=0     0     1     2
///     fsdp=1     3     4     5
///
/// Nothing here communicates: every method is arithmetic with the same result
/// on every rank. DeviceMesh (device_mesh.h) combines a MeshLayout with the
/// communicators of its axes.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace crosshatch {

/// The coordinate of a rank on a mesh: its index along each axis.
using MeshCoordinate = absl::InlinedVector<int, 4>;

/// The name and size of an axis.
struct MeshAxis {
  std::string name;
  int size;
};

/// An immutable arrangement of world ranks on named axes.
///
/// Cheap to copy (one shared pointer) and to compare. Equality is by value
/// (shape, names, ranks, root), with equal pointers as the fast path.
///
/// Create returns a *root*. Slice, Flatten, Unflatten and Concatenate return
/// meshes that refer to their root, so slices of one mesh can be joined without
/// passing the mesh along.
class MeshLayout {
 public:
  /// Returns a mesh with ranks 0..n-1 in row-major order.
  /// \error kInvalidArgument if there are no axes, a size is below 1, or a name
  ///     is empty, repeated or contains "," or "=".
  static absl::StatusOr<MeshLayout> Create(std::vector<MeshAxis> axes);

  /// Returns a mesh with `ranks` in row-major order: distinct non-negative
  /// world ranks, one per coordinate.
  /// \error kInvalidArgument also if the number of ranks is wrong or a rank
  ///     appears twice.
  static absl::StatusOr<MeshLayout> Create(std::vector<MeshAxis> axes,
                                           std::vector<int> ranks);

  /// Joins slices of one root that have one rank in common. The result has the
  /// axes of all of them, in the given order: `Concatenate({fsdp, tp})` of two
  /// slices of a mesh (fsdp, tp) is that mesh.
  /// \error kInvalidArgument if the slices have different roots, no common rank
  ///     or several common ranks, or if an axis name is repeated.
  static absl::StatusOr<MeshLayout> Concatenate(
      absl::Span<const MeshLayout> slices);

  int ndim() const;
  /// Returns the number of ranks.
  int size() const;
  int size(int axis) const;
  absl::Span<const int> shape() const;
  absl::Span<const std::string> axis_names() const;
  const std::string& axis_name(int axis) const;

  /// Returns the index of the axis `name`.
  /// \error kNotFound for an unknown name; lists the known ones.
  absl::StatusOr<int> AxisIndex(absl::string_view name) const;

  /// Returns all world ranks in row-major order of their coordinates.
  absl::Span<const int> ranks() const;
  /// Returns the world rank at `coordinate`.
  /// \pre `coordinate` is on the mesh.
  int rank_at(absl::Span<const int> coordinate) const;
  /// Returns the coordinate of `world_rank`; nullopt if it is not on the mesh.
  std::optional<MeshCoordinate> CoordinateOf(int world_rank) const;
  bool Contains(int world_rank) const;
  /// Returns the coordinate at row-major position `index`, so that
  /// `rank_at(CoordinateAt(i)) == ranks()[i]`.
  /// \pre 0 <= index < size()
  MeshCoordinate CoordinateAt(int index) const;

  /// Returns the world ranks that differ from `coordinate` in `axes` only, with
  /// axes[0] varying slowest. The index of `coordinate` in the list is
  /// GroupIndex(axes, coordinate).
  /// \pre `axes` are distinct axes of the mesh; `coordinate` is on it.
  std::vector<int> GroupRanks(absl::Span<const int> axes,
                              absl::Span<const int> coordinate) const;
  /// Returns the group of a member of the mesh.
  /// \pre Contains(world_rank)
  std::vector<int> GroupRanks(absl::Span<const int> axes, int world_rank) const;
  /// Returns the index of `coordinate` in GroupRanks(axes, coordinate).
  int GroupIndex(absl::Span<const int> axes,
                 absl::Span<const int> coordinate) const;
  /// Returns the number of ranks in a group over `axes`.
  int GroupSize(absl::Span<const int> axes) const;

  /// Returns the slice over the axes `names`, in that order, that includes
  /// `world_rank`. All axes in the mesh's order give the mesh itself.
  /// \error kNotFound for an unknown name.
  /// \error kInvalidArgument if `names` is empty or repeats a name, or if the
  ///     rank is not on the mesh.
  absl::StatusOr<MeshLayout> Slice(absl::Span<const std::string> names,
                                   int world_rank) const;

  /// Returns the mesh with the axes `names` flattened into one axis `new_name`,
  /// names[0] varying slowest. It replaces the first of them in the mesh's
  /// order.
  absl::StatusOr<MeshLayout> Flatten(absl::Span<const std::string> names,
                                     std::string new_name) const;

  /// Returns the mesh with the axis `name` split into `axes`, the first varying
  /// slowest.
  /// \error kInvalidArgument unless the product of their sizes is the axis
  ///     size.
  absl::StatusOr<MeshLayout> Unflatten(absl::string_view name,
                                       absl::Span<const MeshAxis> axes) const;

  /// Returns the mesh from which this one was derived; a mesh from Create
  /// returns itself.
  MeshLayout root() const;
  bool is_root() const;

  /// Returns e.g. "mesh(fsdp=2, tp=2)". Lists ranks other than 0..n-1:
  /// "mesh(tp=2, ranks=[1,3])".
  std::string ToString() const;

  friend bool operator==(const MeshLayout& a, const MeshLayout& b) {
    return a.impl_ == b.impl_ || ValuesEqual(a, b);
  }
  friend bool operator!=(const MeshLayout& a, const MeshLayout& b) {
    return !(a == b);
  }
  template <typename H>
  friend H AbslHashValue(H h, const MeshLayout& mesh) {
    return H::combine(std::move(h), mesh.hash());
  }
  size_t hash() const;

 private:
  struct Impl;
  explicit MeshLayout(std::shared_ptr<const Impl> impl)
      : impl_(std::move(impl)) {}

  static absl::StatusOr<MeshLayout> Make(std::vector<MeshAxis> axes,
                                         std::vector<int> ranks,
                                         std::shared_ptr<const Impl> root);
  static bool ValuesEqual(const MeshLayout& a, const MeshLayout& b);
  /// Returns the indices of the axes `names`, in that order.
  absl::StatusOr<std::vector<int>> AxesNamed(
      absl::Span<const std::string> names) const;
  std::shared_ptr<const Impl> RootImpl() const;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_MESH_LAYOUT_H_
