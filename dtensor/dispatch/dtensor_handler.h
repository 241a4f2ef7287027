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

/// How a distributed tensor's memory is related to that of its operand. The
/// same on all ranks.
enum class Aliasing : uint8_t {
  /// It has memory of its own.
  kNone,
  /// Every rank's part is in the memory of the operand's part. A write to one
  /// is visible in the other.
  kAlias,
  /// Every rank's part is in the memory of the operand's part or a copy of it:
  /// a view that had to be copied on some ranks, or a part of a tensor that
  /// other ranks replicate. It must not be written, and not be used after a
  /// write to the operand.
  kAliasOrCopy,
};

/// Properties of a handler's local part.
struct PartInfo {
  Aliasing aliasing = Aliasing::kNone;
  /// Whether each rank's part has the global tensor's memory order, so that it
  /// allows the views that the global strides allow. Unknown (false) for a part
  /// that a rank supplied or that is within a larger one.
  bool regular = true;
  /// For kAliasOrCopy, the memory of the operand's part, or that operand's
  /// source.
  std::weak_ptr<Storage> source;
  uint32_t source_version = 0;
  /// For kAliasOrCopy, keeps the operand from reporting its memory as its own.
  std::shared_ptr<const char> mark;
  /// When `local` will be written. Uses of it first wait on the current stream.
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

  /// Returns the handler of a distributed tensor.
  /// \pre t.is_distributed()
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
  bool is_alias() const override { return aliasing_ == Aliasing::kAlias; }
  bool AddsInPlace(const Tensor& other) const override;
  std::string MemoryOwner() const override;
  Tensor LocalPart() const override { return local(); }
  bool OwnsMemory() const override;

  /// Returns the part, for work on the current stream. Fails a check if it is
  /// kAliasOrCopy and its source was written.
  const Tensor& local() const {
    if (watched_ != nullptr) Watch();
    return local_;
  }
  /// As above, for work that writes to it. Fails a check that names `what` if
  /// it is kAliasOrCopy.
  const Tensor& WritableLocal(const char* what) const;
  const InternedLayout& interned() const { return layout_; }
  const Layout& layout() const { return layout_.layout; }
  const DeviceMesh& mesh() const { return mesh_; }
  bool is_alias_or_copy() const { return aliasing_ == Aliasing::kAliasOrCopy; }
  bool regular() const { return regular_; }

  /// Returns the info of a kAliasOrCopy tensor made of this one. While that
  /// tensor exists, this tensor does not own its memory (OwnsMemory), so
  /// backward does not accumulate into it: on some ranks that tensor would
  /// change.
  PartInfo AliasOrCopyInfo() const;

 private:
  /// Checked at each use of `local_`.
  struct Watched {
    /// Work on a side stream that computes `local_`.
    Event written;
    /// Streams that already wait for it.
    absl::InlinedVector<const Stream*, 1> ordered;
    std::weak_ptr<Storage> source;
    uint32_t source_version = 0;
    std::shared_ptr<const char> mark;
  };
  void Watch() const;

  const Tensor local_;
  const InternedLayout& layout_;
  const DeviceMesh mesh_;
  const Aliasing aliasing_ = Aliasing::kNone;
  const bool regular_ = true;
  const std::unique_ptr<Watched> watched_;
  // Shared with the kAliasOrCopy tensors made of this one; null until there is
  // one.
  mutable std::shared_ptr<const char> mark_;
};

/// An op that takes distributed tensors themselves: it has no rule, and its
/// Forward runs on the inputs rather than on their local parts. These are the
/// ops between layouts, between meshes and at the local/global boundary.
class WholeOp : public Op {};

/// Returns a distributed tensor of global shape `sizes`, contiguous and outside
/// of the graph. Checks that `local` has the shape of this rank's shard.
Tensor Wrap(Tensor local, const InternedLayout& layout, const DeviceMesh& mesh,
            Shape sizes, PartInfo info = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_DTENSOR_HANDLER_H_
