// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_H_
#define CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_H_

/// \file
/// Layout: how a tensor is distributed over a mesh, as a value.
///
/// For each tensor dim it holds the *ordered* list of mesh axes that split it,
/// major first, and the unit of the split. For each axis that splits nothing,
/// it records whether the ranks along it replicate the tensor or hold partial
/// results.
///
/// A dim of n elements in units of u elements has ceil(n / u) units, the last
/// of which may be short. The first axis, of size k, cuts the units into chunks
/// of ceil(units / k). The last chunks may be short or empty. The next axis
/// cuts each chunk in the same way, and so on. So a rank's shard of a dim is
/// one interval, and its shard of a tensor is one box.
///
/// The last axis may have explicit cuts instead, which make chunks of any
/// sizes.
///
/// Example: 10 rows over axes of size 2, rows held at (i, j):
///   axes (i, j): 0:3  3:5 | 5:8  8:10      "[S(0),S(0)]"
///   axes (j, i): 0:3  5:8 | 3:5  8:10      "[_S(0,2),S(0)]", FSDP over TP
///   axes (j, i), cuts {4}: 0:4 5:9 | 4:5 9:10   "[_S(0,2)@4,S(0)]"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
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

/// The split of one tensor dim.
struct DimSharding {
  /// Mesh axes, major first; empty if every rank holds the whole dim.
  absl::InlinedVector<int, 2> axes = {};
  /// Number of elements that stay together: chunks consist of whole units.
  int64_t unit = 1;
  /// Number of last axes that split single elements regardless of `unit`: FSDP
  /// under a split into heads, where whole heads would leave ranks empty.
  int fine_axes = 0;
  /// The inner boundaries, in elements, of the chunks that the last axis makes
  /// of each chunk of the axes before it: one less than the axis has ranks,
  /// ascending. Chunk i is [cuts[i - 1], cuts[i]) as far as there are elements;
  /// the last one has the rest. Empty: chunks are even. FSDP's ragged shards
  /// have cuts.
  std::vector<int64_t> cuts = {};

  friend bool operator==(const DimSharding& a, const DimSharding& b) {
    return a.axes == b.axes && a.unit == b.unit && a.fine_axes == b.fine_axes &&
           a.cuts == b.cuts;
  }
  friend bool operator!=(const DimSharding& a, const DimSharding& b) {
    return !(a == b);
  }
  template <typename H>
  friend H AbslHashValue(H h, const DimSharding& s) {
    return H::combine(std::move(h), s.axes, s.unit, s.fine_axes, s.cuts);
  }
};

/// The effect of one mesh axis.
struct AxisState {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  /// The tensor dim that it splits, for kShard.
  int dim = -1;
  /// The pending reduction, for kPartial.
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

/// An immutable layout of tensors with ndim() dims on a mesh. It does not
/// contain the sizes of the tensor; functions that depend on them take the
/// global shape.
///
/// Cheap to copy (one shared pointer), to compare and to hash. Equality is by
/// value, with equal pointers as the fast path. The hash is computed once.
///
/// \invariant an axis splits at most one dim, and then is not partial.
/// \invariant the pending reductions commute: one op, or sums and averages.
/// \invariant a dim that no axis splits has unit 1; one of unit 1 has no fine
///     axes.
/// \invariant an axis with cuts splits single elements: it is fine, or the unit
///     is 1.
class Layout {
 public:
  /// Pending reductions by mesh axis; nullopt (or no entry) for none.
  using Partials = absl::InlinedVector<std::optional<ReduceOp>, 4>;

  /// \name Construction
  /// @{

  static Layout Replicated(MeshLayout mesh, int ndim);

  /// The general form: one DimSharding for each dim. Axes in neither list
  /// replicate. Units of unsplit dims are set to 1.
  /// \error kInvalidArgument if an invariant above would not hold, or for an
  ///     axis outside the mesh, a unit below 1, or cuts that are not one less
  ///     than the last axis has ranks or that descend.
  static absl::StatusOr<Layout> Create(MeshLayout mesh,
                                       std::vector<DimSharding> dims,
                                       Partials partials = {});

  /// JAX's notation: one list of axis names for each dim, major first. Axes in
  /// no list replicate, except those in `options`:
  ///
  ///     Layout::Of(mesh, {{"fsdp", "tp"}, {}})  // of a matrix
  ///
  /// ToStringByDim returns such lists as text, here "{fsdp,tp} {}".
  /// \error kInvalidArgument for an axis that the mesh lacks or that is used
  ///     twice, for more units than dims, and if an invariant above would not
  ///     hold.
  static absl::StatusOr<Layout> Of(
      MeshLayout mesh, const std::vector<std::vector<std::string>>& axes_by_dim,
      const LayoutOptions& options = {});

  /// Does the same as Create for arguments known to be valid, which it checks.
  Layout(MeshLayout mesh, std::vector<DimSharding> dims,
         Partials partials = {});

  /// PyTorch's notation: one placement for each mesh axis. Several plain shards
  /// of one dim nest left to right. `_S(d,f)` makes the axis split d after
  /// later axes whose sizes multiply to f. Negative dims count from the end.
  /// \error kInvalidArgument for a wrong number of placements, a dim out of
  ///     range, a split factor that no order of the axes gives, or reductions
  ///     that do not commute.
  static absl::StatusOr<Layout> FromPlacements(
      MeshLayout mesh, int ndim, absl::Span<const Placement> placements);
  /// @}

