// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/default_extensions.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"

namespace crosshatch::fsdp {
namespace {

class PlainForm final : public ForwardForm {
 public:
  Tensor Wrap(Tensor local) const override { return local; }
};

class Plain final : public ShardExtension {
 public:
  Tensor LocalOf(const Tensor& parameter) const override { return parameter; }

  std::shared_ptr<const ForwardForm> FormOf(const Tensor&) const override {
    return std::make_shared<PlainForm>();
  }

  absl::StatusOr<ShardedForm> Chunk(const Tensor& parameter,
                                    const DeviceMesh& fsdp_mesh,
                                    int dim) const override {
    if (parameter.is_distributed()) {
      return absl::InvalidArgumentError(
          "is a DTensor, but Replicate takes plain parameters; call FullyShard "
          "on a mesh of two axes whose second has one rank");
    }
    return ShardedForm{fsdp_mesh,
                       Layout::Replicated(fsdp_mesh.layout(), parameter.ndim())
                           .WithShard(fsdp_mesh.ndim() - 1, dim)};
  }
};

class DTensorForm final : public ForwardForm {
 public:
  explicit DTensorForm(const Tensor& parameter)
      : mesh_(MeshOf(parameter)),
        layout_(LayoutOf(parameter)),
        sizes_(parameter.sizes()) {}

  Tensor Wrap(Tensor local) const override {
    return MakeDTensor(std::move(local), mesh_, layout_, sizes_);
  }

