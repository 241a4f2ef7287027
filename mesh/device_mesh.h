// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_DEVICE_MESH_H_
#define CROSSHATCH_MESH_DEVICE_MESH_H_

/// \file
/// DeviceMesh: a MeshLayout on one rank of a running job, with the
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
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/mesh/mesh_layout.h"

namespace crosshatch {

/// A handle that is cheap to copy and compare. Two meshes are equal if their
/// layouts are. Communicators are created on first use, are shared by all
/// meshes of one root, and live as long as one of these meshes. The World must
/// outlive them all.
///
/// A rank of the world that is not on the mesh has a DeviceMesh without a
/// coordinate. It may query the layout, but has no communicators.
///
/// \threadsafety The rank's thread only.
class DeviceMesh {
 public:
  const MeshLayout& layout() const;

  /// Returns this rank's coordinate; nullopt if the rank is not on the mesh.
  const std::optional<MeshCoordinate>& coordinate() const;
  /// Returns this rank's index along an axis; nullopt if the rank is not on the
  /// mesh.
  std::optional<int> index(int axis) const;

  /// \name Forwarded to layout()
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
  /// As in MeshLayout. The result shares this mesh's communicators. Nothing is
  /// communicated.
  /// @{

  /// Returns the slice over the axes `names`, in that order, that includes this
  /// rank.
  /// \error kNotFound for an unknown name.
  /// \error kInvalidArgument if `names` is empty or repeats a name, or if the
  ///     rank is not on the mesh.
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
  /// Joins slices of one root whose only common rank is this one.
  static absl::StatusOr<DeviceMesh> Concatenate(
      absl::Span<const DeviceMesh> slices);
  /// Returns the mesh from which this one was derived; a mesh from
  /// InitDeviceMesh returns itself.
  DeviceMesh root() const;
  /// @}

  /// Returns the communicator of the ranks that differ from this one in `axes`
  /// only, axes[0] varying slowest. All of them must call it. Its name joins
  /// the axes' names: "fsdp,tp".
  /// \param stream_name the stream that the communicator's work is issued to.
  /// \error kFailedPrecondition if the rank is not on the mesh; errors of the
  ///     engine.
  absl::StatusOr<Communicator*> communicator(
      absl::Span<const int> axes, const std::string& stream_name) const;
  absl::StatusOr<Communicator*> communicator(
      int axis, const std::string& stream_name) const;
  /// Returns the communicator of one axis.
  /// \error kNotFound for an unknown name.
  absl::StatusOr<Communicator*> communicator(
      absl::string_view axis, const std::string& stream_name) const;

  /// Sets the longest time that a rank may keep the others waiting in
  /// collectives over `axis` alone, instead of JobOptions::timeout:
  ///
  ///     CH_RETURN_IF_ERROR(mesh.SetTimeout("tp", absl::Seconds(30)));
  ///
  /// The error of a rank that is late then names the axis and this time.
  /// Collectives over several axes at once keep JobOptions::timeout. All ranks
  /// call it alike, before the first collective over the axis.
  /// \error kNotFound for an unknown name; kInvalidArgument unless `timeout` is
  ///     positive; kFailedPrecondition if the axis has been used.
  absl::Status SetTimeout(absl::string_view axis, absl::Duration timeout) const;

  /// Returns the communicators of all meshes of this root, in the order of
  /// their creation. For statistics and tests.
  std::vector<std::shared_ptr<Communicator>> communicators() const;

  /// Aborts all of communicators(), and so the job: waiting operations on any
  /// member fail with `error`. If there are no communicators yet, aborts the
  /// job directly.
  /// \pre `error` is not OK.
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

/// Creates a mesh over the first ranks of the world in row-major order:
///
///     InitDeviceMesh(world, {{"fsdp", 2}, {"tp", 2}})
///
/// Every rank of the world must call it, including ranks that are not on the
/// mesh. Ranks compare their layouts over the side channel. If layouts differ,
/// or a rank's layout is invalid, every rank gets an error.
/// \error kInvalidArgument if MeshLayout::Create fails, if the mesh has more
///     ranks than the world, or if layouts differ; the error names both and
///     their ranks.
absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          std::vector<MeshAxis> axes);

/// Creates a mesh of `ranks` in row-major order: distinct ranks of the world,
/// numbered as in World::AllRanks.
absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          std::vector<MeshAxis> axes,
                                          std::vector<int> ranks);

/// Creates a mesh with a given layout. If `layout` is an error, all ranks get
/// an error.
absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          absl::StatusOr<MeshLayout> layout);

/// Creates a mesh over existing communicators, one per axis. The one of axis i
/// has the ranks that differ from this one in axis i only, in the order of
/// their indices. They are used for the stream `stream_name`. Communicators for
/// other streams and for several axes are created on first use.
///
/// The ranks of the mesh call it, and no others. They compare their layouts
/// over the given communicators, so that a difference or an error of one rank
/// is an error on every rank.
/// \error kInvalidArgument if `layout` is an error, if the rank is not on it,
///     if the number of communicators is wrong or one has other ranks or
///     another order, or if layouts differ.
absl::StatusOr<DeviceMesh> DeviceMeshFromCommunicators(
    World& world, absl::StatusOr<MeshLayout> layout,
    absl::Span<const std::shared_ptr<Communicator>> communicators,
    const std::string& stream_name);

/// Creates a mesh with one axis over the ranks of one communicator.
absl::StatusOr<DeviceMesh> DeviceMeshFromCommunicator(
    World& world, std::string axis_name,
    std::shared_ptr<Communicator> communicator, const std::string& stream_name);

/// Returns the communicator of all ranks of `mesh`, in the order of
/// mesh.layout().ranks(), for work on the current stream. All of them must call
/// it. The mesh's World owns it.
/// \error As DeviceMesh::communicator.
absl::StatusOr<Communicator*> MeshCommunicator(const DeviceMesh& mesh);

/// Returns the communicators of the root meshes that include this rank, for
/// work on the current stream. Root meshes come from InitDeviceMesh and
/// DeviceMeshFromCommunicators and count while one of their meshes exists. The
/// order is that of creation, with one communicator per set of ranks. All ranks
/// of these meshes must call it. The World owns the communicators.
/// \error As DeviceMesh::communicator.
absl::StatusOr<std::vector<Communicator*>> RootCommunicators();

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_DEVICE_MESH_H_
