// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/device_mesh.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

// State shared by the meshes of one root.
struct DeviceMesh::Shared {
  struct Entry {
    std::string name;
    std::vector<int> ranks;
    std::string stream;
    std::shared_ptr<Communicator> communicator;
  };

  explicit Shared(World& world) : world(world) {}

  World& world;
  // Few entries: one per group of axes in use and stream.
  std::vector<Entry> communicators;
};

struct DeviceMesh::Impl {
  std::shared_ptr<Shared> shared;
  MeshLayout layout;
  std::optional<MeshCoordinate> coordinate;
};

namespace {

// The root meshes that include the rank.
struct Roots final : RankContext::Extension {
  struct Root {
    std::weak_ptr<const void> in_use;
    World* world;  // Outlives `in_use`.
    MeshLayout layout;
  };
  std::vector<Root> roots;
};

void AddRoot(World& world, std::weak_ptr<const void> in_use,
             const MeshLayout& layout) {
  const MeshLayout root = layout.is_root() ? layout : layout.root();
  if (!root.Contains(world.world_rank())) return;
  world.context().Get<Roots>().roots.push_back(
      {std::move(in_use), &world, root});
}

}  // namespace

absl::StatusOr<std::vector<Communicator*>> RootCommunicators() {
  RankContext& context = RankContext::Current();
  std::vector<Roots::Root>& roots = context.Get<Roots>().roots;
  std::erase_if(roots, [](const Roots::Root& r) { return r.in_use.expired(); });
  std::vector<Communicator*> communicators;
  std::set<std::vector<int>> seen;
  for (const Roots::Root& root : roots) {
    const std::vector<int> ranks(root.layout.ranks().begin(),
                                 root.layout.ranks().end());
    std::vector<int> sorted = ranks;
    std::sort(sorted.begin(), sorted.end());
    if (!seen.insert(std::move(sorted)).second) continue;
    // The communicator that DeviceMesh::communicator returns for all axes.
    CH_ASSIGN_OR_RETURN(
        const std::shared_ptr<Communicator> communicator,
        root.world->Group(absl::StrJoin(root.layout.axis_names(), ","), ranks,
                          context.current_stream().name()));
    communicators.push_back(communicator.get());
  }
  return communicators;
}

DeviceMesh::DeviceMesh(std::shared_ptr<Shared> shared, MeshLayout layout) {
  const int rank = shared->world.world_rank();
  std::optional<MeshCoordinate> coordinate = layout.CoordinateOf(rank);
  impl_ = std::make_shared<const Impl>(
      Impl{std::move(shared), std::move(layout), std::move(coordinate)});
}

const MeshLayout& DeviceMesh::layout() const { return impl_->layout; }

const std::optional<MeshCoordinate>& DeviceMesh::coordinate() const {
  return impl_->coordinate;
}

std::optional<int> DeviceMesh::index(int axis) const {
  CH_CHECK(axis >= 0 && axis < layout().ndim())
      << "axis " << axis << " of " << ToString();
  if (!impl_->coordinate.has_value()) return std::nullopt;
  return (*impl_->coordinate)[axis];
}

World& DeviceMesh::world() const { return impl_->shared->world; }

absl::StatusOr<DeviceMesh> DeviceMesh::Slice(
    absl::Span<const std::string> names) const {
  CH_ASSIGN_OR_RETURN(MeshLayout slice,
                      layout().Slice(names, impl_->shared->world.world_rank()));
  return DeviceMesh(impl_->shared, std::move(slice));
}

absl::StatusOr<DeviceMesh> DeviceMesh::Slice(absl::string_view name) const {
  const std::string names[] = {std::string(name)};
  return Slice(absl::MakeConstSpan(names));
}

absl::StatusOr<DeviceMesh> DeviceMesh::Flatten(
    absl::Span<const std::string> names, std::string new_name) const {
  CH_ASSIGN_OR_RETURN(MeshLayout flat,
                      layout().Flatten(names, std::move(new_name)));
  return DeviceMesh(impl_->shared, std::move(flat));
}

absl::StatusOr<DeviceMesh> DeviceMesh::Unflatten(
    absl::string_view name, absl::Span<const MeshAxis> axes) const {
  CH_ASSIGN_OR_RETURN(MeshLayout split, layout().Unflatten(name, axes));
  return DeviceMesh(impl_->shared, std::move(split));
}

absl::StatusOr<DeviceMesh> DeviceMesh::Concatenate(
    absl::Span<const DeviceMesh> slices) {
  if (slices.empty()) {
    return absl::InvalidArgumentError("no meshes to concatenate");
  }
  std::vector<MeshLayout> layouts;
  for (const DeviceMesh& slice : slices) layouts.push_back(slice.layout());
  CH_ASSIGN_OR_RETURN(MeshLayout joined, MeshLayout::Concatenate(layouts));
  return DeviceMesh(slices[0].impl_->shared, std::move(joined));
}