  /// \name Derived layouts
  /// Each equals this layout except for what it names. If the axes of a dim
  /// change, its cuts are dropped.
  /// @{

  /// Returns the layout in which `axis` splits `dim`, after the axes that
  /// already split it (minor-most), or before the one at `position` of
  /// axes_of_dim(dim). It replaces what the axis did before.
  Layout WithShard(int axis, int dim) const;
  Layout WithShard(int axis, int dim, int position) const;
  /// As WithShard(axis, dim), but splits single elements, whatever the dim's
  /// unit is.
  Layout WithFineShard(int axis, int dim) const;
  /// Cuts `dim` explicitly; see DimSharding::cuts.
  Layout WithCuts(int dim, std::vector<int64_t> cuts) const;
  Layout WithReplicate(int axis) const;
  Layout WithPartial(int axis, ReduceOp op) const;
  /// Replaces all pending reductions by Replicate: the layout of the reduced
  /// tensor, and of the gradient, because each summand has the sum's gradient.
  Layout WithoutPartials() const;
  /// Replaces the axes and unit of `dim`. Axes that no longer split it
  /// replicate. New ones lose their previous role.
  Layout WithDim(int dim, DimSharding sharding) const;
  /// Returns the same layout on another mesh.
  /// \pre equal shapes
  Layout WithMesh(MeshLayout mesh) const;
  /// @}

  /// \name Parts
  /// @{
  const MeshLayout& mesh() const;
  int ndim() const;
  absl::Span<const DimSharding> dims() const;
  const DimSharding& sharding(int dim) const;
  /// Returns the axes that split `dim`, major first.
  absl::Span<const int> axes_of_dim(int dim) const;
  int64_t unit(int dim) const;
  const AxisState& state_of_axis(int axis) const;
  absl::Span<const AxisState> axis_states() const;
  /// Returns one entry for each axis, the form that Create takes.
  Partials partials() const;

  bool is_sharded(int dim) const { return !axes_of_dim(dim).empty(); }
  bool is_partial() const;
  /// Returns whether every axis replicates.
  bool is_replicated() const;
  /// Returns the number of chunks that `dim` is split into.
  int num_chunks(int dim) const;
  /// @}

  /// \name Shards
  /// `coordinate` is a rank's index along each axis of the mesh.
  /// @{

  /// Returns the part at `coordinate` of a dim of `size` elements. Empty parts
  /// are within [0, size].
  Interval DimInterval(int dim, int64_t size,
                       absl::Span<const int> coordinate) const;
  /// Returns all parts of the dim, in row-major order of the coordinates along
  /// axes_of_dim(dim). They ascend and do not overlap.
  std::vector<Interval> DimIntervals(int dim, int64_t size) const;
  /// Returns the shard at `coordinate` of a tensor of `global_shape`: its
  /// offsets are the shard's global offset, its sizes the local shape.
  /// \pre global_shape.size() == ndim()
  Box LocalBox(ShapeView global_shape, absl::Span<const int> coordinate) const;
  Shape LocalShape(ShapeView global_shape,
                   absl::Span<const int> coordinate) const;
  /// Returns whether the shard at `coordinate` is the one to count: of the
  /// ranks that replicate each other, the one with coordinate 0. Each element
  /// of a tensor that is not partial has exactly one owner; of a partial
  /// tensor, each summand has.
  bool IsOwner(absl::Span<const int> coordinate) const;
  /// @}

  /// Returns one placement for each mesh axis, `_S` if the axes of a dim are
  /// not in the mesh's order. Placements express neither units nor cuts:
  /// FromPlacements restores the layout if units are 1, no dim has cuts and no
  /// axis that splits has size 1.
  std::vector<Placement> ToPlacements() const;

  /// Returns PyTorch's notation, with units other than 1 and cuts appended to
  /// the shards that they apply to: "[_S(0,2),S(0)]", "[R,S(1)/64]",
  /// "[S(0)@2,5]". More than 8 cuts are counted: "[S(0)@63 cuts]".
  std::string ToString() const;
  /// Returns the ordered axes of each dim by name, then pending reductions:
  /// "{tp,fsdp}/64 {} P(sum){dp}". Fine axes follow a bar: "{tp|fsdp}/64", and
  /// all cuts an at sign: "{fsdp}@2,5". Differs between unequal layouts.
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

/// Returns whether reductions with `a` and `b` over different axes may be
/// performed in either order: equal ops, or a sum and an average.
bool Commute(ReduceOp a, ReduceOp b);

/// An argument that is a Layout, or one placement for each axis of the mesh:
/// {Shard(0), Replicate()}. Refers to what it was made of.
class LayoutSpec {
 public:
  LayoutSpec(const Layout& layout) : layout_(&layout) {}
  LayoutSpec(absl::Span<const Placement> placements)
      : placements_(placements) {}
  LayoutSpec(const std::vector<Placement>& placements)
      : placements_(placements) {}
  LayoutSpec(std::initializer_list<Placement> placements)
      : placements_(placements) {}

  /// Returns the layout of a tensor of `ndim` dims on `mesh`. Checks that
  /// Layout::FromPlacements accepts placements; the message names the function
  /// `what`.
  const Layout& Of(const char* what, const MeshLayout& mesh, int ndim) const;

 private:
  const Layout* layout_ = nullptr;
  absl::Span<const Placement> placements_;
  mutable std::optional<Layout> made_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_H_
