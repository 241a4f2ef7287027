// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_DTENSOR_HANDLER_H_
#define CROSSHATCH_DTENSOR_DISPATCH_DTENSOR_HANDLER_H_

/// \file
/// The handler of distributed tensors, and the path that ops on them take
/// (dispatch.cc):
///
/// 1. Look up the call in the rank's cache, by the op's address and attributes
///    and the inputs' layouts (as numbers), sizes and dtypes. On a miss, apply
///    the op's rule (op_rule.h).
/// 2. Redistribute the inputs whose layouts are not those that the rule needs.
/// 3. Run the op on the local tensors.
/// 4. Wrap the results. Whether one aliases an operand follows from what all
///    ranks share: layouts, sizes, and the strides of the global tensor.
///
/// A WholeOp runs on the distributed tensors themselves.

#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// How the memory of a distributed tensor hangs together with that of others.
/// The same on all ranks.
enum class MemoryTie : uint8_t {
  /// It has memory of its own.
  kNone,
  /// Every rank's part lies in the memory of an operand's: what is written to
  /// one of them the other shows.
  kAlias,
  /// A part may lie in an operand's memory or be a copy of what was there: a
  /// view that had to be copied, or a part of another tensor, of which other
  /// ranks have copies. It is neither written to nor used once the operand was.
  kShadow,
};

/// What a handler knows of its local part beside the part itself.
struct PartInfo {
  MemoryTie tie = MemoryTie::kNone;
  /// Each rank's part lies as the strides of the whole say, so that where these
  /// allow a view those of the part do. Of a part that a rank supplied, or that
  /// lies within a larger one, this is not known.
  bool regular = true;
  /// Of a shadow, the operand's: its part's memory. Of a shadow of a shadow,
  /// that one's operand's.
  std::weak_ptr<Storage> source;
  uint32_t source_version = 0;
  /// Of a shadow: shows the operand that it has one.
  std::shared_ptr<const char> mark;
  /// When `local` will be written: whoever asks for it waits on the current
  /// stream, without noticing.
  Event written;
};

/// The handler of a distributed tensor: this rank's part, its layout and mesh.
class DTensorHandler final : public TensorHandler {
 public:
  /// \param layout lives as long as the rank.
  DTensorHandler(Tensor local, const InternedLayout& layout, DeviceMesh mesh)
      : local_(std::move(local)), layout_(layout), mesh_(std::move(mesh)) {}
  DTensorHandler(Tensor local, const InternedLayout& layout, DeviceMesh mesh,
                 PartInfo info);

  /// The handler of a distributed tensor. \pre t.is_distributed()
  static const DTensorHandler& Of(const Tensor& t) {
    return static_cast<const DTensorHandler&>(*t.handler());
  }

  /// \name dispatch.cc
  /// @{
  TensorList Dispatch(const Op& op, TensorSpan inputs) const override;
  Tensor ConformGradient(const Tensor& leaf, Tensor gradient) const override;
  /// Returns a distributed tensor of global shape `sizes` on the same mesh,
  /// outside of the graph.
  /// \param strides those of the global tensor.
  Tensor Like(Tensor local, const InternedLayout& layout, Shape sizes,
              Shape strides, PartInfo info) const;
  /// @}

  std::string Describe() const override;
  const Storage& memory() const override { return *local_.storage(); }
  bool is_alias() const override { return tie_ == MemoryTie::kAlias; }
  bool AddsInPlace(const Tensor& other) const override;
  std::string MemoryOwner() const override;
  Tensor LocalPart() const override { return local(); }
  bool OwnsMemory() const override;

  /// The part, for work on the current stream. Fails a check where it is a
  /// shadow of what was written meanwhile.
  const Tensor& local() const {
    if (watched_ != nullptr) Watch();
    return local_;
  }
  /// As above, for work that writes to it. Fails a check that names `what`
  /// where it is a shadow.
  const Tensor& WritableLocal(const char* what) const;
  const InternedLayout& interned() const { return layout_; }
  const Layout& layout() const { return layout_.layout; }
  const DeviceMesh& mesh() const { return mesh_; }
  bool is_shadow() const { return tie_ == MemoryTie::kShadow; }
  bool regular() const { return regular_; }

  /// What a shadow of this tensor is to hold on to. While it does, the memory
  /// is not this tensor's alone (OwnsMemory): backward adds up nothing there,
  /// which some ranks' shadows would show.
  PartInfo ShadowInfo() const;

 private:
  /// What is asked about at each use of `local_`.
  struct Watched {
    /// Work on a side stream that `local_` is the result of.
    Event written;
    /// Streams that are ordered after it already.
    absl::InlinedVector<const Stream*, 1> ordered;
    std::weak_ptr<Storage> source;
    uint32_t source_version = 0;
    std::shared_ptr<const char> mark;
  };
  void Watch() const;

  const Tensor local_;
  const InternedLayout& layout_;
  const DeviceMesh mesh_;
  const MemoryTie tie_ = MemoryTie::kNone;
  const bool regular_ = true;
  const std::unique_ptr<Watched> watched_;
  // Shared with the shadows of this tensor; null until there is one.
  mutable std::shared_ptr<const char> mark_;
};

/// An op that takes distributed tensors as they are: it has no rule, and its
/// Forward runs on the inputs themselves rather than on their local parts.
/// Such are the ops between layouts, between meshes and at the border to local
/// tensors.
class WholeOp : public Op {};

/// Returns a distributed tensor of global shape `sizes`, contiguous and outside
/// of the graph. Checks that `local` has the shape of this rank's shard.
Tensor Wrap(Tensor local, const InternedLayout& layout, const DeviceMesh& mesh,
            Shape sizes, PartInfo info = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_DTENSOR_HANDLER_H_
