// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/layout.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {

struct Layout::Impl {
  MeshLayout mesh;
  std::vector<DimSharding> dims;
  /// Derived from `dims`, except for the partial ones.
  std::vector<AxisState> axes;
  size_t hash = 0;
};

namespace {

Interval Chunk(const Interval& whole, int count, int index) {
  const int64_t chunk = CeilDiv(whole.size(), count);
  const int64_t begin = std::min(whole.begin + index * chunk, whole.end);
  return {begin, std::min(begin + chunk, whole.end)};
}

// Returns the chunk of `whole` between two neighbouring `cuts`, relative to its
// begin.
Interval CutChunk(const Interval& whole, absl::Span<const int64_t> cuts,
                  int index) {
  const auto at = [&](int64_t cut) {
    return std::min(whole.begin + cut, whole.end);
  };
  return {index == 0 ? whole.begin : at(cuts[index - 1]),
          index == static_cast<int>(cuts.size()) ? whole.end : at(cuts[index])};
}

Interval UnitsToElements(const Interval& units, int64_t unit, int64_t size) {
  return {std::min(units.begin * unit, size), std::min(units.end * unit, size)};
}

absl::Status CheckCommuting(const MeshLayout& mesh,
                            const std::vector<AxisState>& axes) {
  const AxisState* first = nullptr;
  for (const AxisState& state : axes) {
    if (!state.is_partial()) continue;
    if (first != nullptr && !Commute(first->op, state.op)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layout: a tensor on ", mesh.ToString(), " cannot be partial in ",
          ToString(first->op), " and ", ToString(state.op),
          ": the result would depend on their order"));
    }
    if (first == nullptr) first = &state;
  }
  return absl::OkStatus();
}

absl::Status CheckCuts(const MeshLayout& mesh, int dim,
                       const DimSharding& sharding) {
  const std::vector<int64_t>& cuts = sharding.cuts;
  if (cuts.empty() || sharding.axes.empty()) return absl::OkStatus();
  const int last = sharding.axes.back();
  if (static_cast<int>(cuts.size()) != mesh.size(last) - 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout: dim ", dim, " has ", cuts.size(),
        " cuts, but its last axis \"", mesh.axis_name(last), "\" of ",
        mesh.size(last), " ranks needs ", mesh.size(last) - 1));
  }
  if (cuts[0] < 0 || !std::is_sorted(cuts.begin(), cuts.end())) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout: the cuts ", absl::StrJoin(cuts, ","), " of dim ",
                     dim, " are not ascending from 0 on"));
  }
  if (sharding.unit != 1 && sharding.fine_axes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout: dim ", dim, " has cuts, and its last axis \"",
                     mesh.axis_name(last), "\" splits units of ", sharding.unit,
                     "; make it a fine axis"));
  }
  return absl::OkStatus();
}

/// Returns the role of each axis, from the two lists that Create takes.
absl::StatusOr<std::vector<AxisState>> AxisStates(
    const MeshLayout& mesh, const std::vector<DimSharding>& dims,
    const Layout::Partials& partials) {
  std::vector<AxisState> axes(mesh.ndim());
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    if (dims[dim].unit < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layout: dim ", dim, " has unit ", dims[dim].unit, ", below 1"));
    }
    if (dims[dim].fine_axes < 0 ||
        dims[dim].fine_axes > static_cast<int>(dims[dim].axes.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout: dim ", dim, " has ", dims[dim].fine_axes,
                       " fine axes of ", dims[dim].axes.size()));
    }
    for (int axis : dims[dim].axes) {
      if (axis < 0 || axis >= mesh.ndim()) {
        return absl::InvalidArgumentError(
            absl::StrCat("layout: dim ", dim, " is split by axis ", axis,
                         ", which ", mesh.ToString(), " lacks"));
      }
      if (axes[axis].is_shard()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "layout: axis \"", mesh.axis_name(axis), "\" splits dims ",
            axes[axis].dim, " and ", dim, ", it can split only one"));
      }
      axes[axis].kind = AxisState::Kind::kShard;
      axes[axis].dim = static_cast<int>(dim);
    }
    CH_RETURN_IF_ERROR(CheckCuts(mesh, static_cast<int>(dim), dims[dim]));
  }
  if (partials.size() > axes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout: pending reductions for ", partials.size(),
                     " axes of ", mesh.ToString()));
  }
  for (size_t axis = 0; axis < partials.size(); ++axis) {
    if (!partials[axis].has_value()) continue;
    if (axes[axis].is_shard()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layout: axis \"", mesh.axis_name(static_cast<int>(axis)),
          "\" splits dim ", axes[axis].dim, " and so cannot be partial"));
    }
    axes[axis].kind = AxisState::Kind::kPartial;
    axes[axis].op = *partials[axis];
  }
  CH_RETURN_IF_ERROR(CheckCommuting(mesh, axes));
  return axes;
}