DeviceMesh DeviceMesh::root() const {
  if (layout().is_root()) return *this;
  return DeviceMesh(impl_->shared, layout().root());
}

absl::StatusOr<Communicator*> DeviceMesh::communicator(
    absl::Span<const int> axes, const std::string& stream_name) const {
  if (!impl_->coordinate.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", world().world_rank(), " is not on ", ToString(),
                     " and has no communicator for it"));
  }
  std::vector<int> ranks = layout().GroupRanks(axes, *impl_->coordinate);
  const std::string name =
      absl::StrJoin(axes, ",", [&](std::string* out, int axis) {
        out->append(layout().axis_name(axis));
      });
  auto& entries = impl_->shared->communicators;
  for (const Shared::Entry& entry : entries) {
    if (entry.stream == stream_name && entry.ranks == ranks &&
        entry.name == name) {
      return entry.communicator.get();
    }
  }
  CH_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> communicator,
                      world().Group(name, ranks, stream_name));
  entries.push_back({name, std::move(ranks), stream_name, communicator});
  return communicator.get();
}

absl::StatusOr<Communicator*> DeviceMesh::communicator(
    int axis, const std::string& stream_name) const {
  return communicator(absl::MakeConstSpan(&axis, 1), stream_name);
}

absl::StatusOr<Communicator*> DeviceMesh::communicator(
    absl::string_view axis, const std::string& stream_name) const {
  CH_ASSIGN_OR_RETURN(const int index, layout().AxisIndex(axis));
  return communicator(index, stream_name);
}

absl::Status DeviceMesh::SetTimeout(absl::string_view axis,
                                    absl::Duration timeout) const {
  CH_RETURN_IF_ERROR(layout().AxisIndex(axis).status());
  for (const Shared::Entry& entry : impl_->shared->communicators) {
    if (entry.name != axis) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("SetTimeout of axis \"", axis, "\" of ", ToString(),
                     " comes after its first use: its communicator is the ",
                     entry.communicator->Describe()));
  }
  return world().SetTimeout(std::string(axis), timeout);
}

std::vector<std::shared_ptr<Communicator>> DeviceMesh::communicators() const {
  std::vector<std::shared_ptr<Communicator>> all;
  for (const Shared::Entry& entry : impl_->shared->communicators) {
    all.push_back(entry.communicator);
  }
  return all;
}

void DeviceMesh::Abort(const absl::Status& error) const {
  // Without a group yet, other ranks may wait for this one to create the first.
  if (impl_->shared->communicators.empty()) world().Abort(error);
  for (const Shared::Entry& entry : impl_->shared->communicators) {
    entry.communicator->Abort(error);
  }
}

namespace {

// Returns a text that is equal for equal layouts, including their roots, and
// differs for others.
std::string DescriptionOf(const absl::StatusOr<MeshLayout>& layout) {
  if (!layout.ok()) {
    return absl::StrCat("an error (", layout.status().message(), ")");
  }
  if (layout->is_root()) return layout->ToString();
  return absl::StrCat(layout->ToString(), " of ", layout->root().ToString());
}

// Returns an error unless all members of `group` have the same layout. All
// members receive the same list, so they report the same pair.
absl::Status CompareDescriptions(Communicator& group,
                                 const absl::StatusOr<MeshLayout>& layout,
                                 const char* function) {
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> descriptions,
                      group.Exchange(DescriptionOf(layout), function));
  // The rank's own error is more specific than a difference.
  if (!layout.ok()) return layout.status();
  for (size_t i = 1; i < descriptions.size(); ++i) {
    if (descriptions[i] != descriptions[0]) {
      return absl::InvalidArgumentError(absl::StrCat(
          function, ": ranks describe different meshes: rank ",
          group.world_ranks()[0], " gives ", descriptions[0], ", rank ",
          group.world_ranks()[i], " gives ", descriptions[i]));
    }
  }
  return absl::OkStatus();
}

// Returns an error unless the ranks of `layout` are in `world`.
absl::Status CheckRanks(const MeshLayout& layout, const World& world) {
  std::vector<int> here = world.AllRanks();
  std::sort(here.begin(), here.end());
  for (const int rank : layout.ranks()) {
    if (std::binary_search(here.begin(), here.end(), rank)) continue;
    const bool too_large = layout.size() > world.size();
    return absl::InvalidArgumentError(absl::StrCat(
        "InitDeviceMesh: ", layout.ToString(), " needs ",
        too_large ? absl::StrCat(layout.size(), " ranks")
                  : absl::StrCat("rank ", rank),
        ", but the world has ", world.size(), " ranks",
        world.size() == world.context().world_size()
            ? ""
            : absl::StrCat(": ", absl::StrJoin(world.AllRanks(), ", "))));
  }
  return absl::OkStatus();
}

