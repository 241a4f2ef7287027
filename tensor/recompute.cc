// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/recompute.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

/// One run of a part of forward, with the inputs and state to recompute it.
class Region final : public SavedTensorStore,
                     public std::enable_shared_from_this<Region> {
 public:
  Region(std::string name, TensorSpan inputs, RecomputedFunction forward)
      : name_(std::move(name)),
        forward_(std::move(forward)),
        memory_class_(RankContext::Current().memory_class()),
        recomputing_(InRecomputation()) {
    // Within a recomputed part these belong to the outer part.
    for (const Tensor& input : inputs) inputs_.emplace_back(input);
  }
  ~Region() override {
    for (SavedTensor& input : inputs_) input.Reset();
  }

  TensorList Run(TensorSpan inputs) {
    around_ = RankContext::Current().saved_tensor_store();
    const SavedTensorScope scope(this);
    recording_ = true;
    TensorList outputs = forward_(inputs);
    recording_ = false;
    around_ = nullptr;
    return outputs;
  }

  std::shared_ptr<SavedTensorStore> Put(const Tensor& tensor,
                                        int& slot) override {
    slot = static_cast<int>(slots_.size());
    slots_.push_back({.sizes = tensor.sizes(), .dtype = tensor.dtype()});
    return shared_from_this();
  }

  Tensor Get(int slot, const Node& node) override {
    Slot& wanted = slots_[static_cast<size_t>(slot)];
    if (!wanted.tensor.defined()) Recompute();
    GraphTies::CheckUnchanged(node, wanted.tensor, wanted.version);
    return wanted.tensor;
  }

  void Drop(int slot) override {
    Slot& dropped = slots_[static_cast<size_t>(slot)];
    dropped.tensor = Tensor();
    dropped.wanted = false;
  }

  void Capture(void* value, size_t size) override {
    // The surrounding part recomputes this one, too.
    if (around_ != nullptr) around_->Capture(value, size);
    const auto* const bytes = static_cast<const std::byte*>(value);
    captured_.emplace_back(bytes, bytes + size);
  }

  void NoteRead(const Tensor& leaf) override {
    if (around_ != nullptr) around_->NoteRead(leaf);
    read_.push_back({leaf.Detach(), GraphTies::Version(leaf)});
  }

  bool recomputing() const override { return recomputing_; }

 private:
  /// A parameter as the first run read it.
  struct ReadLeaf {
    Tensor tensor;  ///< Outside of the graph.
    uint32_t version;
  };

  struct Slot {
    Tensor tensor;  ///< Undefined until made again.
    uint32_t version = 0;
    bool wanted = true;
    /// To check that the recomputed tensor is the same.
    Shape sizes;
    DType dtype;
  };

  /// Receives what the second run saves. Its nodes are not kept.
  class Refill final : public SavedTensorStore {
   public:
    explicit Refill(Region& region) : region_(region) {}

    std::shared_ptr<SavedTensorStore> Put(const Tensor& tensor,
                                          int& /*slot*/) override {
      if (next_ < region_.slots_.size()) region_.Fill(next_, tensor);
      ++next_;
      return nullptr;
    }
    Tensor Get(int /*slot*/, const Node& node) override {
      CH_CHECK(false) << node.name() << " of a second run";
      return Tensor();
    }
    void Drop(int /*slot*/) override {}
    void Capture(void* value, size_t size) override {
      region_.Restore(next_captured_++, value, size);
    }
    void NoteRead(const Tensor& /*leaf*/) override {}
    bool recomputing() const override { return true; }

    size_t count() const { return next_; }
    size_t captured() const { return next_captured_; }

   private:
    Region& region_;
    size_t next_ = 0;
    size_t next_captured_ = 0;
  };

  void Fill(size_t i, const Tensor& tensor) {
    Slot& slot = slots_[i];
    CH_CHECK(slot.sizes == tensor.sizes() && slot.dtype == tensor.dtype())
        << "recomputing " << name_ << ": what is saved as " << i << " was "
        << slot.dtype << ToString(slot.sizes) << " in forward and is now "
        << tensor.Describe();
    if (!slot.wanted) return;
    slot.tensor = tensor;
    slot.version = GraphTies::Version(tensor);
  }

  void Restore(size_t i, void* value, size_t size) const {
    CH_CHECK(i < captured_.size() && captured_[i].size() == size)
        << "recomputing " << name_ << ": it captures as " << i
        << " what it did not capture in forward";
    std::memcpy(value, captured_[i].data(), size);
  }

  void Recompute() {
    CH_CHECK(!recording_) << "a backward within the forward of " << name_
                          << ", which is still to be recomputed";
    AtBackwardEnd([region = shared_from_this()] { region->DropContents(); });
    const GradModeScope grad_mode(true);
    const MemoryClassScope memory_class(memory_class_);
    TensorList inputs;
    for (const SavedTensor& input : inputs_) {
      // Linked into the graph, so that a saved input is distinguished from a
      // leaf as it was in forward.
      inputs.push_back(input.defined() ? input.Unpack(*user_) : Tensor());
    }
    Refill refill(*this);
    const SavedTensorScope scope(&refill);
    forward_(inputs);
    // Only now, because the code that gathers parameters sets their versions
    // when it gathers.
    for (const ReadLeaf& leaf : read_) {
      GraphTies::CheckUnchanged(*user_, leaf.tensor, leaf.version);
    }
    CH_CHECK_EQ(refill.count(), slots_.size())
        << "recomputing " << name_
        << ": it saves another number of tensors than in forward";
    CH_CHECK_EQ(refill.captured(), captured_.size())
        << "recomputing " << name_
        << ": it captures another number of values than in forward";
  }

  void DropContents() {
    for (Slot& slot : slots_) slot.tensor = Tensor();
  }

  /// Names the part in messages about saved inputs.
  class User final : public Node {
   public:
    explicit User(std::string name) : name_(std::move(name)) {}
    const char* name() const override { return name_.c_str(); }
    void Backward(TensorSpan, GradientSlots&) override {}
    void ReleaseSaved() override {}

   private:
    const std::string name_;
  };

  const std::string name_;
  const RecomputedFunction forward_;
  const MemoryClass memory_class_;
  const bool recomputing_;
  const std::shared_ptr<User> user_ = std::make_shared<User>(name_);
  std::vector<SavedTensor> inputs_;
  std::vector<Slot> slots_;
  std::vector<std::vector<std::byte>> captured_;
  std::vector<ReadLeaf> read_;
  SavedTensorStore* around_ = nullptr;  ///< While recording.
  bool recording_ = false;
};

}  // namespace

TensorList Recomputed(std::string name, TensorSpan inputs,
                      RecomputedFunction forward) {
  if (!RankContext::Current().grad_enabled()) return forward(inputs);
  return std::make_shared<Region>(std::move(name), inputs, std::move(forward))
      ->Run(inputs);
}

namespace internal {

void Capture(void* value, size_t size) {
  SavedTensorStore* const store = RankContext::Current().saved_tensor_store();
  if (store != nullptr) store->Capture(value, size);
}

}  // namespace internal

bool InRecomputation() {
  const SavedTensorStore* const store =
      RankContext::Current().saved_tensor_store();
  return store != nullptr && store->recomputing();
}

}  // namespace crosshatch
