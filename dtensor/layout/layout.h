// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_H_
#define CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_H_

/// \file
/// Layout: how a tensor lies on a mesh, as a value.
///
/// For each tensor dim it holds the *ordered* list of mesh axes that split it,
/// major first, and the unit of the split; for each axis that splits nothing,
/// whether the ranks along it replicate the tensor or hold partial results.
///
/// The split of a dim of n elements in units of u elements: the ceil(n / u)
/// units (the last may be short) are cut along the first axis, of size k, into
/// chunks of ceil(units / k), a short last one and then empty ones; each chunk
/// is cut likewise along the next axis, and so on. So a rank's shard of a dim
/// is one interval, and its shard of a tensor is one box.
///
/// Example: 10 rows over axes of size 2, rows held at (i, j):
///   axes (i, j): 0:3  3:5 | 5:8  8:10      "[S(0),S(0)]"
///   axes (j, i): 0:3  5:8 | 3:5  8:10      "[_S(0,2),S(0)]", FSDP over TP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// How one tensor dim is split.
struct DimSharding {
  /// Mesh axes, major first; empty for a dim that is whole on every rank.
  absl::InlinedVector<int, 2> axes = {};
  /// Elements that stay together: chunks are of whole units.
  int64_t unit = 1;
  /// This many of the last axes split single elements in spite of `unit`: FSDP
  /// beneath a split into heads, where whole heads would leave ranks empty.
  int fine_axes = 0;

  friend bool operator==(const DimSharding& a, const DimSharding& b) {
    return a.axes == b.axes && a.unit == b.unit && a.fine_axes == b.fine_axes;
  }
  friend bool operator!=(const DimSharding& a, const DimSharding& b) {
    return !(a == b);
  }
  template <typename H>
  friend H AbslHashValue(H h, const DimSharding& s) {
    return H::combine(std::move(h), s.axes, s.unit, s.fine_axes);
  }
};

/// What one mesh axis does.
struct AxisState {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  /// The tensor dim split, for kShard.
  int dim = -1;
  /// The reduction that is due, for kPartial.
  ReduceOp op = ReduceOp::kSum;

  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_shard() const { return kind == Kind::kShard; }
  bool is_partial() const { return kind == Kind::kPartial; }

  friend bool operator==(const AxisState& a, const AxisState& b) {
    return a.kind == b.kind && a.dim == b.dim && a.op == b.op;
  }
  friend bool operator!=(const AxisState& a, const AxisState& b) {
    return !(a == b);
  }
};

/// What Layout::Of takes besides the axes of each dim.
struct LayoutOptions {
  struct PartialAxis {
    std::string axis;
    ReduceOp op = ReduceOp::kSum;
  };
  /// The axes whose ranks hold partial results.
  std::vector<PartialAxis> partial = {};
  /// The unit of each dim; 1 for the dims past its end.
  std::vector<int64_t> units = {};
};

/// An immutable layout of tensors with ndim() dims on a mesh. The sizes of the
/// tensor are not part of it: what depends on them takes the global shape.
///
/// Cheap to copy (one shared pointer), to compare and to hash: equality is by
/// value with equal pointers as the fast path, the hash is computed once.
///
/// \invariant an axis splits at most one dim, and then is not partial.
/// \invariant the reductions due commute: one op, or sums and averages.
/// \invariant a dim that no axis splits has unit 1; one of unit 1 has no fine
///     axes.
class Layout {
 public:
  /// Pending reductions by mesh axis; nullopt (or no entry) for none.
  using Partials = absl::InlinedVector<std::optional<ReduceOp>, 4>;

  /// \name Construction
  /// @{

  static Layout Replicated(MeshLayout mesh, int ndim);

  /// The general form: one DimSharding for each dim; axes in neither list
  /// replicate. Units of unsplit dims are set to 1.
  /// \error kInvalidArgument if an invariant above would not hold, or for an
  /// axis outside the mesh or a unit below 1.
  static absl::StatusOr<Layout> Create(MeshLayout mesh,
                                       std::vector<DimSharding> dims,
                                       Partials partials = {});

  /// JAX's notation, one list of axis names for each dim, major first. Axes in
  /// no list replicate unless `options` says otherwise:
  ///
  ///     Layout::Of(mesh, {{"fsdp", "tp"}, {}})  // "{fsdp,tp} {}" of a matrix
  ///
  /// ToStringByDim prints this form.
  /// \error kInvalidArgument for an axis that the mesh lacks or that is used
  ///     twice, for more units than dims, and where an invariant above would
  ///     not hold.
  static absl::StatusOr<Layout> Of(
      MeshLayout mesh, const std::vector<std::vector<std::string>>& axes_by_dim,
      const LayoutOptions& options = {});

  /// Makes what Create makes of arguments known to be valid; checks them.
  Layout(MeshLayout mesh, std::vector<DimSharding> dims,
         Partials partials = {});