void DropAxis(int axis, std::vector<DimSharding>& dims) {
  for (DimSharding& sharding : dims) {
    const auto it = std::find(sharding.axes.begin(), sharding.axes.end(), axis);
    if (it == sharding.axes.end()) continue;
    if (sharding.axes.end() - it <= sharding.fine_axes) --sharding.fine_axes;
    sharding.axes.erase(it);
    sharding.cuts.clear();
  }
}

void CheckAxis(const MeshLayout& mesh, int axis) {
  CH_CHECK(axis >= 0 && axis < mesh.ndim())
      << "axis " << axis << " of " << mesh.ToString();
}

}  // namespace

bool Commute(ReduceOp a, ReduceOp b) {
  const auto is_linear = [](ReduceOp op) {
    return op == ReduceOp::kSum || op == ReduceOp::kAvg;
  };
  return a == b || (is_linear(a) && is_linear(b));
}

Layout Layout::Replicated(MeshLayout mesh, int ndim) {
  CH_CHECK_GE(ndim, 0) << "a layout on " << mesh.ToString();
  return Layout(std::move(mesh), std::vector<DimSharding>(ndim));
}

absl::StatusOr<Layout> Layout::Create(MeshLayout mesh,
                                      std::vector<DimSharding> dims,
                                      Partials partials) {
  CH_ASSIGN_OR_RETURN(std::vector<AxisState> axes,
                      AxisStates(mesh, dims, partials));
  for (DimSharding& sharding : dims) {
    if (static_cast<int>(sharding.axes.size()) == sharding.fine_axes) {
      sharding.unit = 1;
    }
    if (sharding.unit == 1) sharding.fine_axes = 0;
    if (sharding.axes.empty()) sharding.cuts.clear();
  }
  size_t hash = absl::HashOf(mesh, dims);
  for (const AxisState& state : axes) {
    hash = absl::HashOf(hash, state.kind, state.op);
  }
  return Layout(std::make_shared<const Impl>(
      Impl{std::move(mesh), std::move(dims), std::move(axes), hash}));
}

absl::StatusOr<Layout> Layout::Of(
    MeshLayout mesh, const std::vector<std::vector<std::string>>& axes_by_dim,
    const LayoutOptions& options) {
  if (options.units.size() > axes_by_dim.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout: ", options.units.size(), " units for ",
                     axes_by_dim.size(), " dims: give one unit for each dim"));
  }
  // The role of each axis, to name both roles of an axis that has two.
  std::vector<std::string> uses(mesh.ndim());
  const auto use = [&](const std::string& name,
                       std::string as) -> absl::StatusOr<int> {
    absl::StatusOr<int> axis = mesh.AxisIndex(name);
    if (!axis.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout: axis \"", name, "\" ", as, ": ",
                       mesh.ToString(), " has no such axis"));
    }
    if (!uses[*axis].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout: axis \"", name, "\" of ", mesh.ToString(), " ",
                       uses[*axis], " and ", as, ": list each axis once"));
    }
    uses[*axis] = std::move(as);
    return *axis;
  };
  std::vector<DimSharding> dims(axes_by_dim.size());
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    for (const std::string& name : axes_by_dim[dim]) {
      CH_ASSIGN_OR_RETURN(const int axis,
                          use(name, absl::StrCat("splits dim ", dim)));
      dims[dim].axes.push_back(axis);
    }
    if (dim < options.units.size()) dims[dim].unit = options.units[dim];
    if (dims[dim].axes.empty() && dims[dim].unit != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout: unit ", dims[dim].unit, " of dim ", dim,
                       ", which no axis splits: give it unit 1"));
    }
  }
  Partials partials(mesh.ndim());
  for (const LayoutOptions::PartialAxis& partial : options.partial) {
    CH_ASSIGN_OR_RETURN(
        const int axis,
        use(partial.axis,
            absl::StrCat("is partial in ", crosshatch::ToString(partial.op))));
    partials[axis] = partial.op;
  }
  return Create(std::move(mesh), std::move(dims), std::move(partials));
}

Layout::Layout(MeshLayout mesh, std::vector<DimSharding> dims,
               Partials partials) {
  absl::StatusOr<Layout> layout =
      Create(std::move(mesh), std::move(dims), std::move(partials));
  CH_CHECK_OK(layout.status());
  impl_ = std::move(layout->impl_);
}

