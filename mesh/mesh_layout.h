// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_MESH_LAYOUT_H_
#define CROSSHATCH_MESH_MESH_LAYOUT_H_

/// \file
/// MeshLayout: how ranks are arranged on named axes, as a value.
///
/// A mesh of shape (2, 3) with axes "fsdp" and "tp" puts a world rank at each
/// coordinate, row-major unless told otherwise:
///
///              tp=0  tp=1  tp=2
///     fsdp=0     0     1     2
///     fsdp=1     3     4     5
///
/// Nothing here communicates: every method is arithmetic that gives the same
/// result on every rank. DeviceMesh (device_mesh.h) joins a MeshLayout with the
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

/// A rank's place on a mesh: its index along each axis.
using MeshCoordinate = absl::InlinedVector<int, 4>;

struct MeshAxis {
  std::string name;
  int size;
};

/// An immutable arrangement of world ranks on named axes.
///
/// Cheap to copy (one shared pointer) and to compare: equality is by value
/// (shape, names, ranks, root), with equal pointers as the fast path.
///
/// A mesh made by Create is a *root*. Slice, Flatten, Unflatten and Concatenate
/// give meshes that remember it, so slices of one mesh can be joined again
/// without passing the mesh along.
class MeshLayout {
 public:
  /// A mesh with ranks 0..n-1 in row-major order.
  /// \error kInvalidArgument for no axes, an empty or repeated name, one with
  /// "," or "=", or a size below 1.
  static absl::StatusOr<MeshLayout> Create(std::vector<MeshAxis> axes);

  /// A mesh with `ranks` in row-major order: any distinct non-negative world
  /// ranks, one for each coordinate.
  /// \error kInvalidArgument as above, for a wrong number of ranks, and for a
  /// rank that appears twice.
  static absl::StatusOr<MeshLayout> Create(std::vector<MeshAxis> axes,
                                           std::vector<int> ranks);

  /// Joins slices of one root that meet in a rank: the result has the axes of
  /// all of them, in the order given. `Concatenate({fsdp, tp})` of two slices
  /// of a mesh (fsdp, tp) is that mesh again.
  /// \error kInvalidArgument for slices of different roots, that share no rank,
  /// that overlap in more than that rank, or that use an axis name twice.
  static absl::StatusOr<MeshLayout> Concatenate(
      absl::Span<const MeshLayout> slices);

  int ndim() const;
  /// The number of ranks.
  int size() const;
  int size(int axis) const;
  absl::Span<const int> shape() const;
  absl::Span<const std::string> axis_names() const;
  const std::string& axis_name(int axis) const;

  /// \error kNotFound for a name that the mesh lacks, naming those it has.
  absl::StatusOr<int> AxisIndex(absl::string_view name) const;

  /// All world ranks of the mesh in row-major order of their coordinates.
  absl::Span<const int> ranks() const;
  /// \pre `coordinate` lies on the mesh.
  int rank_at(absl::Span<const int> coordinate) const;
  /// Where `world_rank` sits; nullopt for a rank outside the mesh.
  std::optional<MeshCoordinate> CoordinateOf(int world_rank) const;
  bool Contains(int world_rank) const;
  /// The coordinate at row-major position `index`, so that
  /// `rank_at(CoordinateAt(i)) == ranks()[i]`.
  /// \pre 0 <= index < size()
  MeshCoordinate CoordinateAt(int index) const;

  /// The world ranks that differ from `coordinate` in `axes` only, with
  /// axes[0] varying slowest. `coordinate`'s own place in that list is
  /// GroupIndex(axes, coordinate).
  /// \pre `axes` are distinct axes of the mesh; `coordinate` lies on it.
  std::vector<int> GroupRanks(absl::Span<const int> axes,
                              absl::Span<const int> coordinate) const;
  /// As above for a member of the mesh. \pre Contains(world_rank)
  std::vector<int> GroupRanks(absl::Span<const int> axes, int world_rank) const;
  int GroupIndex(absl::Span<const int> axes,
                 absl::Span<const int> coordinate) const;
  /// The number of ranks in a group over `axes`.
  int GroupSize(absl::Span<const int> axes) const;

  /// The submesh over the axes `names`, in that order, that holds `world_rank`.
  /// All axes in the mesh's order give the mesh itself.
  /// \error kNotFound for an unknown name; kInvalidArgument for no names, a
  /// repeated one, or a rank outside the mesh.
  absl::StatusOr<MeshLayout> Slice(absl::Span<const std::string> names,
                                   int world_rank) const;

  /// Every submesh over the axes `names`: one for each coordinate of the other
  /// axes, in row-major order. Together they hold each rank once.
  absl::StatusOr<std::vector<MeshLayout>> AllSlices(
      absl::Span<const std::string> names) const;

  /// The mesh with the axes `names` joined into one named `new_name` (names[0]
  /// varying slowest), which takes the place of the first of them in the mesh.
  absl::StatusOr<MeshLayout> Flatten(absl::Span<const std::string> names,
                                     std::string new_name) const;

  /// The mesh with axis `name` split into `axes`, the first varying slowest.
  /// \error kInvalidArgument unless the product of the sizes is the axis' size.
  absl::StatusOr<MeshLayout> Unflatten(absl::string_view name,
                                       absl::Span<const MeshAxis> axes) const;

  /// The mesh that this one was derived from; itself if by Create.
  MeshLayout root() const;
  bool is_root() const;

  /// "mesh(fsdp=2, tp=2)"; ranks other than 0..n-1 are listed:
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
  /// The axes named, in the order given.
  absl::StatusOr<std::vector<int>> AxesNamed(
      absl::Span<const std::string> names) const;
  std::shared_ptr<const Impl> RootImpl() const;
  absl::StatusOr<MeshLayout> SliceAt(absl::Span<const int> axes,
                                     absl::Span<const int> coordinate) const;

  std::shared_ptr<const Impl> impl_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_MESH_LAYOUT_H_
