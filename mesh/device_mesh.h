// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_DEVICE_MESH_H_
#define CROSSHATCH_MESH_DEVICE_MESH_H_

/// \file
/// DeviceMesh: a MeshLayout seen from one rank of a running job, with the
/// communicators of its axes.

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/mesh/mesh_layout.h"

namespace crosshatch {

/// A handle, cheap to copy and to compare: two meshes are equal if their
/// layouts are. Communicators are made when first asked for, shared by all
/// meshes of one root, and live as long as one of those meshes does. The World
/// outlives them all.
///
/// A rank of the world that is not on the mesh has a DeviceMesh too, without a
/// coordinate: it may ask anything about the layout, and no communicator.
///
/// \threadsafety the rank's thread only.
class DeviceMesh {
 public:
  const MeshLayout& layout() const;

  /// This rank's place; nullopt for a rank that is not on the mesh.
  const std::optional<MeshCoordinate>& coordinate() const;
  /// This rank's index along an axis; nullopt for a rank off the mesh.
  std::optional<int> index(int axis) const;

  /// \name Of layout()
  /// @{
  int ndim() const { return layout().ndim(); }
  int size() const { return layout().size(); }
  int size(int axis) const { return layout().size(axis); }
  absl::Span<const std::string> axis_names() const {
    return layout().axis_names();
  }
  std::string ToString() const { return layout().ToString(); }
  /// @}

  World& world() const;

  /// \name Derived meshes
  /// As in MeshLayout; the result shares this mesh's communicators. Nothing is
  /// communicated.
  /// @{

  /// The submesh over the axes `names`, in that order, that this rank is on.
  /// \error kNotFound for an unknown name; kInvalidArgument for no names, a
  ///     repeated one, or on a rank that is not on the mesh.
  absl::StatusOr<DeviceMesh> Slice(absl::Span<const std::string> names) const;
  absl::StatusOr<DeviceMesh> Slice(
      std::initializer_list<std::string> names) const {
    return Slice(absl::MakeConstSpan(names.begin(), names.size()));
  }
  absl::StatusOr<DeviceMesh> Slice(absl::string_view name) const;
  absl::StatusOr<DeviceMesh> Flatten(absl::Span<const std::string> names,
                                     std::string new_name) const;
  absl::StatusOr<DeviceMesh> Unflatten(absl::string_view name,
                                       absl::Span<const MeshAxis> axes) const;
  /// Joins slices of one root that meet in this rank.
  static absl::StatusOr<DeviceMesh> Concatenate(
      absl::Span<const DeviceMesh> slices);
  /// The mesh that this one was derived from; itself if from InitDeviceMesh.
  DeviceMesh root() const;
  /// @}

  /// The communicator of the ranks that differ from this one in `axes` only,
  /// axes[0] varying slowest, for work on the stream of that name. Called by
  /// all of them. Named after the axes: "fsdp,tp".
  /// \error kFailedPrecondition on a rank that is not on the mesh; what the
  ///     engine says.
  absl::StatusOr<Communicator*> communicator(
      absl::Span<const int> axes, const std::string& stream_name) const;
  absl::StatusOr<Communicator*> communicator(
      int axis, const std::string& stream_name) const;
  /// \error kNotFound also, for an unknown name.
  absl::StatusOr<Communicator*> communicator(
      absl::string_view axis, const std::string& stream_name) const;

  /// Those made (or given) so far for this mesh and all meshes of its root, in
  /// the order of their making: for counting, and for tests.
  std::vector<std::shared_ptr<Communicator>> communicators() const;

  /// Fails all of communicators(): what waits on one of them, on any member,
  /// ends with `error`, which must not be OK, and so does the job, also where
  /// there are none yet.
  void Abort(const absl::Status& error) const;

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
    return a.impl_ == b.impl_ || a.layout() == b.layout();
  }
  friend bool operator!=(const DeviceMesh& a, const DeviceMesh& b) {
    return !(a == b);
  }
  template <typename H>
  friend H AbslHashValue(H h, const DeviceMesh& mesh) {
    return H::combine(std::move(h), mesh.layout());
  }

 private:
  friend absl::StatusOr<DeviceMesh> InitDeviceMesh(
      World& world, absl::StatusOr<MeshLayout> layout);
  friend absl::StatusOr<DeviceMesh> DeviceMeshFromCommunicators(
      World& world, absl::StatusOr<MeshLayout> layout,
      absl::Span<const std::shared_ptr<Communicator>> communicators,
      const std::string& stream_name);
  struct Shared;
  struct Impl;
  DeviceMesh(std::shared_ptr<Shared> shared, MeshLayout layout);

  std::shared_ptr<const Impl> impl_;
};

/// A mesh over the first n ranks of the world in row-major order, n being the
/// product of the sizes:
///
///     InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}})
///
/// Called by every rank of the world, those that the mesh leaves out included.
/// Ranks compare their descriptions over the side channel: where they differ,
/// or where a rank's own is wrong, every rank gets an error.
/// \error kInvalidArgument for what MeshLayout::Create refuses, for a mesh of
///     more ranks than the world has, and for descriptions that differ, naming
///     both and the ranks that gave them.
absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          std::vector<MeshAxis> axes);

/// Makes a mesh of `ranks` in row-major order: any distinct ranks of the world,
/// as World::AllRanks names them.
absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          std::vector<MeshAxis> axes,
                                          std::vector<int> ranks);

/// As above for a layout made by MeshLayout. An error in place of a layout is
/// told to all ranks too.
absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          absl::StatusOr<MeshLayout> layout);

/// A mesh over communicators that exist already, one for each axis: that of
/// axis i has the ranks that differ from this one in axis i only, in the order
/// of their indices. They serve the stream `stream_name`; those of other
/// streams, and of several axes at once, are made when first asked for.
///
/// Called by the ranks of the mesh, and by no others. They compare their
/// descriptions over the communicators given, so that a difference, or an error
/// of one rank, is an error on every rank.
/// \error kInvalidArgument for a layout that is an error, a rank that is not on
///     it, a wrong number of communicators, one of other ranks or another
///     order, and for descriptions that differ.
absl::StatusOr<DeviceMesh> DeviceMeshFromCommunicators(
    World& world, absl::StatusOr<MeshLayout> layout,
    absl::Span<const std::shared_ptr<Communicator>> communicators,
    const std::string& stream_name);

/// Makes a mesh of one axis over the ranks of one communicator.
absl::StatusOr<DeviceMesh> DeviceMeshFromCommunicator(
    World& world, std::string axis_name,
    std::shared_ptr<Communicator> communicator, const std::string& stream_name);

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_DEVICE_MESH_H_
