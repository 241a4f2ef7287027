// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/split_saved.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/storage.h"

namespace crosshatch::nn {
namespace {

class SplitSavedStore final
    : public SavedTensorStore,
      public std::enable_shared_from_this<SplitSavedStore> {
 public:
  explicit SplitSavedStore(const DeviceMesh& mesh) : mesh_(mesh) {}

  std::shared_ptr<SavedTensorStore> Put(const Tensor& tensor,
                                        int& slot) override {
    slot = static_cast<int>(slots_.size());
    const uint32_t version = GraphTies::Version(tensor);
    if (!EveryRankHasIt(tensor)) {
      slots_.push_back({.kept = tensor, .version = version});
      return shared_from_this();
    }
    const NoGrad no_grad;
    const Tensor local = LocalTensor(tensor);
    Tensor part = FindPart(local, version);
    if (!part.defined()) {
      // A copy, because a view would keep the whole storage alive.
      part = DistributeTensor(local, mesh_, {Shard(LongestDim(local))});
    }
    slots_.push_back({.kept = std::move(part),
                      .version = version,
                      .source = local.storage(),
                      .offset = local.storage_offset(),
                      .strides = local.strides(),
                      .whole = Whole{MeshOf(tensor), LayoutOf(tensor),
                                     Shape(tensor.sizes())}});
    return shared_from_this();
  }

  Tensor Get(int slot, const Node& node) override {
    const Slot& wanted = slots_[static_cast<size_t>(slot)];
    if (!wanted.whole.has_value()) {
      GraphTies::CheckUnchanged(node, wanted.kept, wanted.version);
      return wanted.kept;
    }
    const NoGrad no_grad;
    return MakeDTensor(FullTensor(wanted.kept), wanted.whole->mesh,
                       wanted.whole->layout, wanted.whole->sizes);
  }

  void Drop(int slot) override {
    slots_[static_cast<size_t>(slot)].kept = Tensor();
  }
  void Capture(void* /*value*/, size_t /*size*/) override {}
  void NoteRead(const Tensor& /*leaf*/) override {}
  bool recomputing() const override { return false; }

 private:
  struct Whole {
    DeviceMesh mesh;
    Layout layout;
    Shape sizes;
  };
  struct Slot {
    Tensor kept;
    uint32_t version = 0;
    /// The range of storage that a shard was copied from.
    std::weak_ptr<Storage> source = {};
    int64_t offset = 0;
    Shape strides = {};
    /// The tensor that `kept` is a shard of.
    std::optional<Whole> whole = std::nullopt;
  };

  // Returns whether ranks along the axis have equal local parts of `tensor`,
  // with more than one element: the mesh axes along which these ranks differ
  // are replicated.
  bool EveryRankHasIt(const Tensor& tensor) const {
    if (!tensor.is_distributed()) return false;
    const Layout& layout = LayoutOf(tensor);
    const MeshLayout& mesh = layout.mesh();
    const absl::Span<const int> ranks = mesh_.layout().ranks();
    for (const int rank : ranks) {
      if (!mesh.Contains(rank)) return false;
      const MeshCoordinate first = *mesh.CoordinateOf(ranks[0]);
      const MeshCoordinate other = *mesh.CoordinateOf(rank);
      for (int axis = 0; axis < mesh.ndim(); ++axis) {
        const auto at = static_cast<size_t>(axis);
        if (first[at] != other[at] &&
            !layout.state_of_axis(axis).is_replicate()) {
          return false;
        }
      }
    }
    return LocalTensor(tensor).numel() > 1;
  }

  static int LongestDim(const Tensor& local) {
    int longest = 0;
    for (int d = 1; d < local.ndim(); ++d) {
      if (local.size(d) > local.size(longest)) longest = d;
    }
    return longest;
  }

  // Returns the shard that is already kept for a tensor that several nodes
  // save, or undefined.
  Tensor FindPart(const Tensor& local, uint32_t version) const {
    for (auto slot = slots_.rbegin(); slot != slots_.rend(); ++slot) {
      if (slot->whole.has_value() && slot->kept.defined() &&
          slot->version == version && slot->offset == local.storage_offset() &&
          slot->strides == local.strides() &&
          slot->kept.sizes() == local.sizes() &&
          slot->source.lock() == local.storage()) {
        return slot->kept;
      }
    }
    return Tensor();
  }

  const DeviceMesh mesh_;
  std::vector<Slot> slots_;
};

}  // namespace

std::shared_ptr<SavedTensorStore> MakeSplitSavedStore(const DeviceMesh& mesh) {
  CH_CHECK_EQ(mesh.ndim(), 1) << "saved activations over " << mesh.ToString();
  return std::make_shared<SplitSavedStore>(mesh);
}

absl::Status SplitSavedActivations(Module& module, const DeviceMesh& mesh) {
  if (mesh.ndim() != 1 || !mesh.coordinate().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SplitSavedActivations takes a mesh of one axis that this rank is on, "
        "not ",
        mesh.ToString(), "; slice one: mesh.Slice(\"tp\")"));
  }
  for (const char* key : {kSplitSavedKey, kCheckpointKey}) {
    if (module.attachment(key) == nullptr) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("SplitSavedActivations: ", *module.label(),
                     key == kSplitSavedKey
                         ? " has it already"
                         : " is checkpointed, and saves no activations; see "
                           "ActivationCheckpointOptions::split_inputs_over"));
  }
  module.Attach(kSplitSavedKey, std::make_shared<Attachment>());
  module.AddForwardWrapper([mesh](TensorSpan inputs,
                                  const Module::ForwardFunction& forward) {
    RankContext& context = RankContext::Current();
    if (!context.grad_enabled() || context.saved_tensor_store() != nullptr) {
      return forward(inputs);
    }
    const std::shared_ptr<SavedTensorStore> store = MakeSplitSavedStore(mesh);
    const SavedTensorScope scope(store.get());
    return forward(inputs);
  });
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