absl::StatusOr<Layout> Layout::FromPlacements(
    MeshLayout mesh, int ndim, absl::Span<const Placement> placements) {
  const std::string text = crosshatch::ToString(placements);
  if (static_cast<int>(placements.size()) != mesh.ndim()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout: ", placements.size(), " placements ", text,
                     " for ", mesh.ToString()));
  }
  std::vector<DimSharding> dims(ndim);
  Partials partials(mesh.ndim());
  // A split factor counts the pieces made by later axes, so the axes are added
  // from last to first.
  for (int axis = mesh.ndim() - 1; axis >= 0; --axis) {
    const Placement& placement = placements[axis];
    if (placement.is_partial()) partials[axis] = placement.reduce_op();
    if (!placement.is_shard()) continue;
    const int dim =
        placement.dim() < 0 ? placement.dim() + ndim : placement.dim();
    if (dim < 0 || dim >= ndim) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout: ", placement.ToString(), " in ", text,
                       " for a tensor of ", ndim, " dims"));
    }
    auto& axes = dims[dim].axes;
    int64_t pieces = 1;
    size_t position = 0;
    while (pieces < placement.split_factor() && position < axes.size()) {
      pieces *= mesh.size(axes[position++]);
    }
    if (pieces != placement.split_factor()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout: no order of the axes of ", mesh.ToString(),
                       " gives ", text, ": later axes never number ",
                       placement.split_factor(), " pieces of dim ", dim));
    }
    axes.insert(axes.begin() + position, axis);
  }
  return Create(std::move(mesh), std::move(dims), std::move(partials));
}

Layout Layout::WithShard(int axis, int dim) const {
  const absl::Span<const int> axes = axes_of_dim(dim);
  const bool holds = std::find(axes.begin(), axes.end(), axis) != axes.end();
  return WithShard(axis, dim, static_cast<int>(axes.size()) - (holds ? 1 : 0));
}

Layout Layout::WithShard(int axis, int dim, int position) const {
  CheckAxis(mesh(), axis);
  CH_CHECK(dim >= 0 && dim < ndim()) << "dim " << dim << " of " << ToString();
  std::vector<DimSharding> dims = impl_->dims;
  Partials partials = this->partials();
  DropAxis(axis, dims);
  auto& axes = dims[dim].axes;
  CH_CHECK(position >= 0 && position <= static_cast<int>(axes.size()))
      << "position " << position << " in dim " << dim << " of " << ToString();
  // Axes after a fine axis are fine.
  if (position > static_cast<int>(axes.size()) - dims[dim].fine_axes) {
    ++dims[dim].fine_axes;
  }
  axes.insert(axes.begin() + position, axis);
  dims[dim].cuts.clear();
  partials[axis].reset();
  return Layout(mesh(), std::move(dims), std::move(partials));
}

Layout Layout::WithCuts(int dim, std::vector<int64_t> cuts) const {
  DimSharding sharding = this->sharding(dim);
  sharding.cuts = std::move(cuts);
  return WithDim(dim, std::move(sharding));
}

Layout Layout::WithFineShard(int axis, int dim) const {
  DimSharding sharding = WithShard(axis, dim).sharding(dim);
  const Layout without = WithReplicate(axis);
  sharding.fine_axes = without.sharding(dim).fine_axes + 1;
  return without.WithDim(dim, std::move(sharding));
}

Layout Layout::WithReplicate(int axis) const {
  CheckAxis(mesh(), axis);
  std::vector<DimSharding> dims = impl_->dims;
  Partials partials = this->partials();
  DropAxis(axis, dims);
  partials[axis].reset();
  return Layout(mesh(), std::move(dims), std::move(partials));
}

Layout Layout::WithPartial(int axis, ReduceOp op) const {
  CheckAxis(mesh(), axis);
  std::vector<DimSharding> dims = impl_->dims;
  Partials partials = this->partials();
  DropAxis(axis, dims);
  partials[axis] = op;
  return Layout(mesh(), std::move(dims), std::move(partials));
}

Layout Layout::WithoutPartials() const {
  return is_partial() ? Layout(mesh(), impl_->dims) : *this;
}

Layout Layout::WithDim(int dim, DimSharding sharding) const {
  CH_CHECK(dim >= 0 && dim < ndim()) << "dim " << dim << " of " << ToString();
  std::vector<DimSharding> dims = impl_->dims;
  Partials partials = this->partials();
  for (int axis : sharding.axes) {
    CheckAxis(mesh(), axis);
    DropAxis(axis, dims);
    partials[axis].reset();
  }
  dims[dim] = std::move(sharding);
  return Layout(mesh(), std::move(dims), std::move(partials));
}

