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
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

class SplitSavedStore final
    : public SavedTensorStore,
      public std::enable_shared_from_this<SplitSavedStore> {
 public:
  explicit SplitSavedStore(const DeviceMesh& mesh)
      : axis_name_(mesh.axis_names()[0]), axis_(mesh.layout()) {}

  std::shared_ptr<SavedTensorStore> Put(const Tensor& tensor,
                                        int& slot) override {
    slot = static_cast<int>(slots_.size());
    const std::optional<Layout> parts = PartsOf(tensor);
    if (parts.has_value()) {
      const NoGrad no_grad;
      // A part would hold the memory of the whole.
      slots_.push_back({.kept = Clone(Redistribute(tensor, *parts)),
                        .whole = LayoutOf(tensor)});
    } else {
      slots_.push_back({.kept = tensor, .version = GraphTies::Version(tensor)});
    }
    return shared_from_this();
  }

  Tensor Get(int slot, const Node& node) override {
    const Slot& wanted = slots_[static_cast<size_t>(slot)];
    if (!wanted.whole.has_value()) {
      GraphTies::CheckUnchanged(node, wanted.kept, wanted.version);
      return wanted.kept;
    }
    const NoGrad no_grad;
    return Redistribute(wanted.kept, *wanted.whole);
  }

  void Drop(int slot) override {
    slots_[static_cast<size_t>(slot)].kept = Tensor();
  }
  void Capture(void* /*value*/, size_t /*size*/) override {}
  void NoteRead(const Tensor& /*leaf*/) override {}
  bool recomputing() const override { return false; }

 private:
  struct Slot {
    Tensor kept;
    /// The layout of what it is a part of.
    std::optional<Layout> whole = std::nullopt;
    uint32_t version = 0;  ///< Of what is kept whole.
  };

  // How the parts lie; nullopt for what is kept as it is.
  std::optional<Layout> PartsOf(const Tensor& tensor) const {
    if (!tensor.is_distributed()) return std::nullopt;
    const Layout& layout = LayoutOf(tensor);
    const absl::StatusOr<int> axis = layout.mesh().AxisIndex(axis_name_);
    if (!axis.ok() || layout.mesh().root() != axis_.root() ||
        !layout.state_of_axis(*axis).is_replicate()) {
      return std::nullopt;
    }
    int longest = -1;
    for (int d = 0; d < tensor.ndim(); ++d) {
      if (layout.is_sharded(d)) continue;
      if (longest < 0 || tensor.size(d) > tensor.size(longest)) longest = d;
    }
    if (longest < 0 || tensor.size(longest) < 2) return std::nullopt;
    return layout.WithShard(*axis, longest);
  }

  const std::string axis_name_;
  const MeshLayout axis_;
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
                           "CheckpointOptions::split_inputs_over"));
  }
  module.Attach(kSplitSavedKey, std::make_shared<Attachment>());
  module.set_forward_wrapper([mesh](TensorSpan inputs,
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