 private:
  const DeviceMesh mesh_;
  const Layout layout_;
  const Shape sizes_;
};

// Returns `layout` on another mesh, by axis names.
//
// \error if an axis that splits a dim is missing. Other axes of either mesh
//     replicate.
absl::StatusOr<Layout> OnMesh(const Layout& layout, const MeshLayout& mesh) {
  std::vector<DimSharding> dims;
  for (const DimSharding& sharding : layout.dims()) {
    DimSharding& moved = dims.emplace_back(sharding);
    for (int& axis : moved.axes) {
      CH_ASSIGN_OR_RETURN(axis, mesh.AxisIndex(layout.mesh().axis_name(axis)));
    }
  }
  return Layout::Create(mesh, std::move(dims));
}

// Returns `whole` with some of its axes split as in `mesh`: those that consist
// of several neighbouring axes of `mesh`. Tensor parallelism splits its axis
// like that to replicate key and value heads. Axes in `taken` are not split.
absl::StatusOr<DeviceMesh> SplitAxesLike(const DeviceMesh& mesh,
                                         DeviceMesh whole,
                                         absl::Span<const std::string> taken) {
  std::vector<int> run;
  for (int begin = 0; begin + 1 < mesh.ndim(); ++begin) {
    run.assign(1, begin);
    while (run.back() + 1 < mesh.ndim()) {
      run.push_back(run.back() + 1);
      const std::vector<int> ranks =
          mesh.layout().GroupRanks(run, *mesh.coordinate());
      const MeshLayout layout = whole.layout();
      for (int axis = 0; axis < layout.ndim(); ++axis) {
        if (layout.GroupRanks(absl::MakeConstSpan(&axis, 1), ranks[0]) !=
            ranks) {
          continue;
        }
        std::vector<MeshAxis> parts;
        bool are_new = std::find(taken.begin(), taken.end(),
                                 layout.axis_name(axis)) == taken.end();
        for (const int part : run) {
          const std::string& name = mesh.layout().axis_name(part);
          parts.push_back({name, mesh.size(part)});
          are_new &=
              name == layout.axis_name(axis) || !layout.AxisIndex(name).ok();
        }
        if (!are_new) continue;
        CH_ASSIGN_OR_RETURN(whole,
                            whole.Unflatten(layout.axis_name(axis), parts));
        break;
      }
    }
  }
  return whole;
}

// Returns `whole`, a mesh of all ranks of the job, with the axes of `mesh`.
// Each of these must be an axis of `whole`, several of them flattened, a part
// of one whose other parts are in `mesh` too, or an axis of one rank. Axes in
// `taken` are not split.
absl::StatusOr<DeviceMesh> WithAxesOf(
    const DeviceMesh& mesh, DeviceMesh whole,
    absl::Span<const std::string> taken = {}) {
  CH_ASSIGN_OR_RETURN(whole, SplitAxesLike(mesh, std::move(whole), taken));
  for (int i = 0; i < mesh.ndim(); ++i) {
    const std::string& name = mesh.axis_names()[static_cast<size_t>(i)];
    const std::vector<int> line = mesh.layout().GroupRanks(
        absl::MakeConstSpan(&i, 1), *mesh.coordinate());
    const MeshLayout& layout = whole.layout();
    // The axes along which the ranks of the line differ. A slower axis first
    // differs from the line's start at a later rank.
    std::vector<std::pair<size_t, int>> varying;
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      const auto at = [&](int rank) {
        return (*layout.CoordinateOf(rank))[static_cast<size_t>(axis)];
      };
      size_t first = 1;
      while (first < line.size() && at(line[first]) == at(line[0])) ++first;
      if (first < line.size()) varying.push_back({first, axis});
    }
    std::sort(varying.rbegin(), varying.rend());
    std::vector<int> axes;
    std::vector<std::string> names;
    for (const auto& [first, axis] : varying) {
      axes.push_back(axis);
      names.push_back(layout.axis_name(axis));
    }
    if (layout.GroupRanks(axes, line[0]) != line) {
      return absl::FailedPreconditionError(
          absl::StrCat("the axis \"", name, "\" of ", mesh.ToString(),
                       " is not made of whole axes of ", whole.ToString()));
    }
    if (names.empty()) {
      if (layout.AxisIndex(name).ok()) continue;
      CH_ASSIGN_OR_RETURN(
          whole,
          whole.Unflatten(layout.axis_name(0),
                          {{layout.axis_name(0), layout.size(0)}, {name, 1}}));
    } else if (names.size() > 1 || names[0] != name) {
      CH_ASSIGN_OR_RETURN(whole, whole.Flatten(names, name));
    }
  }
  return whole;
}

// Returns the slice of `whole` with the axes that at least one of the meshes
// has. Ranks along other axes may hold other tensors, e.g. other experts.
absl::StatusOr<DeviceMesh> WithoutUnusedAxes(const DeviceMesh& whole,
                                             const DeviceMesh& fsdp_mesh,
                                             const MeshLayout& inner) {
  std::vector<std::string> names;
  for (const std::string& name : whole.axis_names()) {
    if (fsdp_mesh.layout().AxisIndex(name).ok() || inner.AxisIndex(name).ok()) {
      names.push_back(name);
    }
  }
  if (static_cast<int>(names.size()) == whole.ndim()) return whole;
  return whole.Slice(names);
}

// Returns advice to shard over an axis that `inner` lacks, of `fsdp_mesh` or
// else of its root.
std::string AdviceOfMesh(const DeviceMesh& fsdp_mesh, const MeshLayout& inner) {
  for (const DeviceMesh& mesh : {fsdp_mesh, fsdp_mesh.root()}) {
    for (const std::string& name : mesh.axis_names()) {
      if (inner.AxisIndex(name).ok()) continue;
      return absl::StrCat("; pass mesh.Slice(\"", name,
                          "\") to FullyShard, or return it from "
                          "FullyShardOptions::mesh_of for single parameters "
                          "(experts)");
    }
  }
  return {};
}

absl::StatusOr<ShardedForm> ChunkBeneath(const Tensor& parameter,
                                         const DeviceMesh& fsdp_mesh, int dim) {
  const DeviceMesh root = fsdp_mesh.root();
  CH_ASSIGN_OR_RETURN(DeviceMesh whole, WithAxesOf(fsdp_mesh, root));
  Layout layout = Layout::Replicated(whole.layout(), parameter.ndim());
  if (parameter.is_distributed()) {
    const Layout& inner = LayoutOf(parameter);
    if (inner.mesh().root() != root.layout()) {
      return absl::FailedPreconditionError(
          absl::StrCat("is on ", inner.mesh().ToString(), ", a slice of ",
                       inner.mesh().root().ToString(), ", but FSDP on ",
                       fsdp_mesh.ToString(), ", a slice of ", root.ToString(),
                       "; slice both from one mesh"));
    }
    for (const std::string& axis : fsdp_mesh.axis_names()) {
      if (inner.mesh().AxisIndex(axis).ok()) {
        return absl::FailedPreconditionError(
            absl::StrCat("is distributed over the axis \"", axis, "\" already",
                         AdviceOfMesh(fsdp_mesh, inner.mesh())));
      }
    }
    if (!inner.sharding(dim).cuts.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("has cuts on dim ", dim, " already, in ",
                       inner.ToString(), "; shard it on another dim"));
    }
    if (inner.is_partial()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "is partial: its reduction is pending in ", inner.ToString()));
    }
    CH_ASSIGN_OR_RETURN(
        whole, WithAxesOf(MeshOf(parameter), whole, fsdp_mesh.axis_names()));
    CH_ASSIGN_OR_RETURN(whole,
                        WithoutUnusedAxes(whole, fsdp_mesh, inner.mesh()));
    CH_ASSIGN_OR_RETURN(layout, OnMesh(inner, whole.layout()));
  }
  CH_ASSIGN_OR_RETURN(const int axis,
                      whole.layout().AxisIndex(fsdp_mesh.axis_names().back()));
  return ShardedForm{whole, layout.WithFineShard(axis, dim)};
}

class Distributed final : public ShardExtension {
 public:
  Tensor LocalOf(const Tensor& parameter) const override {
    return LocalTensor(parameter);
  }

  std::shared_ptr<const ForwardForm> FormOf(
      const Tensor& parameter) const override {
    if (!parameter.is_distributed()) return std::make_shared<PlainForm>();
    return std::make_shared<DTensorForm>(parameter);
  }

  absl::StatusOr<ShardedForm> Chunk(const Tensor& parameter,
                                    const DeviceMesh& fsdp_mesh,
                                    int dim) const override {
    return ChunkBeneath(parameter, fsdp_mesh, dim);
  }
};

}  // namespace

const ShardExtension& PlainExtension() {
  static const Plain extension;
  return extension;
}

const ShardExtension& DTensorExtension() {
  static const Distributed extension;
  return extension;
}

}  // namespace crosshatch::fsdp