Layout Layout::WithMesh(MeshLayout mesh) const {
  CH_CHECK(mesh.shape() == this->mesh().shape())
      << mesh.ToString() << " in place of " << this->mesh().ToString();
  return Layout(std::move(mesh), impl_->dims, partials());
}

const MeshLayout& Layout::mesh() const { return impl_->mesh; }

int Layout::ndim() const { return static_cast<int>(impl_->dims.size()); }

absl::Span<const DimSharding> Layout::dims() const { return impl_->dims; }

const DimSharding& Layout::sharding(int dim) const {
  CH_CHECK(dim >= 0 && dim < ndim()) << "dim " << dim << " of " << ToString();
  return impl_->dims[dim];
}

absl::Span<const int> Layout::axes_of_dim(int dim) const {
  return sharding(dim).axes;
}

int64_t Layout::unit(int dim) const { return sharding(dim).unit; }

const AxisState& Layout::state_of_axis(int axis) const {
  CheckAxis(mesh(), axis);
  return impl_->axes[axis];
}

absl::Span<const AxisState> Layout::axis_states() const { return impl_->axes; }

Layout::Partials Layout::partials() const {
  Partials partials(impl_->axes.size());
  for (size_t axis = 0; axis < impl_->axes.size(); ++axis) {
    if (impl_->axes[axis].is_partial()) partials[axis] = impl_->axes[axis].op;
  }
  return partials;
}

bool Layout::is_partial() const {
  return std::any_of(impl_->axes.begin(), impl_->axes.end(),
                     [](const AxisState& s) { return s.is_partial(); });
}

bool Layout::is_replicated() const {
  return std::all_of(impl_->axes.begin(), impl_->axes.end(),
                     [](const AxisState& s) { return s.is_replicate(); });
}

int Layout::num_chunks(int dim) const {
  return mesh().GroupSize(axes_of_dim(dim));
}

Interval Layout::DimInterval(int dim, int64_t size,
                             absl::Span<const int> coordinate) const {
  const DimSharding& sharding = this->sharding(dim);
  const size_t num_coarse = sharding.axes.size() - sharding.fine_axes;
  Interval part = {0, CeilDiv(size, sharding.unit)};
  for (size_t i = 0; i < sharding.axes.size(); ++i) {
    if (i == num_coarse) part = UnitsToElements(part, sharding.unit, size);
    const int axis = sharding.axes[i];
    const bool is_cut = !sharding.cuts.empty() && i + 1 == sharding.axes.size();
    part = is_cut ? CutChunk(part, sharding.cuts, coordinate[axis])
                  : Chunk(part, impl_->mesh.size(axis), coordinate[axis]);
  }
  return sharding.fine_axes == 0 ? UnitsToElements(part, sharding.unit, size)
                                 : part;
}

std::vector<Interval> Layout::DimIntervals(int dim, int64_t size) const {
  const DimSharding& sharding = this->sharding(dim);
  const size_t num_coarse = sharding.axes.size() - sharding.fine_axes;
  std::vector<Interval> parts = {{0, CeilDiv(size, sharding.unit)}};
  const auto to_elements = [&] {
    for (Interval& part : parts) {
      part = UnitsToElements(part, sharding.unit, size);
    }
  };
  for (size_t i = 0; i < sharding.axes.size(); ++i) {
    if (i == num_coarse) to_elements();
    const int count = impl_->mesh.size(sharding.axes[i]);
    const bool is_cut = !sharding.cuts.empty() && i + 1 == sharding.axes.size();
    std::vector<Interval> next;
    next.reserve(parts.size() * count);
    for (const Interval& part : parts) {
      for (int c = 0; c < count; ++c) {
        next.push_back(is_cut ? CutChunk(part, sharding.cuts, c)
                              : Chunk(part, count, c));
      }
    }
    parts = std::move(next);
  }
  if (sharding.fine_axes == 0) to_elements();
  return parts;
}

Box Layout::LocalBox(ShapeView global_shape,
                     absl::Span<const int> coordinate) const {
  CH_CHECK_EQ(static_cast<int>(global_shape.size()), ndim())
      << "the layout " << ToString() << " is for tensors of " << ndim()
      << " dims, the tensor is " << crosshatch::ToString(global_shape);
  CH_CHECK_EQ(static_cast<int>(coordinate.size()), mesh().ndim());
  Box box;
  for (int dim = 0; dim < ndim(); ++dim) {
    const Interval interval = DimInterval(dim, global_shape[dim], coordinate);
    box.offsets.push_back(interval.begin);
    box.sizes.push_back(interval.size());
  }
  return box;
}

