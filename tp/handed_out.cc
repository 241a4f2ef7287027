// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/handed_out.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/storage.h"

namespace crosshatch::tp {
namespace {

// Of one memory what was handed out last.
struct Note {
  std::weak_ptr<Storage> storage;
  uint32_t version;
  int64_t offset;
  Shape sizes;
  Shape strides;
  MeshLayout mesh;
  /// Nullopt where it lies in several ways at once.
  std::optional<Placement> placement;
  std::string giver;
};

class Notes final : public RankContext::Extension {
 public:
  static Notes& OfThisRank() {
    static constexpr char kKey = 0;
    std::unique_ptr<RankContext::Extension>& slot =
        RankContext::Current().extension(&kKey);
    if (slot == nullptr) slot = std::make_unique<Notes>();
    return static_cast<Notes&>(*slot);
  }

  void Add(const Storage* storage, Note note) {
    if (notes_.size() >= forget_at_) {
      absl::erase_if(notes_, [](const auto& entry) {
        return entry.second.storage.expired();
      });
      forget_at_ = std::max<size_t>(64, 2 * notes_.size());
    }
    notes_.insert_or_assign(storage, std::move(note));
  }

  // Null for none of `tensor` as it is now.
  const Note* Find(const Tensor& tensor) const {
    const auto found = notes_.find(tensor.storage().get());
    if (found == notes_.end()) return nullptr;
    const Note& note = found->second;
    // Another storage may have come to lie at the address.
    if (note.storage.lock() != tensor.storage() ||
        note.version != tensor.storage()->version() ||
        note.offset != tensor.impl().offset || note.sizes != tensor.sizes() ||
        note.strides != tensor.strides()) {
      return nullptr;
    }
    return &note;
  }

 private:
  absl::flat_hash_map<const Storage*, Note> notes_;
  size_t forget_at_ = 64;
};

bool IsPlain(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_distributed();
}

// With a dim that counts from the start.
Placement FromStart(const Placement& placement, int ndim) {
  if (!placement.is_shard() || placement.dim() >= 0) return placement;
  return Shard(placement.dim() + ndim);
}

bool LiesAs(const Note& note, const Placement& placement, int ndim) {
  return !note.placement.has_value() ||
         FromStart(*note.placement, ndim) == FromStart(placement, ndim);
}

std::string Described(const nn::Module& module, const char* style) {
  return absl::StrCat("module ", *module.label(), " with ", style);
}

void AddNote(const Tensor& tensor, const DeviceMesh& mesh,
             const std::optional<Placement>& placement, std::string giver) {
  const std::shared_ptr<Storage>& storage = tensor.storage();
  Notes::OfThisRank().Add(storage.get(), {.storage = storage,
                                          .version = storage->version(),
                                          .offset = tensor.impl().offset,
                                          .sizes = tensor.sizes(),
                                          .strides = tensor.strides(),
                                          .mesh = mesh.layout(),
                                          .placement = placement,
                                          .giver = std::move(giver)});
}

}  // namespace

void NoteHandedOut(const Tensor& tensor, const DeviceMesh& mesh,
                   const Placement& placement, const nn::Module& giver,
                   const char* style) {
  if (!IsPlain(tensor) || mesh.size() == 1) return;
  const Note* const note = Notes::OfThisRank().Find(tensor);
  if (note != nullptr && note->mesh == mesh.layout()) {
    if (!note->placement.has_value()) return;
    if (!LiesAs(*note, placement, tensor.ndim())) {
      NoteLiesBothWays(tensor, mesh);
      return;
    }
  }
  AddNote(tensor, mesh, placement, Described(giver, style));
}

void NoteLiesBothWays(const Tensor& tensor, const DeviceMesh& mesh) {
  if (!IsPlain(tensor) || mesh.size() == 1) return;
  AddNote(tensor, mesh, std::nullopt, /*giver=*/"");
}

void CheckTaken(const Tensor& tensor, const DeviceMesh& mesh,
                const Placement& placement, const nn::Module& taker,
                const char* style) {
  if (!IsPlain(tensor)) return;
  const Note* const note = Notes::OfThisRank().Find(tensor);
  if (note == nullptr || note->mesh != mesh.layout()) return;
  CH_CHECK(LiesAs(*note, placement, tensor.ndim()))
      << note->giver << " hands out a plain tensor that lies as "
      << note->placement->ToString() << ", and " << Described(taker, style)
      << " takes it as " << placement.ToString()
      << "; let one of them say what the other does, or hand out DTensors "
         "(without use_local_output)";
}

}  // namespace crosshatch::tp