// Returns an error unless `communicators` are those of the axes of `layout` at
// `world_rank`.
absl::Status CheckCommunicators(
    const MeshLayout& layout, int world_rank,
    absl::Span<const std::shared_ptr<Communicator>> communicators) {
  if (!layout.Contains(world_rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", world_rank, " is not on ", layout.ToString()));
  }
  if (static_cast<int>(communicators.size()) != layout.ndim()) {
    return absl::InvalidArgumentError(
        absl::StrCat(layout.ToString(), " takes ", layout.ndim(),
                     " communicators, got ", communicators.size()));
  }
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const std::vector<int> ranks = layout.GroupRanks({axis}, world_rank);
    if (communicators[axis]->world_ranks() == ranks) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "axis \"", layout.axis_name(axis), "\" of ", layout.ToString(),
        " has the ranks [", absl::StrJoin(ranks, ","),
        "] on this rank, but its communicator is the ",
        communicators[axis]->Describe()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          absl::StatusOr<MeshLayout> layout) {
  if (layout.ok()) {
    if (absl::Status fits = CheckRanks(*layout, world); !fits.ok()) {
      layout = std::move(fits);
    }
  }
  CH_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> side_channel,
                      world.Group("world", world.AllRanks(), "mesh"));
  CH_RETURN_IF_ERROR(
      CompareDescriptions(*side_channel, layout, "InitDeviceMesh"));
  const bool is_on_mesh = layout->Contains(world.world_rank());
  std::vector<std::vector<int>> groups;
  for (int axis = 0; axis < layout->ndim(); ++axis) {
    // Ranks off the mesh pass the same number of groups, because an engine
    // creates them one by one on all ranks together.
    if (layout->size(axis) == 1) continue;
    groups.push_back(is_on_mesh ? layout->GroupRanks({axis}, world.world_rank())
                                : std::vector<int>());
  }
  CH_RETURN_IF_ERROR(world.Split(*side_channel, groups));
  auto shared = std::make_shared<DeviceMesh::Shared>(world);
  AddRoot(world, shared, *layout);
  return DeviceMesh(std::move(shared), *std::move(layout));
}

absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          std::vector<MeshAxis> axes) {
  absl::StatusOr<MeshLayout> layout = MeshLayout::Create(axes);
  if (layout.ok() && layout->size() <= world.size()) {
    std::vector<int> ranks = world.AllRanks();
    ranks.resize(static_cast<size_t>(layout->size()));
    layout = MeshLayout::Create(std::move(axes), std::move(ranks));
  }
  return InitDeviceMesh(world, std::move(layout));
}

absl::StatusOr<DeviceMesh> InitDeviceMesh(World& world,
                                          std::vector<MeshAxis> axes,
                                          std::vector<int> ranks) {
  return InitDeviceMesh(world,
                        MeshLayout::Create(std::move(axes), std::move(ranks)));
}

absl::StatusOr<DeviceMesh> DeviceMeshFromCommunicators(
    World& world, absl::StatusOr<MeshLayout> layout,
    absl::Span<const std::shared_ptr<Communicator>> communicators,
    const std::string& stream_name) {
  if (layout.ok()) {
    absl::Status fits =
        CheckCommunicators(*layout, world.world_rank(), communicators);
    if (!fits.ok()) layout = std::move(fits);
  }
  // An error spreads along one axis per iteration, so after the last axis it
  // has reached every rank.
  for (const std::shared_ptr<Communicator>& communicator : communicators) {
    absl::Status agrees = CompareDescriptions(*communicator, layout,
                                              "DeviceMeshFromCommunicators");
    if (!agrees.ok()) layout = std::move(agrees);
  }
  if (!layout.ok()) return layout.status();
  auto shared = std::make_shared<DeviceMesh::Shared>(world);
  for (int axis = 0; axis < layout->ndim(); ++axis) {
    shared->communicators.push_back({layout->axis_name(axis),
                                     communicators[axis]->world_ranks(),
                                     stream_name, communicators[axis]});
  }
  AddRoot(world, shared, *layout);
  return DeviceMesh(std::move(shared), *std::move(layout));
}

absl::StatusOr<DeviceMesh> DeviceMeshFromCommunicator(
    World& world, std::string axis_name,
    std::shared_ptr<Communicator> communicator,
    const std::string& stream_name) {
  absl::StatusOr<MeshLayout> layout =
      MeshLayout::Create({{std::move(axis_name), communicator->size()}},
                         communicator->world_ranks());
  return DeviceMeshFromCommunicators(world, std::move(layout), {communicator},
                                     stream_name);
}

absl::StatusOr<Communicator*> MeshCommunicator(const DeviceMesh& mesh) {
  std::vector<int> axes(static_cast<size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  return mesh.communicator(axes,
                           RankContext::Current().current_stream().name());
}

}  // namespace crosshatch