Shape Layout::LocalShape(ShapeView global_shape,
                         absl::Span<const int> coordinate) const {
  return LocalBox(global_shape, coordinate).sizes;
}

bool Layout::IsOwner(absl::Span<const int> coordinate) const {
  for (int axis = 0; axis < mesh().ndim(); ++axis) {
    if (impl_->axes[axis].is_replicate() && coordinate[axis] != 0) return false;
  }
  return true;
}

std::vector<Placement> Layout::ToPlacements() const {
  std::vector<Placement> placements;
  for (int axis = 0; axis < mesh().ndim(); ++axis) {
    const AxisState& state = impl_->axes[axis];
    if (state.is_replicate()) placements.push_back(Replicate());
    if (state.is_partial()) placements.push_back(Partial(state.op));
    if (!state.is_shard()) continue;
    int64_t split_factor = 1;
    for (int major : axes_of_dim(state.dim)) {
      if (major == axis) break;
      if (major > axis) split_factor *= mesh().size(major);
    }
    placements.push_back(split_factor == 1
                             ? Shard(state.dim)
                             : StridedShard(state.dim, split_factor));
  }
  return placements;
}

std::string Layout::ToString() const {
  std::vector<std::string> parts;
  for (const Placement& placement : ToPlacements()) {
    const int axis = static_cast<int>(parts.size());
    parts.push_back(placement.ToString());
    if (!placement.is_shard()) continue;
    const DimSharding& sharding = this->sharding(placement.dim());
    const auto coarse_end = sharding.axes.end() - sharding.fine_axes;
    if (sharding.unit != 1 &&
        std::find(sharding.axes.begin(), coarse_end, axis) != coarse_end) {
      absl::StrAppend(&parts.back(), "/", sharding.unit);
    }
    if (sharding.cuts.empty() || sharding.axes.back() != axis) continue;
    constexpr size_t kMaxPrinted = 8;
    absl::StrAppend(&parts.back(), "@",
                    sharding.cuts.size() > kMaxPrinted
                        ? absl::StrCat(sharding.cuts.size(), " cuts")
                        : absl::StrJoin(sharding.cuts, ","));
  }
  return absl::StrCat("[", absl::StrJoin(parts, ","), "]");
}

std::string Layout::ToStringByDim() const {
  std::vector<std::string> parts;
  const auto append_name = [this](std::string* out, int axis) {
    absl::StrAppend(out, mesh().axis_name(axis));
  };
  for (const DimSharding& sharding : impl_->dims) {
    const auto coarse_end = sharding.axes.end() - sharding.fine_axes;
    parts.push_back(absl::StrCat(
        "{", absl::StrJoin(sharding.axes.begin(), coarse_end, ",", append_name),
        sharding.fine_axes > 0 ? "|" : "",
        absl::StrJoin(coarse_end, sharding.axes.end(), ",", append_name), "}"));
    if (sharding.unit != 1) absl::StrAppend(&parts.back(), "/", sharding.unit);
    if (!sharding.cuts.empty()) {
      absl::StrAppend(&parts.back(), "@", absl::StrJoin(sharding.cuts, ","));
    }
  }
  for (int axis = 0; axis < mesh().ndim(); ++axis) {
    if (!impl_->axes[axis].is_partial()) continue;
    parts.push_back(absl::StrCat("P(",
                                 crosshatch::ToString(impl_->axes[axis].op),
                                 "){", mesh().axis_name(axis), "}"));
  }
  return absl::StrJoin(parts, " ");
}

size_t Layout::hash() const { return impl_->hash; }

bool Layout::ValuesEqual(const Layout& a, const Layout& b) {
  return a.impl_->hash == b.impl_->hash && a.impl_->mesh == b.impl_->mesh &&
         a.impl_->dims == b.impl_->dims && a.impl_->axes == b.impl_->axes;
}

const Layout& LayoutSpec::Of(const char* what, const MeshLayout& mesh,
                             int ndim) const {
  if (layout_ != nullptr) {
    CH_CHECK_EQ(layout_->ndim(), ndim)
        << what << ": the layout " << layout_->ToStringByDim() << " has "
        << layout_->ndim() << (layout_->ndim() == 1 ? " dim" : " dims")
        << ", the tensor " << ndim
        << ": give one list of axes per dim, {} for a whole one";
    return *layout_;
  }
  absl::StatusOr<Layout> layout =
      Layout::FromPlacements(mesh, ndim, placements_);
  CH_CHECK_OK(layout.status())
      << " in " << what << " by placements "
      << crosshatch::ToString(placements_) << " on " << mesh.ToString();
  return made_.emplace(*std::move(layout));
}

}  // namespace crosshatch