  /// PyTorch's notation, one placement for each mesh axis. Several plain shards
  /// of one dim nest left to right; `_S(d,f)` makes the axis split d after
  /// later axes that number f pieces. Negative dims count from the end.
  /// \error kInvalidArgument for a wrong number of placements, a dim out of
  /// range, a split factor that no order of the axes gives, or reductions that
  /// do not commute.
  static absl::StatusOr<Layout> FromPlacements(
      MeshLayout mesh, int ndim, absl::Span<const Placement> placements);
  /// @}

  /// \name Derived layouts
  /// Each is this layout but for what is named.
  /// @{

  /// `axis` splits `dim`, after the axes that split it already (minor-most), or
  /// before the one at `position` of axes_of_dim(dim). What the axis did before
  /// ends.
  Layout WithShard(int axis, int dim) const;
  Layout WithShard(int axis, int dim, int position) const;
  /// Splits as WithShard(axis, dim) does, but by single elements, whatever the
  /// dim's unit is.
  Layout WithFineShard(int axis, int dim) const;
  Layout WithReplicate(int axis) const;
  Layout WithPartial(int axis, ReduceOp op) const;
  /// The axes and unit of `dim` are replaced. Axes that no longer split it
  /// replicate; new ones end what they did before.
  Layout WithDim(int dim, DimSharding sharding) const;
  /// The same on another mesh. \pre equal shapes
  Layout WithMesh(MeshLayout mesh) const;
  /// @}

  /// \name Parts
  /// @{
  const MeshLayout& mesh() const;
  int ndim() const;
  absl::Span<const DimSharding> dims() const;
  const DimSharding& sharding(int dim) const;
  /// The axes that split `dim`, major first.
  absl::Span<const int> axes_of_dim(int dim) const;
  int64_t unit(int dim) const;
  const AxisState& state_of_axis(int axis) const;
  absl::Span<const AxisState> axis_states() const;
  /// In the form that Create takes: one entry for each axis.
  Partials partials() const;

  bool is_sharded(int dim) const { return !axes_of_dim(dim).empty(); }
  bool is_partial() const;
  /// Every axis replicates.
  bool is_replicated() const;
  /// Into how many chunks `dim` is split.
  int num_chunks(int dim) const;
  /// @}

  /// \name Shards
  /// `coordinate` is a place on the mesh.
  /// @{

  /// The part of a dim of `size` elements at `coordinate`. Empty parts lie
  /// within [0, size].
  Interval DimInterval(int dim, int64_t size,
                       absl::Span<const int> coordinate) const;
  /// All parts of the dim, in row-major order of the coordinates along
  /// axes_of_dim(dim); so they ascend and do not overlap.
  std::vector<Interval> DimIntervals(int dim, int64_t size) const;
  /// The part of a tensor of `global_shape` at `coordinate`: the offsets are
  /// the shard's global offset, the sizes its local shape.
  /// \pre global_shape.size() == ndim()
  Box LocalBox(ShapeView global_shape, absl::Span<const int> coordinate) const;
  Shape LocalShape(ShapeView global_shape,
                   absl::Span<const int> coordinate) const;
  /// Whether the shard at `coordinate` is the one to count: among ranks that
  /// replicate each other it is that with coordinate 0. So each element of a
  /// tensor that is not partial has exactly one owner; of a partial one, each
  /// summand has.
  bool IsOwner(absl::Span<const int> coordinate) const;
  /// @}

  /// One placement for each mesh axis; `_S` where the axes of a dim are not in
  /// the mesh's order. Units have no such notation: FromPlacements gives the
  /// layout back if they are 1 and no axis that splits has size 1.
  std::vector<Placement> ToPlacements() const;

  /// PyTorch's notation, with units other than 1 appended to the shards that
  /// keep to them: "[_S(0,2),S(0)]", "[R,S(1)/64]".
  std::string ToString() const;
  /// The ordered axes of each dim by name, then pending reductions:
  /// "{tp,fsdp}/64 {} P(sum){dp}"; fine axes after a bar: "{tp|fsdp}/64".
  std::string ToStringByDim() const;

  friend bool operator==(const Layout& a, const Layout& b) {
    return a.impl_ == b.impl_ || ValuesEqual(a, b);
  }
  friend bool operator!=(const Layout& a, const Layout& b) { return !(a == b); }
  template <typename H>
  friend H AbslHashValue(H h, const Layout& layout) {
    return H::combine(std::move(h), layout.hash());
  }
  size_t hash() const;

 private:
  struct Impl;
  explicit Layout(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  static bool ValuesEqual(const Layout& a, const Layout& b);

  std::shared_ptr<const Impl> impl_;
};

/// Whether reductions with `a` and `b` over different axes may be done in
/// either order: equal ops, or a sum and an average.
bool Commute(ReduceOp a, ReduceOp b);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_H_
